"""Where the runs of a sweep are carried out, on this machine, a cluster or Ray, and how far they are.

An engine takes orders and gives for each what is ``done()`` at some time and then has a ``result()``, as a
future has. ``look_seconds`` pass between looks: on a cluster each asks a file system that others share.
"""

from __future__ import annotations

import importlib
import logging
import os
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pe_experiments.configuration.schema import EngineConfig, SweepConfig
from pe_experiments.sweeps.jobs import DONE, FAILED, Job
from pe_experiments.sweeps.worker import ELSEWHERE, METRICS, Order, Outcome, Worker
from pe_experiments.terminal.console import Display, say
from pe_experiments.terminal.errors import InUse, UserError, one_line


class LocalEngine:
    """Processes of this machine, on GPUs in turn; one that is killed takes no other along."""

    look_seconds = 0.5

    def __init__(self, processes: int, devices: Sequence[str] = ()):
        self.workers = [Worker(devices[n % len(devices)] if devices else None) for n in range(processes)]
        self._threads = ThreadPoolExecutor(processes)  # each waits for what a worker answers
        self._idle = list(self.workers)

    def submit(self, orders: Sequence[Order]) -> list[Any]:
        return [self._threads.submit(self._run, order) for order in orders]

    def _run(self, order: Order) -> Outcome:
        worker = self._idle.pop()  # there are as many as threads
        try:
            return worker.run(order)
        finally:
            self._idle.append(worker)

    def end(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in self.workers:
            worker.kill()


class SubmititEngine:
    """One job per order on a Slurm cluster, or without one in processes of this machine.

    Logs go to a folder that every node sees, and stay where a job ended early or goes on when interrupted.
    """

    look_seconds = 5.0

    def __init__(self, settings: EngineConfig, folder: Path):
        self._folder = folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
        self._is_here, self._jobs = settings.cluster == "local", list[Any]()
        self._executor = importlib.import_module("submitit").AutoExecutor(
            self._folder, cluster=settings.cluster, slurm_max_num_timeout=settings.max_num_timeout
        )
        self._executor.update_parameters(timeout_min=settings.timeout_min, **settings.parameters)
        logging.getLogger("submitit").setLevel(logging.ERROR)  # it warns wherever there is no accounting

    def submit(self, orders: Sequence[Order]) -> list[Any]:
        with self._executor.batch():
            self._jobs += (jobs := [self._executor.submit(order) for order in orders])
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
        self._ray = importlib.import_module("ray")
        self._ray.init(log_to_driver=False, logging_level=logging.ERROR, **where)

    def submit(self, orders: Sequence[Order]) -> list[Any]:
        task = self._ray.remote(num_cpus=1, max_retries=0)(Order.__call__)
        return [task.remote(order).future() for order in orders]

    def end(self) -> None:
        self._ray.shutdown()


Engine = LocalEngine | SubmititEngine | RayEngine


def engine_for(settings: EngineConfig, devices: Sequence[str], processes: int, folder: Path) -> Engine:
    """The engine that ``engine=NAME`` asks for."""
    try:
        if settings.kind == "submitit":
            return SubmititEngine(settings, folder)
        return RayEngine(settings, processes) if settings.kind == "ray" else LocalEngine(processes, devices)
    except ModuleNotFoundError as error:
        brings = 'pip install -e ".[cluster]" brings it'
        raise UserError(f"engine={settings.kind}: {error.name} is not installed; {brings}") from error


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


def launch(jobs: Sequence[Job], engine: Engine, own: Path | None, display: Display) -> None:
    """Bring every job to an end, and then the engine; a run that another process has is waited for."""
    try:
        while jobs:
            _round(jobs, engine, own, display)
            jobs = [job for job in jobs if job.state == ELSEWHERE]
            while any(map(_held, jobs)):
                time.sleep(engine.look_seconds)
    finally:
        display.stop()
        engine.end()


def _round(jobs: Sequence[Job], engine: Engine, own: Path | None, display: Display) -> None:
    """Have the engine carry the jobs out, as far as it can."""
    orders = [Order(job.config, job.alone(own)) for job in jobs]
    left = dict(zip(jobs, engine.submit(orders), strict=True))
    study = str(jobs[0].config["study"] or "sweep")
    display.start(study, sum(job.steps for job in jobs), sum(map(_step, jobs)))
    while left:
        time.sleep(engine.look_seconds)
        for job in [job for job, one in left.items() if one.done()]:
            try:
                outcome = left.pop(job).result()
            except Exception as error:  # of the engine: a run does not raise
                outcome = {"state": FAILED, "reason": f"its job ended early: {error}"}
            _conclude(job, outcome)
        states = Counter("done" if job.state in DONE else job.state for job in jobs if job not in left)
        states["to go"] = len(left)
        display.note(", ".join(f"{count} {state}" for state, count in sorted(states.items()) if count))
        display.step(sum(_step(job) if job in left else job.steps for job in jobs))


def _conclude(job: Job, outcome: Outcome) -> None:
    """Note and say what has become of a run."""
    job.state, job.reason = outcome["state"], outcome["reason"]
    job.name = outcome.get("name", job.name)  # another one where code was edited in between
    for line in outcome.get("said", []):
        say(line)
    if job.state == ELSEWHERE:
        say(f"{job.name}: being run by another process; waiting for it")
        return
    measured = outcome.get("metrics", {})
    metrics = "".join(f", {METRICS[key]} {value:.3f}" for key, value in measured.items() if value is not None)
    reason = "" if job.state == "finished" else f" ({one_line(job.reason)})"
    done = f"{outcome['done']}, " if outcome.get("done") and job.state != FAILED else ""
    say(f"{job.name}: {done}{job.state}{reason}{metrics}")


def _step(job: Job) -> int:
    """The last step in a run's training curve."""
    try:
        return int(job.run.metrics.read_text().splitlines()[-1].partition(",")[0])
    except (OSError, ValueError, IndexError):
        return 0


def _held(job: Job) -> bool:
    """Whether another process has the run."""
    try:
        with job.run.lock():
            return False
    except InUse:
        return True
    except OSError:  # the directory is gone: the other process could not carry it out
        return False
