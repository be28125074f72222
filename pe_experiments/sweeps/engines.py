"""Where the runs of a sweep are carried out: processes of this machine, a cluster through submitit, or Ray.

An engine is begun with orders, asked again and again whether any is under way, and ended. What became of each
order stands in its note.
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
from typing import Any, Protocol

from pe_experiments.config import EngineConfig, SweepConfig
from pe_experiments.errors import UserError
from pe_experiments.sweeps.worker import Order, end


class Engine(Protocol):
    """Attributes:
    local: whether a run whose process was killed may be tried again alone.
    """

    local: bool

    def begin(self, orders: Sequence[Order]) -> None:
        """Take these orders."""

    def busy(self) -> bool:
        """Whether any order is waiting or under way."""

    def end(self) -> None:
        """End what has been started here."""


class LocalEngine:
    """Processes of this machine, each for one order after the other; one that is killed takes no other along.

    Args:
        processes: at once.
        devices: GPUs the processes take turns on; none: the CPU.
    """

    local = True

    def __init__(self, processes: int, devices: Sequence[str] = ()):
        self._waiting: deque[Order] = deque()
        gpus = [
            {"CUDA_VISIBLE_DEVICES": devices[n % len(devices)]} if devices else {} for n in range(processes)
        ]
        self._slots = [Slot(gpu) for gpu in gpus]

    def begin(self, orders: Sequence[Order]) -> None:
        self._waiting.extend(orders)

    def busy(self) -> bool:
        for slot in self._slots:
            slot.look()
            if self._waiting and slot.order is None:
                slot.take(self._waiting.popleft())
        return any(slot.order for slot in self._slots)

    def end(self) -> None:
        self._waiting.clear()
        for slot in self._slots:
            slot.end()


@dataclass
class Slot:
    """One process of this machine, begun with these variables in its environment, and the order it has."""

    environment: dict[str, str]
    process: subprocess.Popen[str] | None = None
    order: Order | None = None

    def look(self) -> None:
        """Take note of an order that is over, and of a process that is gone."""
        if self.process and self.order and self.order.is_over_in(self.process):
            self.order = None
        if self.process and self.process.poll() is not None:
            self.end()

    def take(self, order: Order) -> None:
        """Carry this order out next."""
        self.order = order
        if self.process:
            order.hand_to(self.process)
        else:
            self.process = order.start(**self.environment)

    def end(self) -> None:
        """End the process, if there is one."""
        if self.process:
            end(self.process)
        self.process = None


class Requeued:
    """An order on a cluster: a job that hits its time limit is queued again, and its run resumes."""

    def __init__(self, order: Order):
        self.order = order

    def __call__(self) -> None:
        self.order.in_a_process_of_its_own()

    def checkpoint(self) -> Any:
        """What submitit queues in its place."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


class SubmititEngine:
    """One job per order on a Slurm cluster, or without one in processes of this machine.

    Args:
        settings: the ``engine`` section.
        folder: for the jobs' logs; every node must see it.
    """

    local = False

    def __init__(self, settings: EngineConfig, folder: Path):
        self.settings = settings
        self.executor = _installed("submitit", settings).AutoExecutor(
            folder=folder / "logs",
            cluster=settings.cluster,
            slurm_max_num_timeout=settings.max_num_timeout,
        )
        self._jobs: list[Any] = []

    def begin(self, orders: Sequence[Order]) -> None:
        self.executor.update_parameters(timeout_min=self.settings.timeout_min, **self.settings.parameters)
        with self.executor.batch():
            self._jobs = [self.executor.submit(Requeued(order)) for order in orders]

    def busy(self) -> bool:
        return not all(job.done() for job in self._jobs)

    def end(self) -> None:
        for job in self._jobs if self.settings.cluster == "local" else []:  # what a cluster began goes on
            job.cancel()


class RayEngine:
    """One Ray task per order, on a Ray started here or on a running cluster (``engine.address``)."""

    local = False

    def __init__(self, settings: EngineConfig, processes: int):
        self.ray = _installed("ray", settings)
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if settings.address is None:
            options |= {"num_cpus": processes, "include_dashboard": False}
        else:
            options["address"] = settings.address
        self.ray.init(**options)
        self._tasks: list[Any] = []

    def begin(self, orders: Sequence[Order]) -> None:
        task = self.ray.remote(num_cpus=1, max_retries=0)(Order.in_a_process_of_its_own)
        self._tasks = [task.remote(order) for order in orders]

    def busy(self) -> bool:
        _, self._tasks = self.ray.wait(self._tasks, num_returns=len(self._tasks), timeout=0)
        return bool(self._tasks)

    def end(self) -> None:
        self.ray.shutdown()


def _installed(name: str, settings: EngineConfig) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise UserError(
            f'engine={settings.kind}: {name} is not installed; pip install -e ".[cluster]" brings it'
        ) from error


def engine_for(settings: EngineConfig, processes: int, devices: Sequence[str], folder: Path) -> Engine:
    """The engine that ``engine=NAME`` asks for.

    Raises:
        UserError: it needs a library that is not installed.
    """
    if settings.kind == "submitit":
        return SubmititEngine(settings, folder)
    return RayEngine(settings, processes) if settings.kind == "ray" else LocalEngine(processes, devices)


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
