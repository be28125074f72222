"""Launchers that skip finished runs, resume interrupted ones and isolate runs from each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

# Slurm sends a warning half a minute before it ends a job; the run writes a checkpoint and is queued again.
SLURM = {"slurm_array_parallelism": 64, "slurm_signal_delay_s": 30, "cpus_per_task": 1, "mem_gb": 8}


class RunLauncher(Launcher):
    """Execute the runs of a sweep with the configured engine (`sweeps.engines`)."""

    kind: str

    def __init__(self, **settings: Any):
        self.settings = settings

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from pe_experiments.sweeps.launch import launch_runs

        return launch_runs(self, job_overrides, initial_job_idx)


class ProcessesLauncher(RunLauncher):
    """Run processes on this machine: one per core, or as many as fit its GPUs."""

    kind = "processes"


class SlurmLauncher(RunLauncher):
    """Run one job per run on a Slurm cluster through submitit, queued again at its time limit."""

    kind = "slurm"


class SubmititLocalLauncher(RunLauncher):
    """Run submitit's jobs without a cluster, to try out `SlurmLauncher`."""

    kind = "submitit_local"


class RayLauncher(RunLauncher):
    """Run one Ray task per run, on this machine or on a running Ray cluster."""

    kind = "ray"


SUBMITIT = {"timeout_min": 240, "max_num_timeout": 10}
CHOICES: dict[str, tuple[type[RunLauncher], dict[str, Any]]] = {
    "processes": (ProcessesLauncher, {"jobs": None, "jobs_per_device": 1}),
    "slurm": (SlurmLauncher, {**SUBMITIT, "parameters": SLURM}),
    "submitit_local": (SubmititLocalLauncher, {**SUBMITIT, "parameters": {"cpus_per_task": 1}}),
    "ray": (RayLauncher, {"jobs": None, "address": None}),
}
for name, (launcher, keys) in CHOICES.items():
    target = {"_target_": f"{launcher.__module__}.{launcher.__name__}", "_convert_": "all"}
    node = target | keys | {"max_runs": 20_000}
    ConfigStore.instance().store(group="hydra/launcher", name=name, node=node, provider="pe_experiments")
