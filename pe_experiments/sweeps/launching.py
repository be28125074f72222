"""Hands the runs that are left to an engine, shows how far they are, and brings each to an end."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from pe_experiments.config import EngineConfig, SweepConfig
from pe_experiments.console import Display, say
from pe_experiments.errors import InUse
from pe_experiments.sweeps.engines import engine_for, gpus, side_by_side
from pe_experiments.sweeps.expansion import alone
from pe_experiments.sweeps.jobs import DONE, FAILED, NOT_APPLICABLE, Job
from pe_experiments.sweeps.worker import (
    ELSEWHERE,
    LOOK_SECONDS,
    LOST,
    METRICS,
    RUNNING,
    WAITING,
    Order,
    read_note,
)

SHOW_SECONDS = 0.5  # between looks at all runs
KILLED = "its process was killed twice (is there enough memory?)"


class Launching:
    """One sweep's engine and its view of the runs.

    Args:
        settings: the ``sweep`` section.
        engine: the ``engine`` section.
        hardware: the ``hardware`` section.
        own: folder of config files of the user's own.
    """

    def __init__(
        self,
        settings: SweepConfig,
        engine: EngineConfig,
        hardware: dict[str, Any],
        own: Path | None,
    ):
        self.engine, self.own = engine, own
        uses_gpu = engine.kind == "local" and hardware["accelerator"] != "cpu"
        self.devices = gpus() if uses_gpu else ()
        self.processes = side_by_side(settings, self.devices, int(hardware["threads"]))

    def carry_out(self, jobs: list[Job], display: Display) -> None:
        """Bring every job to an end: afterwards each is finished, diverged, failed or not applicable.

        A run that another process has is waited for. A run whose process is killed is tried once more, alone,
        when the others are done.

        Raises:
            UserError: the engine cannot start anything.
            KeyboardInterrupt: interrupted; the processes of this machine have ended.
        """
        with self._folder(jobs) as folder:
            pending, elsewhere = list(jobs), list[Job]()
            while pending:
                self._round(pending, folder, self.processes, display)
                elsewhere += [job for job in pending if job.state == ELSEWHERE]
                pending = _free_again(elsewhere)
            for job in [job for job in jobs if job.state == LOST]:
                self._round([job], folder, 1, display)
                if job.state not in (*DONE, FAILED, NOT_APPLICABLE):
                    job.state, job.reason = FAILED, KILLED
                    say_ended(job, {})

    @contextmanager
    def _folder(self, jobs: Sequence[Job]) -> Iterator[Path]:
        """For notes and logs, where every node sees them; kept where a run failed or still goes on."""
        shared = Path(jobs[0].config["results_dir"]).absolute() / ".launched"
        shared.mkdir(parents=True, exist_ok=True)
        folder = Path(mkdtemp(prefix=time.strftime("%Y%m%d-%H%M%S-"), dir=shared))
        yield folder
        if not any(job.state == FAILED for job in jobs):
            shutil.rmtree(folder, ignore_errors=True)

    def _round(self, jobs: Sequence[Job], folder: Path, processes: int, display: Display) -> None:
        notes = Path(mkdtemp(prefix="notes-", dir=folder))
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        orders = []
        for index, job in enumerate(jobs):
            job.state = WAITING
            command, note = alone(job.overrides, self.own), str(notes / f"{index}.json")
            orders.append(Order(job.config, command, note, os.getcwd(), path))
        engine = engine_for(self.engine, processes, self.devices, folder)
        watch = Watch(jobs, notes, display)
        try:
            engine.begin(orders)
            while engine.busy():
                watch.look()
                time.sleep(LOOK_SECONDS)
        finally:
            engine.end()
            watch.stop()
        for job in jobs:
            if job.state in (WAITING, RUNNING) and engine.local:
                job.state = LOST
            elif job.state in (WAITING, RUNNING):
                job.state, job.reason = FAILED, f"its job ended without a result; see {folder}"
                say_ended(job, {})


class Watch:
    """Follows runs by their notes and training curves, the same whatever carries them out."""

    def __init__(self, jobs: Sequence[Job], notes: Path, display: Display):
        self.jobs, self.notes, self.display = jobs, notes, display
        self.steps = [_step(job) for job in jobs]
        self._next = 0.0
        display.start(
            str(jobs[0].config["study"] or "sweep"), sum(job.steps for job in jobs), sum(self.steps)
        )

    def look(self) -> None:
        """Read what has changed and show it, twice a second at most."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + SHOW_SECONDS
        for path in self.notes.glob("*.json"):
            index = int(path.stem)
            job = self.jobs[index]
            if job.state not in (WAITING, RUNNING):
                continue
            note = read_note(path)
            job.state, job.reason = note["state"], note.get("reason", "")
            job.name = note.get("name", job.name)  # another one where code was edited in between
            self.steps[index] = _step(job) if job.state == RUNNING else job.steps
            if job.state not in (WAITING, RUNNING):
                say_ended(job, note)
        counts = Counter("done" if job.state in DONE else job.state for job in self.jobs)
        self.display.note(", ".join(f"{number} {state}" for state, number in sorted(counts.items())))
        self.display.step(sum(self.steps))

    def stop(self) -> None:
        """A last look."""
        self._next = 0.0
        self.look()
        self.display.stop()


def say_ended(job: Job, note: dict[str, Any]) -> None:
    """Say what became of a run."""
    for line in note.get("said", []):
        say(line)
    if job.state == ELSEWHERE:
        say(f"{job.name}: being run by another process; waiting for it")
        return
    inside, twice = (note["metrics"].get(key) for key in METRICS) if note.get("metrics") else (None, None)
    metrics = "" if inside is None else f", exact match in distribution {inside:.3f}"
    metrics += "" if twice is None else f", at 2x {twice:.3f}"
    reason = "" if job.state == "finished" else f" ({' '.join(job.reason.split())})"
    done = f"{note['done']}, " if note.get("done") and job.state != FAILED else ""
    say(f"{job.name}: {done}{job.state}{reason}{metrics}")


def _step(job: Job) -> int:
    """The last step in a run's training curve."""
    try:
        return int(job.run.metrics.read_text().splitlines()[-1].partition(",")[0])
    except (OSError, ValueError, IndexError):
        return 0


def _free_again(elsewhere: list[Job]) -> list[Job]:
    """Wait until another process lets go of one of these runs, and take what is free off the list."""
    while elsewhere:
        if free := [job for job in elsewhere if not _held(job)]:
            elsewhere[:] = [job for job in elsewhere if job not in free]
            return free
        time.sleep(SHOW_SECONDS)
    return []


def _held(job: Job) -> bool:
    try:
        with job.run.lock():
            return False
    except InUse:
        return True
    except OSError:  # the directory is gone: the other process could not carry it out
        return False
