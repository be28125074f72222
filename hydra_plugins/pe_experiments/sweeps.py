"""Launchers that execute the runs of a sweep, and Hydra's sweeper without its second composition.

The launchers skip finished runs, resume interrupted ones and isolate runs from each other.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
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
    """Hydra's basic sweeper for one grid or several, without a second composition and multirun.yaml.

    The launcher composes each run once and reports its mistakes.

    Args:
        max_batch_size: number of runs that are launched together, as in Hydra's basic sweeper.
        params: the values of each option, as in Hydra's basic sweeper; all grids share them.
        grids: further options of each grid. Options typed on the command line select the grids that have
            their values, or replace the values if no grid has all of them. An encoding that no grid has runs
            in the first grid alone.
    """

    def __init__(
        self,
        max_batch_size: int | None,
        params: dict[str, str] | None = None,
        grids: Sequence[dict[str, str]] = (),
    ):
        super().__init__(max_batch_size, params)
        self.grids = grids

    def sweep(self, arguments: list[str]) -> Any:
        assert self.hydra_context
        assert self.launcher
        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        jobs = grid_runs(self.params, self.grids, arguments, parser)
        batches: list[Sequence[JobReturn]] = []
        for batch in self.split_overrides_to_chunks(jobs, self.max_batch_size or max(1, len(jobs))):
            first_job = sum(len(earlier) for earlier in batches)
            batches.append(self.launcher.launch(batch, initial_job_idx=first_job))
            for job_return in batches[-1]:
                _ = job_return.return_value  # raises the error of a failed job, as in Hydra's sweeper
        return batches


def grid_runs(
    params: Mapping[str, Any],
    grids: Sequence[Mapping[str, Any]],
    arguments: Sequence[str] = (),
    parser: OverridesParser | None = None,
) -> list[list[str]]:
    """Return the overrides of each run of a sweep: all combinations of each grid, without repeats.

    Args:
        params, grids, arguments: see `GridSweeper`.
        parser: Hydra's parser of overrides; needed for ``pe=glob(*)``.
    """
    parser = parser or OverridesParser.create()

    def values_by_key(texts: Iterable[str]) -> dict[str, list[str]]:
        overrides = parser.parse_overrides([*texts])
        batches = [BasicSweeper.split_arguments([override], None) for override in overrides]
        return {
            str(override.get_key_element()): [text for [text] in runs]
            for override, [runs] in zip(overrides, batches, strict=True)
        }

    axes = [
        values_by_key(f"{key}={value}" for key, value in {**params, **grid}.items()) for grid in grids or [{}]
    ]
    for key, typed in values_by_key(arguments).items():
        available = {text for grid in axes for text in grid.get(key, ())}
        if available.issuperset(typed):
            axes = [
                {**grid, key: [text for text in typed if text in grid[key]]} for grid in axes if key in grid
            ]
        elif key == "pe":  # the other grids vary arguments and positions of encodings of theirs
            axes = [{**axes[0], key: typed}]
        else:
            axes = [{**grid, key: typed} for grid in axes]
    runs: dict[frozenset[str], list[str]] = {}
    for grid in axes:
        for run in itertools.product(*grid.values()):
            runs.setdefault(frozenset(run), list(run))
    return list(runs.values())


def _store(group: str, name: str, cls: type, **options: Any) -> None:
    node = {"_target_": f"{__name__}.{cls.__name__}", **options}
    ConfigStore.instance().store(name, node, f"hydra/{group}", provider="pe_experiments")


_store("sweeper", "grid", GridSweeper, max_batch_size=None, params={}, grids=[])
for kind, settings in LAUNCHERS.items():
    _store("launcher", kind, RunLauncher, _convert_="all", kind=kind, **settings, max_runs=20_000)
