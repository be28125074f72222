"""Hands the runs that are left to an engine, and sees to it that each comes to an end."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

from omegaconf import DictConfig

from pe_experiments.command_line import command_alone
from pe_experiments.config import EngineConfig, SweepConfig, check_engine
from pe_experiments.errors import InUse
from pe_experiments.sweeps.engines import Engine, LocalEngine, RayEngine, SubmititEngine
from pe_experiments.sweeps.overview import Overview
from pe_experiments.sweeps.planning import DONE, FAILED, NOT_APPLICABLE, Job
from pe_experiments.sweeps.worker import ELSEWHERE, RUNNING, Order, read_note

LOST = "lost"  # started, and its process ended without a word
WAITING = "waiting"  # not started
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
    """How many runs this machine carries out at once."""
    cores = max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    cores = max(1, cores // threads)
    places = len(devices) * settings.jobs_per_device
    if settings.jobs is None:
        return min(cores, places) if devices else cores
    return min(settings.jobs, places) if devices else settings.jobs


class Launching:
    """One sweep's engine.

    Args:
        config: of the sweep.
        settings: its ``sweep`` section.
    """

    def __init__(self, config: DictConfig, settings: SweepConfig):
        self.results_dir = Path(str(config.results_dir))
        self.engine: EngineConfig = check_engine(config)
        uses_gpu = self.engine.kind == "local" and str(config.hardware.accelerator) != "cpu"
        self.devices = gpus() if uses_gpu else ()
        self.processes = side_by_side(settings, self.devices, int(config.hardware.threads))

    def carry_out(self, jobs: list[Job], overview: Overview) -> None:
        """Bring every job to an end: afterwards each is finished, diverged, failed or not applicable.

        A run that another process has is waited for. A run whose process is killed is tried once more, alone.

        Raises:
            UserError: the engine cannot start anything.
            KeyboardInterrupt: interrupted; the processes have ended.
        """
        with self._folder(jobs) as folder:
            pending, elsewhere, lost = list(jobs), list[Job](), list[Job]()
            while pending or elsewhere:
                self._round(pending, folder, self._made(folder, self.processes), overview)
                lost += [job for job in pending if job.state == LOST]
                elsewhere += [job for job in pending if job.state == ELSEWHERE]
                pending = _free_again(elsewhere) if elsewhere else []
            for job in lost:
                self._round([job], folder, self._made(folder, 1), overview)
                if job.state not in (*DONE, FAILED, NOT_APPLICABLE):
                    job.state, job.reason = FAILED, "its process was killed twice (is there enough memory?)"
                    overview.ended(job, {})

    def _made(self, folder: Path, processes: int) -> Engine:
        if self.engine.kind == "submitit":
            return SubmititEngine(self.engine, folder)
        if self.engine.kind == "ray":
            return RayEngine(self.engine, processes)
        return LocalEngine(processes, folder, self.devices)

    @contextmanager
    def _folder(self, jobs: list[Job]) -> Iterator[Path]:
        """Where the processes leave their notes; on a cluster it must be seen from every node."""
        if self.engine.kind == "local":
            with TemporaryDirectory(prefix="pe_experiments_") as scratch:
                yield Path(scratch)
            return
        shared = self.results_dir.absolute() / ".launched"
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

    def _round(self, jobs: list[Job], folder: Path, engine: Engine, overview: Overview) -> None:
        notes = Path(mkdtemp(prefix="notes-", dir=folder))
        orders = [
            Order(
                job.config,
                command_alone(job.overrides),
                str(notes / f"{i}.json"),
                os.getcwd(),
                list(sys.path),
            )
            for i, job in enumerate(jobs)
        ]
        for job in jobs:
            job.state = WAITING
        with overview.watching(jobs, [Path(order.note) for order in orders]):
            engine.carry_out(orders)
        for job, order in zip(jobs, orders, strict=True):
            note = read_note(Path(order.note))
            job.state, job.reason = note.get("state", LOST), note.get("reason", "")
            job.name = note.get("name", job.name)  # another one where code was edited in between
            if job.state == RUNNING:
                job.state = LOST
            if job.state == LOST and not engine.local:
                job.state, job.reason = FAILED, f"its job ended without a result; logs: {folder / 'logs'}"
                overview.ended(job, {})


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
