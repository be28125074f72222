"""Where the runs of a sweep are carried out: processes of this machine, a cluster through submitit, or Ray.

An engine is begun with orders, asked again and again whether it is busy with any, and ended. What became of
each order stands in its note. A ``local`` engine can tell that a process was killed.
"""

from __future__ import annotations

import importlib
import logging
import os
import subprocess
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pe_experiments.config import EngineConfig, SweepConfig
from pe_experiments.errors import UserError
from pe_experiments.sweeps.worker import Order, end


class LocalEngine:
    """Processes of this machine, each for one order after the other; one that is killed takes no other along.

    Args:
        processes: at once.
        devices: GPUs the processes take turns on; none: the CPU.
    """

    local = True

    def __init__(self, processes: int, devices: Sequence[str] = ()):
        self._waiting: deque[Order] = deque()
        self._slots = [Slot(devices[n % len(devices)] if devices else None) for n in range(processes)]

    def begin(self, orders: Sequence[Order]) -> None:
        self._waiting.extend(orders)

    def busy(self) -> bool:
        for slot in self._slots:
            if slot.is_free() and self._waiting:
                slot.take(self._waiting.popleft())
        return any(slot.order for slot in self._slots)

    def end(self) -> None:
        for slot in self._slots:
            if slot.process:
                end(slot.process)


@dataclass
class Slot:
    """Room for one process, on one GPU or none, and the order it has."""

    gpu: str | None
    process: subprocess.Popen[str] | None = None
    order: Order | None = None

    def is_free(self) -> bool:
        """Whether it can take an order, after a look at the one it has."""
        if self.process and self.order and self.order.is_over_in(self.process):
            self.order = None
        if self.process and self.process.poll() is not None:
            end(self.process)
            self.process = None
        return self.order is None

    def take(self, order: Order) -> None:
        """Carry this order out next."""
        self.order = order
        if self.process:
            order.hand_to(self.process)
        else:
            self.process = order.start({} if self.gpu is None else {"CUDA_VISIBLE_DEVICES": self.gpu})


class SubmititEngine:
    """One job per order on a Slurm cluster, or without one in processes of this machine.

    Args:
        settings: the ``engine`` section.
        folder: for the jobs' logs; every node must see it.
    """

    local = False

    def __init__(self, settings: EngineConfig, folder: Path):
        self._ends = settings.cluster == "local"  # what a cluster has begun goes on
        self._executor = _installed("submitit", settings).AutoExecutor(
            folder / "logs", cluster=settings.cluster, slurm_max_num_timeout=settings.max_num_timeout
        )
        self._executor.update_parameters(timeout_min=settings.timeout_min, **settings.parameters)
        logging.getLogger("submitit").setLevel(logging.ERROR)  # it warns wherever there is no accounting

    def begin(self, orders: Sequence[Order]) -> None:
        with self._executor.batch():
            self._jobs = [self._executor.submit(order) for order in orders]

    def busy(self) -> bool:
        return not all(job.done() for job in self._jobs)

    def end(self) -> None:
        for job in self._jobs if self._ends else []:
            job.cancel()


class RayEngine:
    """One Ray task per order, on a Ray started here or on a running cluster (``engine.address``)."""

    local = False

    def __init__(self, settings: EngineConfig, processes: int):
        here = {"num_cpus": processes, "include_dashboard": False}
        where: dict[str, Any] = {"address": settings.address} if settings.address else here
        self._ray = _installed("ray", settings)
        self._ray.init(log_to_driver=False, logging_level=logging.ERROR, **where)

    def begin(self, orders: Sequence[Order]) -> None:
        task = self._ray.remote(num_cpus=1, max_retries=0)(Order.__call__)
        self._tasks = [task.remote(order) for order in orders]

    def busy(self) -> bool:
        return len(self._ray.wait(self._tasks, num_returns=len(self._tasks), timeout=0)[0]) < len(self._tasks)

    def end(self) -> None:
        self._ray.shutdown()


Engine = LocalEngine | SubmititEngine | RayEngine


def engine_for(settings: EngineConfig, devices: Sequence[str], processes: int, folder: Path) -> Engine:
    """The engine that ``engine=NAME`` asks for.

    Raises:
        UserError: it needs a library that is not installed.
    """
    if settings.kind == "submitit":
        return SubmititEngine(settings, folder)
    return RayEngine(settings, processes) if settings.kind == "ray" else LocalEngine(processes, devices)


def _installed(name: str, settings: EngineConfig) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        brings = 'pip install -e ".[cluster]" brings it'
        raise UserError(f"engine={settings.kind}: {name} is not installed; {brings}") from error


def gpus() -> tuple[str, ...]:
    """The GPUs of this machine, found without torch."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return tuple(name for name in visible.split(",") if name.strip() not in ("", "-1"))
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(str(i) for i in range(sum(line.startswith("GPU") for line in listed.stdout.splitlines())))


def side_by_side(settings: SweepConfig, devices: Sequence[str], threads: int) -> int:
    """How many runs this machine carries out at once."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    wanted = settings.jobs or max(1, cores // threads)
    return min(wanted, len(devices) * settings.jobs_per_device) if devices else wanted
