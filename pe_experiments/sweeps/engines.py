"""Where the runs of a sweep are carried out: processes of this machine, a cluster through submitit, or Ray.

An engine takes orders and gives for each what is ``done()`` at some time and then has a ``result()``, as a
future has. It is ended when all are, or on an interruption. ``look_seconds`` are to pass between looks at
them: on a cluster each look asks a file system that others share.
"""

from __future__ import annotations

import importlib
import logging
import os
import queue
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pe_experiments.configuration.schema import EngineConfig, SweepConfig
from pe_experiments.sweeps.worker import Order, Outcome, Worker
from pe_experiments.terminal.errors import UserError


class LocalEngine:
    """Processes of this machine, each for one order after the other; one that is killed takes no other along.

    Args:
        processes: at once.
        devices: GPUs the processes take turns on; none: the CPU.
    """

    look_seconds = 0.5

    def __init__(self, processes: int, devices: Sequence[str] = ()):
        self.workers = [Worker(devices[n % len(devices)] if devices else None) for n in range(processes)]
        self._threads = ThreadPoolExecutor(processes)  # each waits for what a worker answers
        self._idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        for worker in self.workers:
            self._idle.put(worker)

    def submit(self, orders: Sequence[Order]) -> list[Any]:
        return [self._threads.submit(self._run, order) for order in orders]

    def _run(self, order: Order) -> Outcome:
        worker = self._idle.get()
        try:
            return worker.run(order)
        finally:
            self._idle.put(worker)

    def end(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in self.workers:
            worker.kill()


class SubmititEngine:
    """One job per order on a Slurm cluster, or without one in processes of this machine.

    Args:
        settings: the ``engine`` section.
        folder: for the jobs' logs; every node must see it. They are kept where a job on the cluster ended
            early, or goes on after an interruption.
    """

    look_seconds = 5.0

    def __init__(self, settings: EngineConfig, folder: Path):
        self._folder = folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
        self._is_here, self._jobs = settings.cluster == "local", list[Any]()
        self._executor = _installed("submitit", settings).AutoExecutor(
            self._folder, cluster=settings.cluster, slurm_max_num_timeout=settings.max_num_timeout
        )
        self._executor.update_parameters(timeout_min=settings.timeout_min, **settings.parameters)
        logging.getLogger("submitit").setLevel(logging.ERROR)  # it warns wherever there is no accounting

    def submit(self, orders: Sequence[Order]) -> list[Any]:
        with self._executor.batch():
            jobs = [self._executor.submit(order) for order in orders]
        self._jobs += jobs
        return jobs

    def end(self) -> None:
        for job in self._jobs if self._is_here else []:
            job.cancel()
        if self._is_here or all(job.paths.result_pickle.exists() for job in self._jobs):
            shutil.rmtree(self._folder, ignore_errors=True)


class RayEngine:
    """One Ray task per order, on a Ray started here or on a running cluster (``engine.address``)."""

    look_seconds = 5.0

    def __init__(self, settings: EngineConfig, processes: int):
        here = {"num_cpus": processes, "include_dashboard": False}
        where: dict[str, Any] = {"address": settings.address} if settings.address else here
        self._ray = _installed("ray", settings)
        self._ray.init(log_to_driver=False, logging_level=logging.ERROR, **where)

    def submit(self, orders: Sequence[Order]) -> list[Any]:
        task = self._ray.remote(num_cpus=1, max_retries=0)(Order.__call__)
        return [task.remote(order).future() for order in orders]

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
    """The GPUs that PyTorch sees, by the names that CUDA_VISIBLE_DEVICES has for them."""
    import torch

    count, named = torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES")
    return tuple((named.split(",") if named else [str(n) for n in range(count)])[:count])


def side_by_side(settings: SweepConfig, devices: Sequence[str], threads: int) -> int:
    """How many runs this machine carries out at once."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    wanted = settings.jobs or max(1, cores // threads)
    return min(wanted, len(devices) * settings.jobs_per_device) if devices else wanted
