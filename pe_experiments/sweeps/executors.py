"""Execute the runs of a sweep in processes of this machine, as jobs of submitit, or as tasks of Ray."""

from __future__ import annotations

import importlib
import io
import itertools
import logging
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from pe_experiments.configuration.schema import (
    Config,
    LauncherConfig,
    ProcessesConfig,
    RayConfig,
    SubmititConfig,
)
from pe_experiments.terminal import process
from pe_experiments.terminal.errors import NotApplicable, UserError, sentence

WORKER_LOCKS: list[FileLock] = []  # of this worker process
SPAWN = multiprocessing.get_context("spawn")
# Signals of Ctrl-C and of a cluster, which only the launching process handles.
LAUNCHER_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)


@dataclass(frozen=True)
class RunOutcome:
    error: str = ""  # a sentence, if it failed
    not_applicable: bool = False  # whether the error is that its valid parts do not fit together
    lines: tuple[str, ...] = ()  # what it printed


@dataclass(frozen=True)
class RunCall:
    """One run to execute in another process, in the working directory of the sweep."""

    config: Config
    command: list[str]  # executes only this run
    directory: str = field(default_factory=os.getcwd)
    # The user's encodings may be in the working directory, other modules on the original path.
    path: list[str] = field(default_factory=lambda: [entry or os.getcwd() for entry in sys.path])

    def __call__(self) -> RunOutcome:
        """Train and evaluate the run; its errors are part of the outcome."""
        with suppress(OSError):
            os.chdir(self.directory)
        sys.path[:] = self.path
        process.set_up(self.command)
        output = io.StringIO()
        error = ""
        not_applicable = False
        with redirect_stdout(output), redirect_stderr(output):
            try:
                from pe_experiments.run import run_experiment

                result = run_experiment(self.config, wait=True)
                if result.status == "error":
                    error = str(result.result.get("reason", ""))
            except (Exception, SystemExit) as caught:  # other runs must continue
                error = sentence(caught)
                not_applicable = isinstance(caught, NotApplicable)
                if os.environ.get(process.FULL_ERROR) == "1":
                    traceback.print_exc()
        return RunOutcome(error, not_applicable, tuple(output.getvalue().splitlines()))


class Processes:
    """Processes of this machine; a killed process fails only its run.

    Args:
        devices: for each process the GPU on which its runs compute, or None.
    """

    poll_seconds = 0.5

    def __init__(self, devices: Sequence[str | None]):
        from pebble import ProcessPool  # not needed by a single run, which imports this module too

        self._locks = tempfile.TemporaryDirectory(prefix="pe_experiments_")
        start = partial(_start_worker, devices, Path(self._locks.name))
        self._pool = ProcessPool(len(devices), initializer=start, context=SPAWN)

    def submit(self, calls: Sequence[RunCall]) -> list[Any]:
        return [self._pool.schedule(call) for call in calls]

    def stop(self) -> None:
        self._pool.stop()
        self._pool.join()
        self._locks.cleanup()


def _start_worker(devices: Sequence[str | None], locks: Path) -> None:
    """Prepare a worker process: it leaves signals to the launching process, ends with it and takes a GPU."""
    for number in LAUNCHER_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    process.end_with_parent()
    free = itertools.cycle(enumerate(devices))
    while not WORKER_LOCKS:
        index, device = next(free)
        lock = FileLock(locks / str(index))  # a killed process loses it to the one that takes its place
        with suppress(Timeout):
            lock.acquire(timeout=0.01)
            WORKER_LOCKS.append(lock)
    if device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = device


class Submitit:
    """One job per run on a Slurm cluster or, to try it out, in processes of this machine."""

    poll_seconds = 5.0  # each look accesses a shared file system

    def __init__(self, settings: SubmititConfig, cluster: str, folder: Path):
        self._folder = folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
        self._is_local = cluster == "local"
        self._jobs: list[Any] = []
        self._executor = importlib.import_module("submitit").AutoExecutor(
            self._folder, cluster=cluster, slurm_max_num_timeout=settings.max_num_timeout
        )
        self._executor.update_parameters(timeout_min=settings.timeout_min, **settings.parameters)
        logging.getLogger("submitit").setLevel(logging.ERROR)  # it warns on clusters without accounting

    def submit(self, calls: Sequence[RunCall]) -> list[Any]:
        with self._executor.batch():  # one array of Slurm, whose parallelism is limited
            for call in calls:
                job = _Job(call, os.getpid() if self._is_local else None)
                self._jobs.append(self._executor.submit(job))
        return self._jobs

    def stop(self) -> None:
        if self._is_local:
            for job in self._jobs:
                job.cancel()
        # Keep logs if a job ended early or continues without this process.
        if self._is_local or all(job.paths.result_pickle.exists() for job in self._jobs):
            shutil.rmtree(self._folder, ignore_errors=True)


