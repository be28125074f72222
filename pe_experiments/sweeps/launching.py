"""Hands the runs that are left to one of Hydra's launchers, and sees to it that each comes to an end.

The launcher is used as an engine: it starts processes, here or on a cluster, and each of them runs a
`Worker`. What became of a run is read from the worker's note, not from the launcher, which loses everything
where one process is killed.
"""

from __future__ import annotations

import copy
import logging
import os
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

import joblib  # type: ignore[import-untyped]
from hydra._internal.callbacks import Callbacks
from hydra.core.config_loader import ConfigLoader
from hydra.core.plugins import Plugins
from hydra.core.utils import setup_globals
from hydra.types import HydraContext
from omegaconf import DictConfig, open_dict, read_write

from pe_experiments.command_line import sentence
from pe_experiments.config import SweepConfig
from pe_experiments.errors import InUse, UserError
from pe_experiments.sweeps.leaving import import_all
from pe_experiments.sweeps.overview import Overview
from pe_experiments.sweeps.planning import FAILED, Job
from pe_experiments.sweeps.worker import ELSEWHERE, RUNNING, Worker, read_note

LOST = "lost"  # started, and its process ended without a word
WAITING = "waiting"  # not started
KILLED = "its process was killed twice (is there enough memory?)"
ELSEWHERE_SECONDS = 0.5  # between looks at a run that another process has


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
    """How many runs the local engine carries out at once."""
    cores = max(1, joblib.cpu_count() // threads)
    places = len(devices) * settings.jobs_per_device
    if settings.jobs is None:
        return min(cores, places) if devices else cores
    return min(settings.jobs, places) if devices else settings.jobs


class Launching:
    """One sweep's launcher.

    Args:
        config: of the sweep, with its ``hydra`` section.
        settings: its ``sweep`` section.
        loader: composes the runs in the processes.
    """

    def __init__(self, config: DictConfig, settings: SweepConfig, loader: ConfigLoader):
        self.config, self.loader = config, loader
        self.launcher = str(config.hydra.launcher._target_).rpartition(".")[2]
        self.local = self.launcher in ("JoblibLauncher", "BasicLauncher")
        self.parallel = self.launcher == "JoblibLauncher"
        uses_gpu = self.parallel and str(config.hardware.accelerator) != "cpu"
        self.devices = gpus() if uses_gpu else ()
        self.settings = settings
        self.processes = side_by_side(settings, self.devices, int(config.hardware.threads))
        if self.parallel and config.hydra.launcher.n_jobs != -1:
            self.processes = joblib.effective_n_jobs(int(config.hydra.launcher.n_jobs))
        if self.launcher == "BasicLauncher":
            self.processes = 1
        self._warming: Iterator[None] | None = None

    def warm_up(self) -> None:
        """Start the local engine's processes while this one still looks up runs: all import torch at once."""
        if self.parallel and not self.devices and self.processes > 1 and self._warming is None:
            settings = {key: value for key, value in self.config.hydra.launcher.items() if key != "_target_"}
            settings |= {"n_jobs": self.processes, "backend": "loky", "batch_size": 1}
            engine = joblib.Parallel(
                **settings, return_as="generator"
            )  # set otherwise it would not be reused
            self._warming = engine(joblib.delayed(import_all)(os.getpid()) for _ in range(self.processes))

    def cool_down(self) -> None:
        """Let go of processes that were warmed up for nothing."""
        if self._warming is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # joblib's, about results nobody asks for
                list(self._warming)
            self._warming = None

    def carry_out(self, jobs: list[Job], overview: Overview) -> None:
        """Bring every job to an end: afterwards each is finished, diverged, failed or not applicable.

        A run that another process has is waited for. Where one process is killed, the engine ends those
        beside it: their runs are tried again, half as many at once, in the end each alone.

        Raises:
            UserError: the launcher cannot start anything.
            KeyboardInterrupt: interrupted; the processes have ended.
        """
        with self._folder(jobs) as folder:
            lost, width = self._rounds([jobs], folder, overview, self.processes), self.processes
            while lost:
                width = max(1, width // 2)
                groups = [lost] if width > 1 else [[job] for job in lost]
                # With one process joblib would not leave this one.
                lost = self._rounds(groups, folder, overview, max(2, width))
                if width == 1:
                    for job in lost:
                        job.state, job.reason = FAILED, KILLED
                        overview.ended(job, {})
                    return

    def _rounds(
        self, groups: Sequence[Sequence[Job]], folder: Path, overview: Overview, processes: int
    ) -> list[Job]:
        """Carry out group after group; answers the jobs that were begun and whose processes were ended."""
        lost = []
        for group in groups:
            pending, elsewhere = list(group), list[Job]()
            while pending or elsewhere:
                if pending:
                    self._round(pending, folder, overview, processes)
                lost += [job for job in pending if job.state == LOST]
                elsewhere += [job for job in pending if job.state == ELSEWHERE]
                pending = [job for job in pending if job.state == WAITING]
                if not pending and elsewhere:
                    pending = _free_again(elsewhere)
        return lost

    @contextmanager
    def _folder(self, jobs: list[Job]) -> Iterator[Path]:
        """Where the processes leave their notes; on a cluster it must be seen from every node."""
        if self.local:
            with TemporaryDirectory(prefix="pe_experiments_") as scratch:
                yield Path(scratch)
            return
        shared = Path(self.config.results_dir).absolute() / ".launched"
        shared.mkdir(parents=True, exist_ok=True)
        folder = Path(mkdtemp(prefix=time.strftime("%Y%m%d-%H%M%S-"), dir=shared))
        logs_matter = False
        try:
            yield folder
            logs_matter = any(job.state == FAILED for job in jobs)
        except KeyboardInterrupt:  # what a cluster has begun may go on
            logs_matter = True
            raise
        finally:
            if not logs_matter:
                shutil.rmtree(folder, ignore_errors=True)

    def _round(self, jobs: list[Job], folder: Path, overview: Overview, processes: int) -> None:
        notes = Path(mkdtemp(prefix="round-", dir=folder))
        paths = [notes / f"{index}.json" for index in range(len(jobs))]
        worker = Worker(
            os.getcwd(),
            tuple(sys.path),
            self.devices,
            self.settings.jobs_per_device,
            str(folder),
            os.getpid(),
        )
        broken: Exception | None = None
        for job in jobs:
            job.state = WAITING
        with overview.watching(jobs, paths):
            try:
                self._launch(
                    [[*job.overrides, f"hydra.sweep.dir={_quoted(notes)}"] for job in jobs],
                    notes,
                    worker,
                    processes,
                )
            except Exception as error:
                broken = error
        for job, path in zip(jobs, paths, strict=True):
            note = read_note(path)
            job.state, job.reason = note.get("state", WAITING), note.get("reason", "")
        if broken and all(job.state == WAITING for job in jobs):
            raise UserError(f"hydra/launcher: {sentence(broken) or type(broken).__name__}") from broken
        for job in jobs:
            if job.state == RUNNING:
                job.state = LOST
            if not self.local and job.state in (LOST, WAITING):
                job.state = FAILED
                job.reason = f"its job ended without a result; logs: {notes}"
                overview.ended(job, {})

    def _launch(self, runs: list[list[str]], notes: Path, worker: Worker, processes: int) -> None:
        config = copy.deepcopy(self.config)
        with read_write(config.hydra), open_dict(config.hydra):
            config.hydra.sweep.dir = str(notes)
            if self.parallel:
                config.hydra.launcher.n_jobs = processes
                config.hydra.launcher.batch_size = 1
            if self.launcher == "RayLauncher":
                _one_core_each(config.hydra.launcher.ray, self.settings)
        if self._warming is not None:
            list(self._warming)
            self._warming = None
        setup_globals()
        launcher = Plugins.instance().instantiate_launcher(
            hydra_context=HydraContext(config_loader=self.loader, callbacks=Callbacks()),
            task_function=worker,
            config=config,
        )
        try:
            launcher.launch(runs, initial_job_idx=0)
        except BaseException:
            if self.parallel:
                end_workers()
            raise


def _one_core_each(ray: DictConfig, settings: SweepConfig) -> None:
    """What the launcher leaves open: a Ray started here gets this machine's cores, and a run one of them."""
    started_here = not ray.init.get("address")
    if started_here:
        ray.init.setdefault("num_cpus", settings.jobs or joblib.cpu_count())
        ray.init.setdefault("include_dashboard", False)
    ray.init.setdefault("log_to_driver", False)  # the terminal belongs to the overview
    ray.init.setdefault("logging_level", logging.ERROR)
    ray.remote.setdefault("num_cpus", 1)


def end_workers() -> None:
    """End the processes of the local engine at once; what they write is replaced atomically."""
    from joblib.externals.loky import get_reusable_executor  # type: ignore[import-untyped]

    get_reusable_executor().shutdown(wait=False, kill_workers=True)


def _free_again(elsewhere: list[Job]) -> list[Job]:
    """Wait until another process lets go of runs, and take these off the list."""
    free: list[Job] = []
    while not free:
        time.sleep(ELSEWHERE_SECONDS)
        free = [job for job in elsewhere if not _held(job)]
    elsewhere[:] = [job for job in elsewhere if job not in free]
    return free


def _held(job: Job) -> bool:
    try:
        with job.run.lock():
            return False
    except InUse:
        return True
    except OSError:  # the directory is gone: the other process could not carry it out
        return False


def _quoted(path: Path) -> str:
    escaped = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
