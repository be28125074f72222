"""A sweeper that launches every combination of values once, and launchers that execute the runs.

The launchers skip finished runs, resume interrupted ones and isolate runs from each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

SUBMITIT = {"timeout_min": 240, "max_num_timeout": 10}
# Slurm signals a job 30 s before it ends it. The run then writes a checkpoint and is queued again.
SLURM = {"slurm_array_parallelism": 64, "slurm_signal_delay_s": 30, "cpus_per_task": 1, "mem_gb": 8}
LAUNCHERS: dict[str, dict[str, Any]] = {
    "processes": {"jobs": None, "jobs_per_device": 1},  # on this machine
    "slurm": {**SUBMITIT, "parameters": SLURM},  # one job per run, through submitit
    "submitit_local": {**SUBMITIT, "parameters": {"cpus_per_task": 1}},  # the same without a cluster
    "ray": {"jobs": None, "address": None},  # one task per run
}


class RunLauncher(Launcher):
    """Execute the runs of a sweep with an engine of the given kind (`sweeps.engines`)."""

    def __init__(self, kind: str, **settings: Any):
        self.kind = kind
        self.settings = settings

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context = hydra_context
        self.task_function = task_function
        self.config = config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from pe_experiments.sweeps.launch import launch_runs

        return launch_runs(self, job_overrides, initial_job_idx)


class GridSweeper(Sweeper):
    """Launch every combination of the values in ``hydra.sweeper.params`` and on the command line.

    Values on the command line replace those of the same key in ``params``.
    """

    def __init__(self, params: dict[str, Any] | None = None):
        self.params = dict(params or {})

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context = hydra_context
        self.config = config
        self.launcher = Plugins.instance().instantiate_launcher(hydra_context, task_function, config)

    def sweep(self, arguments: list[str]) -> Sequence[JobReturn]:
        from pe_experiments.sweeps.expansion import expand

        jobs = expand(arguments, self.params, self.hydra_context.config_loader, self.config)
        job_returns = self.launcher.launch(jobs, initial_job_idx=0)
        if not isinstance(self.launcher, RunLauncher):  # a `RunLauncher` has already printed the failures
            from pe_experiments.sweeps.launch import say_failures

            say_failures(job_returns)
        return job_returns


def _store(group: str, name: str, cls: type, **options: Any) -> None:
    node = {"_target_": f"{__name__}.{cls.__name__}", **options}
    ConfigStore.instance().store(name, node, f"hydra/{group}", provider="pe_experiments")


_store("sweeper", "grid", GridSweeper, params={})
for kind, settings in LAUNCHERS.items():
    _store("launcher", kind, RunLauncher, _convert_="all", kind=kind, **settings, max_runs=20_000)
