"""Where the runs of a sweep are carried out, on this machine, a cluster or Ray: orders in, futures out."""

from __future__ import annotations

import importlib
import io
import logging
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from pe_experiments.configuration.schema import EngineConfig, SweepConfig
from pe_experiments.sweeps.jobs import DONE, FAILED, Job
from pe_experiments.terminal import process
from pe_experiments.terminal.console import Display, say
from pe_experiments.terminal.errors import InUse, NotApplicable, UserError, one_line, sentence

Outcome = dict[str, Any]  # state, reason and what was said; of a run that could start also name and metrics
ELSEWHERE = "in progress"  # the state of a run that another process has
METRICS = {"exact_match_in_distribution": "exact match in distribution", "exact_match_at_2x": "at 2x",
           "loss_in_distribution": "loss in distribution"}  # fmt: skip
# Ctrl-C, a cluster's way of ending a job and its warning are for the launching process to act on.
OF_THE_LAUNCHER = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)
SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Order:
    """One run to carry out; plain enough for a pipe or a cluster."""

    config: dict[str, Any]
    command: list[str]  # what carries it out alone
    # Schemes of the user's own may lie in the working directory, and modules where they were found.
    directory: str = field(default_factory=os.getcwd)
    path: list[str] = field(default_factory=lambda: [entry or os.getcwd() for entry in sys.path])

    def __call__(self) -> Outcome:
        """Carry it out on a cluster's node, in a process of its own, which ends when this one does."""
        with suppress(OSError):
            os.chdir(self.directory)
        sys.path[:] = self.path
        worker = Worker()
        try:
            return worker.run(self)
        finally:
            worker.kill()

    def checkpoint(self) -> Any:
        """The job that submitit queues again at its time limit; the run then resumes."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


class Worker:
    """A process for one order after the other; it starts with the first, and anew after it was killed."""

    def __init__(self, gpu: str | None = None):
        self.gpu = gpu  # the only one it sees
        self._process: SpawnProcess | None = None
        self._killed = False

    def run(self, order: Order) -> Outcome:
        if not self._process or not self._process.is_alive():
            self._pipe, theirs = SPAWN.Pipe()
            started = SPAWN.Process(target=serve, args=(theirs, self.gpu))
            started.start()
            theirs.close()
            self._process = started
            if self._killed:  # meanwhile, by another thread
                started.kill()
        try:
            self._pipe.send(order)
            return self._pipe.recv()
        except (EOFError, OSError):
            self._process.join()
            return {"state": "failed", "reason": "its process was killed (is there enough memory?)"}

    def kill(self) -> None:
        """Kill the process, also one that is just being started; who waits for it then waits no longer."""
        self._killed = True
        if self._process:
            self._process.kill()


def serve(orders: Connection, gpu: str | None) -> None:
    """Carry out the orders that arrive, until the launching process ends."""
    for number in OF_THE_LAUNCHER:
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_launcher, daemon=True).start()
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    importlib.import_module("pe_experiments.training.loop")  # what every run needs, before there is one
    while True:
        orders.send(outcome_of(orders.recv()))


def _end_with_launcher() -> None:
    """End this process at once, whatever it is doing, when the launching one is gone."""
    launcher = multiprocessing.parent_process()
    assert launcher
    launcher.join()
    os.kill(os.getpid(), signal.SIGKILL)


def outcome_of(order: Order) -> Outcome:
    """Carry out a run here, without a word on the terminal, which belongs to the launching process."""
    said, threads = io.StringIO(), threading.enumerate()
    with redirect_stdout(said), redirect_stderr(said):
        try:
            outcome = _carried_out(order)
        except BaseException as error:  # the others must go on
            states: dict[type[BaseException], str] = {NotApplicable: "not applicable", InUse: ELSEWHERE}
            outcome = {"state": states.get(type(error), "failed"), "reason": sentence(error)}
    endless = [f"a thread does not end: {name}" for name in process.endless_threads(threads)]
    return outcome | {"said": [*said.getvalue().splitlines(), *endless]}


def _carried_out(order: Order) -> Outcome:
    from pe_experiments.configuration.experiment import resolve
    from pe_experiments.configuration.schema import check
    from pe_experiments.run import run_experiment

    process.own(order.command)
    ran = run_experiment(resolve(check(order.config)))
    return {
        "state": {"completed": "finished", "diverged": "diverged", "error": "failed"}[ran.status],
        "reason": ran.result.get("reason", ""),
        "done": ran.done,
        "name": ran.result["name"],
        "metrics": {key: ran.result.get(key) for key in METRICS},
    }


class LocalEngine:
    """Processes of this machine, on GPUs in turn; one that is killed takes no other along."""

    look_seconds = 0.5  # between looks at what is done

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
    """One job per order on a Slurm cluster, or without one in processes of this machine."""

    look_seconds = 5.0  # each look asks a file system that others share

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
        # Logs stay where a job ended early, or goes on without this process.
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
            while any(job.run.in_use for job in jobs):
                time.sleep(engine.look_seconds)
    finally:
        display.stop()
        engine.end()


def _round(jobs: Sequence[Job], engine: Engine, own: Path | None, display: Display) -> None:
    left = dict(zip(jobs, engine.submit([Order(job.config, job.alone(own)) for job in jobs]), strict=True))
    display.start(jobs[0].study[1] or "sweep", sum(job.steps for job in jobs), sum(map(_step, jobs)))
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
    job.state, job.reason = outcome["state"], outcome["reason"]
    job.name = outcome.get("name", job.name)  # another one where code was edited in between
    for line in outcome.get("said", []):
        say(line)
    if job.state == ELSEWHERE:
        say(f"{job.name}: being run by another process; waiting for it")
        return
    measured = outcome.get("metrics", {})  # as far as they were
    metrics = "".join(f", {METRICS[key]} {value:.3f}" for key, value in measured.items() if value is not None)
    reason = "" if job.state == "finished" else f" ({one_line(job.reason)})"
    done = f"{outcome['done']}, " if outcome.get("done") and job.state != FAILED else ""
    say(f"{job.name}: {done}{job.state}{reason}{metrics}")


def _step(job: Job) -> int:
    try:
        return int(job.run.metrics.read_text().splitlines()[-1].partition(",")[0])
    except (OSError, ValueError, IndexError):
        return 0
