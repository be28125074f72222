"""What carries out runs side by side: processes of this machine, a cluster through submitit, or Ray.

An engine takes orders and returns when none of them is under way any more; what became of each stands in its
note. An engine that is interrupted ends what it has started here.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from pe_experiments.config import EngineConfig
from pe_experiments.errors import UserError
from pe_experiments.sweeps.worker import Order, as_line

LOOK_SECONDS = 0.5


class Engine(Protocol):
    """Attributes:
    local: whether it runs on this machine alone.
    """

    local: bool

    def carry_out(self, orders: Sequence[Order]) -> None:
        """Carry out the orders; returns when none is under way."""


class LocalEngine:
    """Processes of this machine, each for one order after the other; one that is killed takes no other along.

    Args:
        processes: at once.
        folder: for what the processes say on standard error.
        devices: GPUs the processes take turns on; none: the CPU.
    """

    local = True

    def __init__(self, processes: int, folder: Path, devices: Sequence[str] = ()):
        self.processes, self.folder, self.devices = processes, folder, devices
        self._running: dict[int, subprocess.Popen[str]] = {}

    def carry_out(self, orders: Sequence[Order]) -> None:
        waiting = deque(orders)
        count = min(self.processes, len(orders))
        threads = [threading.Thread(target=self._serve, args=(i, waiting), daemon=True) for i in range(count)]
        for thread in threads:
            thread.start()
        try:
            while any(thread.is_alive() for thread in threads):
                threads[0].join(LOOK_SECONDS)
                time.sleep(0 if threads[0].is_alive() else LOOK_SECONDS / 10)
        finally:
            waiting.clear()
            for process in list(self._running.values()):
                process.kill()
            for thread in threads:
                thread.join()

    def _serve(self, index: int, waiting: deque[Order]) -> None:
        process: subprocess.Popen[str] | None = None
        while waiting:
            try:
                order = waiting.popleft()
            except IndexError:
                break
            if process is None:
                process = self._running[index] = self._start(index)
            if not _carried_out(process, order):
                _end(process)
                process = None
        if process is not None:
            _end(process)

    def _start(self, index: int) -> subprocess.Popen[str]:
        environment = dict(os.environ)
        if self.devices:
            environment["CUDA_VISIBLE_DEVICES"] = self.devices[index % len(self.devices)]
        paths = [entry or os.getcwd() for entry in sys.path]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
        with (self.folder / f"process-{index}.log").open("a") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "pe_experiments.sweeps.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
            )


def _carried_out(process: subprocess.Popen[str], order: Order) -> bool:
    """Whether the process lived to the end of the order."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(as_line(order))
        process.stdin.flush()
        return bool(process.stdout.readline())
    except (OSError, ValueError):
        return False


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    for pipe in (process.stdin, process.stdout):
        with suppress(OSError):  # it still holds what a killed process no longer read
            assert pipe is not None
            pipe.close()
    process.wait()


class Requeued:
    """An order on a cluster: a job that hits its time limit is queued again, and its run resumes."""

    def __init__(self, order: Order):
        self.order = order

    def __call__(self) -> None:
        self.order()

    def checkpoint(self) -> Any:
        """What submitit queues in its place."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


class SubmititEngine:
    """One job per order on a Slurm cluster, or without one in processes of this machine (``local``).

    Args:
        settings: the ``engine`` section.
        folder: for the jobs' logs; every node must see it.
    """

    local = False

    def __init__(self, settings: EngineConfig, folder: Path):
        self.settings, self.folder = settings, folder

    def carry_out(self, orders: Sequence[Order]) -> None:
        submitit = _installed("submitit", self.settings)
        executor = submitit.AutoExecutor(
            folder=self.folder / "logs",
            cluster=self.settings.cluster,
            slurm_max_num_timeout=self.settings.max_num_timeout,
        )
        executor.update_parameters(timeout_min=self.settings.timeout_min, **self.settings.parameters)
        with executor.batch():
            jobs = [executor.submit(Requeued(order)) for order in orders]
        try:
            while not all(job.done() for job in jobs):
                time.sleep(LOOK_SECONDS)
        except KeyboardInterrupt:
            if self.settings.cluster == "local":  # what a cluster has begun goes on
                for job in jobs:
                    job.cancel()
            raise


class RayEngine:
    """One Ray task per order, on a Ray started here or on a running cluster (``engine.address``)."""

    local = False

    def __init__(self, settings: EngineConfig, processes: int):
        self.settings, self.processes = settings, processes

    def carry_out(self, orders: Sequence[Order]) -> None:
        ray = _installed("ray", self.settings)
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if self.settings.address is None:
            options |= {"num_cpus": self.processes, "include_dashboard": False}
        else:
            options["address"] = self.settings.address
        ray.init(**options)
        try:
            task = ray.remote(num_cpus=1, max_retries=0)(_call)
            waiting = [task.remote(order) for order in orders]
            while waiting:
                _, waiting = ray.wait(waiting, timeout=LOOK_SECONDS)
        finally:
            ray.shutdown()


def _call(order: Order) -> None:
    order()


def _installed(name: str, settings: EngineConfig) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise UserError(
            f'engine={settings.kind}: {name} is not installed; pip install -e ".[cluster]" brings it'
        ) from error