@dataclass(frozen=True)
class _Job:
    """A call in a job of submitit, which Slurm queues again at its time limit."""

    call: RunCall
    launcher_pid: int | None  # of a local job, which would outlive the launching process

    def __call__(self) -> RunOutcome:
        if self.launcher_pid is not None:
            threading.Thread(target=_end_with, args=(self.launcher_pid,), daemon=True).start()
        signal.signal(signal.SIGUSR2, _interrupting(signal.getsignal(signal.SIGUSR2)))
        return self.call()

    def checkpoint(self) -> Any:
        """Return the job that submitit queues again, whose run resumes."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def _end_with(pid: int) -> None:
    while True:
        try:
            os.kill(pid, 0)  # raises an error if there is no such process
        except ProcessLookupError:
            os._exit(1)
        time.sleep(1)


def _interrupting(submitit_handler: Any) -> Callable[[int, Any], None]:
    """Return a signal handler that interrupts the run where submitit's handler would end the process.

    The run then ends as after Ctrl-C, and resumes from its last checkpoint.
    """

    def handle(number: int, frame: Any) -> None:
        try:
            submitit_handler(number, frame)  # queues the job again
        except SystemExit as end:
            raise KeyboardInterrupt from end

    return handle


class Ray:
    """One Ray task per run, on a local Ray or on a running cluster (``hydra.launcher.address``)."""

    poll_seconds = 5.0

    def __init__(self, settings: RayConfig, jobs: int):
        options: dict[str, Any]
        if settings.address:
            options = {"address": settings.address}
        else:
            options = {"num_cpus": jobs, "include_dashboard": False}
            # Access to Ray's ports allows running code. Without clusters Ray listens to this machine only,
            # also on Linux, despite the name of this variable.
            os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        self._ray = importlib.import_module("ray")
        on_terminate = signal.getsignal(signal.SIGTERM)
        self._ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
        signal.signal(signal.SIGTERM, on_terminate)  # Ray's own handler would end in a traceback

    def submit(self, calls: Sequence[RunCall]) -> list[Any]:
        execute = self._ray.remote(num_cpus=1, max_retries=0)(RunCall.__call__)
        return [execute.remote(call).future() for call in calls]

    def stop(self) -> None:
        self._ray.shutdown()


Executor = Processes | Submitit | Ray
SCHEMAS: dict[str, type[LauncherConfig]] = {
    "processes": ProcessesConfig, "slurm": SubmititConfig, "submitit_local": SubmititConfig, "ray": RayConfig,
}  # fmt: skip


def executor_for(kind: str, settings: LauncherConfig, config: Config) -> Executor:
    """Return the executor of ``hydra/launcher=KIND`` for runs with the threads and device of this one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    jobs_of_cores = max(1, cores // config.trainer.threads)
    try:
        if isinstance(settings, SubmititConfig):
            log_folder = Path(config.results_dir).absolute() / ".launched"
            return Submitit(settings, "slurm" if kind == "slurm" else "local", log_folder)
        if isinstance(settings, RayConfig):
            return Ray(settings, settings.jobs or jobs_of_cores)
    except ModuleNotFoundError as error:
        hint = 'install it with pip install -e ".[cluster]"'
        raise UserError(f"hydra/launcher={kind}: {error.name} is not installed; {hint}") from error
    assert isinstance(settings, ProcessesConfig)
    devices = gpus() if config.trainer.accelerator in ("auto", "gpu") else ()
    if devices:
        return Processes((devices * settings.jobs_per_device)[: settings.jobs])
    if settings.jobs_per_device > 1:
        raise UserError(
            f"hydra.launcher.jobs_per_device={settings.jobs_per_device}: these runs use no GPU; "
            f"allowed instead: hydra.launcher.jobs"
        )
    return Processes([None] * (settings.jobs or jobs_of_cores))


def gpus() -> tuple[str, ...]:
    import torch

    count = torch.cuda.device_count()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return tuple(visible.split(",")[:count] if visible else map(str, range(count)))
