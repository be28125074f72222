"""Execute the runs of a sweep on this machine, a Slurm cluster or Ray.

An engine has two methods: `submit` accepts orders, one per run, and returns a future for the outcome of each;
`end` stops the engine and the runs that it still executes.
"""

from __future__ import annotations

import importlib
import io
import logging
import math
import multiprocessing
import os
import pickle
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobRuntime, JobStatus, run_job, setup_globals
from hydra.types import HydraContext, TaskFunction
from hydra.version import setbase
from omegaconf import DictConfig, open_dict

from pe_experiments.configuration.hydra_errors import explain_error
from pe_experiments.configuration.schema import LauncherConfig, ProcessesConfig, RayConfig, SubmititConfig
from pe_experiments.terminal import process
from pe_experiments.terminal.errors import InUse, NotApplicable, UserError, sentence

Outcome = dict[str, Any]  # keys: state, reason, loss (on validation examples) and output (printed lines)
ELSEWHERE = "in progress"  # state of a run that another process executes
# Signals of Ctrl-C and of a cluster, which only the launching process handles.
LAUNCHER_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)
SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Application:
    """The Hydra application of the launching process, sent to the processes that execute its runs."""

    context: HydraContext
    task: TaskFunction
    config: DictConfig  # configuration of the sweep
    full_error: bool  # whether the user asked for tracebacks

    def run(self, overrides: Sequence[str], number: int) -> JobReturn:
        """Compose and execute one run, as Hydra's launchers do."""
        setbase("1.3")  # as `hydra.main` does in the launching process
        setup_globals()
        Plugins.instance()
        JobRuntime.instance().set("name", self.config.hydra.job.name)
        config = self.context.config_loader.load_sweep_config(self.config, list(overrides))
        with open_dict(config):
            config.hydra.job.id = config.hydra.job.num = number
        return run_job(self.task, config, "hydra.sweep.dir", "hydra.sweep.subdir", self.context)


