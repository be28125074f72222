"""Launchers that execute the runs of a sweep, and Hydra's sweeper without its second composition.

The launchers skip finished runs, resume interrupted ones and isolate runs from each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

SUBMITIT = {"timeout_min": 240, "max_num_timeout": 10}
# Slurm signals a job 30 s before it ends it. The run is queued again and resumes from its last checkpoint.
SLURM = {"slurm_array_parallelism": 64, "slurm_signal_delay_s": 30, "cpus_per_task": 1, "mem_gb": 8}
LAUNCHERS: dict[str, dict[str, Any]] = {
    "processes": {"jobs": None, "jobs_per_device": 1},  # on this machine
    "slurm": {**SUBMITIT, "parameters": SLURM},  # one job per run, through submitit
    "submitit_local": {**SUBMITIT, "parameters": {"cpus_per_task": 1}},  # the same without a cluster
    "ray": {"jobs": None, "address": None},  # one task per run
}


class RunLauncher(Launcher):
    """Execute the runs of a sweep with the executor of the given kind (`sweeps.executors`)."""

    def __init__(self, kind: str, **settings: Any):
        self.kind = kind
        self.settings = settings

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context = hydra_context
        self.config = config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from pe_experiments.sweeps.launch import launch

        return launch(self, job_overrides)


class GridSweeper(BasicSweeper):
    """Hydra's basic sweeper, except that it neither composes every run beforehand nor writes multirun.yaml.

    The launcher composes each run once and reports its mistakes.
    """

    def sweep(self, arguments: list[str]) -> Any:
        assert self.hydra_context
        assert self.launcher
        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        overrides = parser.parse_overrides([*self._parse_config(), *arguments])
        batches: list[Sequence[JobReturn]] = []
        for jobs in self.split_arguments(overrides, self.max_batch_size):
            first_job = sum(len(batch) for batch in batches)
            batches.append(self.launcher.launch(jobs, initial_job_idx=first_job))
            for job_return in batches[-1]:
                _ = job_return.return_value  # raises the error of a failed job, as in Hydra's sweeper
        return batches


def _store(group: str, name: str, cls: type, **options: Any) -> None:
    node = {"_target_": f"{__name__}.{cls.__name__}", **options}
    ConfigStore.instance().store(name, node, f"hydra/{group}", provider="pe_experiments")


_store("sweeper", "grid", GridSweeper, max_batch_size=None, params={})
for kind, settings in LAUNCHERS.items():
    _store("launcher", kind, RunLauncher, _convert_="all", kind=kind, **settings, max_runs=20_000)