@dataclass(frozen=True)
class Order:
    """One run to execute; it can be sent through a pipe or to a cluster."""

    application: bytes  # pickled
    overrides: list[str]
    number: int
    command: list[str]  # executes only this run
    launcher_pid: int | None = None  # set on the same machine: the job ends when this process ends
    # The user's encodings may be in the working directory, other modules on the original path.
    directory: str = field(default_factory=os.getcwd)
    path: list[str] = field(default_factory=lambda: [entry or os.getcwd() for entry in sys.path])

    def __call__(self) -> Outcome:
        """Execute the run on a node of a cluster, in a separate process that ends with this one."""
        with suppress(OSError):
            os.chdir(self.directory)
        sys.path[:] = self.path
        worker = Worker()
        if self.launcher_pid:
            watch = threading.Thread(target=_watch_launcher, args=(self.launcher_pid, worker), daemon=True)
            watch.start()
        try:
            return worker.run(self)
        finally:
            worker.kill()

    def checkpoint(self) -> Any:
        """Return the job that submitit queues again at its time limit, so that the run resumes."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def _watch_launcher(launcher_pid: int, worker: Worker) -> None:
    """End this job within a second after its launching process has ended for any reason."""
    while True:
        try:
            os.kill(launcher_pid, 0)  # raises an error if there is no such process
        except ProcessLookupError:
            worker.kill()
            os._exit(1)
        time.sleep(1)


class Worker:
    """A process that executes orders in turn; it starts with the first order and restarts after a kill."""

    def __init__(self, gpu: str | None = None):
        self.gpu = gpu  # the only GPU visible to the process
        self._process: SpawnProcess | None = None
        self._killed = False

    def run(self, order: Order) -> Outcome:
        """Execute an order and return its outcome; a killed process is a failed run."""
        if not self._process or not self._process.is_alive():
            self._pipe, worker_end = SPAWN.Pipe()
            new_process = SPAWN.Process(target=serve, args=(worker_end, self.gpu))
            new_process.start()
            worker_end.close()
            self._process = new_process
            if self._killed:  # another thread called `kill` in the meantime
                new_process.kill()
        try:
            self._pipe.send(order)
            return self._pipe.recv()
        except (EOFError, OSError):
            self._process.join()
            return {"state": "failed", "reason": "its process was killed (is there enough memory?)"}

    def kill(self) -> None:
        """Terminate the process and release callers waiting for it."""
        self._killed = True
        if self._process:
            self._process.kill()


def serve(orders: Connection, gpu: str | None) -> None:
    """Execute incoming orders until the launching process ends."""
    process.follow_parent(*LAUNCHER_SIGNALS)
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    importlib.import_module("pe_experiments.training.loop")  # needed by every run
    while True:
        orders.send(outcome_of(orders.recv()))


def outcome_of(order: Order) -> Outcome:
    """Execute a run in this process and return its outcome, with all output captured in it."""
    output = io.StringIO()
    application = None
    with redirect_stdout(output), redirect_stderr(output):
        try:
            process.set_up(order.command)
            application = pickle.loads(order.application)
            job_return = application.run(order.overrides, order.number)
            if job_return.status == JobStatus.FAILED:
                raise job_return._return_value
            loss = job_return.return_value
            outcome = {"state": "diverged" if loss == math.inf else "finished", "reason": "", "loss": loss}
        except BaseException as error:  # other runs must continue
            if application and application.full_error:
                traceback.print_exc()
            states: dict[type[BaseException], str] = {NotApplicable: "not applicable", InUse: ELSEWHERE}
            reason = sentence(explain_error(error, order.overrides))
            outcome = {"state": states.get(type(error), "failed"), "reason": reason}
    return {**outcome, "output": output.getvalue().splitlines()}


class LocalEngine:
    """Run processes on this machine, assigned to GPUs in turn; a killed process fails only its run."""

    poll_seconds = 0.5  # between checks for finished runs

    def __init__(self, processes: int, devices: Sequence[str] = ()):
        self.workers = [Worker(devices[n % len(devices)] if devices else None) for n in range(processes)]
        self._threads = ThreadPoolExecutor(processes)  # each waits for the answer of a worker
        self._idle_workers = list(self.workers)

    def submit(self, orders: Sequence[Order]) -> list[Any]:
        return [self._threads.submit(self._run, order) for order in orders]

    def _run(self, order: Order) -> Outcome:
        worker = self._idle_workers.pop()  # never empty: there are as many workers as threads
        try:
            return worker.run(order)
        finally:
            self._idle_workers.append(worker)

    def end(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in self.workers:
            worker.kill()


class SubmititEngine:
    """Run one job per order on a Slurm cluster or, to try it out, in processes on this machine."""

    poll_seconds = 5.0  # each check accesses a shared file system

    def __init__(self, settings: SubmititConfig, cluster: str, folder: Path):
        self._folder = folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
        self._is_local = cluster == "local"
        self._jobs = list[Any]()
        self._executor = importlib.import_module("submitit").AutoExecutor(
            self._folder, cluster=cluster, slurm_max_num_timeout=settings.max_num_timeout
        )
        self._executor.update_parameters(timeout_min=settings.timeout_min, **settings.parameters)
        logging.getLogger("submitit").setLevel(logging.ERROR)  # it warns on clusters without accounting

    def submit(self, orders: Sequence[Order]) -> list[Any]:
        if self._is_local:
            orders = [replace(order, launcher_pid=os.getpid()) for order in orders]
        with self._executor.batch():
            jobs = [self._executor.submit(order) for order in orders]
        self._jobs += jobs
        return jobs

    def end(self) -> None:
        if self._is_local:
            for job in self._jobs:
                job.cancel()
        # Keep logs if a job ended early or continues without this process.
        if self._is_local or all(job.paths.result_pickle.exists() for job in self._jobs):
            shutil.rmtree(self._folder, ignore_errors=True)


class RayEngine:
    """Run one Ray task per order, on a local Ray or on a running cluster (``hydra.launcher.address``)."""

    poll_seconds = 5.0

    def __init__(self, settings: RayConfig, processes: int):
        options: dict[str, Any]
        if settings.address:
            options = {"address": settings.address}
        else:
            options = {"num_cpus": processes, "include_dashboard": False}
            # Access to Ray's ports allows running code. Without clusters Ray listens to this machine only,
            # also on Linux, despite the name of this variable.
            os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        self._ray = importlib.import_module("ray")
        on_terminate = signal.getsignal(signal.SIGTERM)
        self._ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
        signal.signal(signal.SIGTERM, on_terminate)  # Ray's own handler would end in a traceback

    def submit(self, orders: Sequence[Order]) -> list[Any]:
        task = self._ray.remote(num_cpus=1, max_retries=0)(Order.__call__)
        return [task.remote(order).future() for order in orders]

    def end(self) -> None:
        self._ray.shutdown()


Engine = LocalEngine | SubmititEngine | RayEngine


SCHEMAS: dict[str, type[LauncherConfig]] = {
    "processes": ProcessesConfig, "slurm": SubmititConfig, "submitit_local": SubmititConfig, "ray": RayConfig,
}  # fmt: skip


def engine_for(kind: str, settings: LauncherConfig, threads: int, gpus_each: int, folder: Path) -> Engine:
    """Return the engine of ``hydra/launcher=KIND`` for runs that need so many threads and GPUs each."""
    try:
        if isinstance(settings, SubmititConfig):
            return SubmititEngine(settings, "slurm" if kind == "slurm" else "local", folder)
        if isinstance(settings, RayConfig):
            return RayEngine(settings, settings.jobs or cores_for(threads))
        assert isinstance(settings, ProcessesConfig)
        devices = gpus(gpus_each) if gpus_each else ()
        return LocalEngine(parallel_runs(settings, devices, threads), devices)
    except ModuleNotFoundError as error:
        hint = 'install it with pip install -e ".[cluster]"'
        raise UserError(f"hydra/launcher={kind}: {error.name} is not installed; {hint}") from error


def gpus(group_size: int = 1) -> tuple[str, ...]:
    """Return the visible GPUs in groups, each as a value of CUDA_VISIBLE_DEVICES such as ``0,1``."""
    import torch

    count = torch.cuda.device_count()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",")[:count] if visible else [str(n) for n in range(count)]
    starts = range(0, count - group_size + 1, group_size)
    return tuple(",".join(names[start : start + group_size]) for start in starts)


def cores_for(threads: int) -> int:
    """Return how many runs with this number of threads fit the cores of this machine."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return max(1, cores // threads)


def parallel_runs(settings: ProcessesConfig, devices: Sequence[str], threads: int) -> int:
    """Return the number of parallel runs on this machine."""
    jobs = settings.jobs or cores_for(threads)
    if devices:
        return min(jobs, len(devices) * settings.jobs_per_device)
    return jobs
