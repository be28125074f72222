"""Hands the runs that are left to an engine, shows how far they are, and brings each to an end."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from pe_experiments.console import Display, say
from pe_experiments.errors import InUse, one_line
from pe_experiments.sweeps.engines import Engine
from pe_experiments.sweeps.jobs import DONE, FAILED, NOT_APPLICABLE, Job
from pe_experiments.sweeps.worker import ELSEWHERE, LOOK_SECONDS, METRICS, RUNNING, WAITING, Order, read_note

SHOW_SECONDS = 0.5  # between looks at all runs
LOST = "lost"  # the state of a run whose process was killed


def carry_out(
    jobs: Sequence[Job],
    engine: Callable[[int, Path], Engine],
    processes: int,
    own: Path | None,
    display: Display,
) -> None:
    """Bring every job to an end: afterwards each is finished, diverged, failed or not applicable.

    A run that another process has is waited for. A run whose process is killed is tried once more, alone,
    when the others are done.

    Args:
        jobs: to carry out.
        engine: makes one for so many runs at once, given a folder that every node sees.
        processes: at once.
        own: folder of config files of the user's own.
        display: shows how far they are.

    Raises:
        UserError: the engine cannot start anything.
    """
    with _scratch(jobs) as folder:
        pending = list(jobs)
        while pending:
            _round(pending, engine(processes, folder), folder, own, display)
            elsewhere = [job for job in jobs if job.state == ELSEWHERE]
            pending = []
            while elsewhere and not pending:
                time.sleep(SHOW_SECONDS)
                pending = [job for job in elsewhere if not _held(job)]
        for job in [job for job in jobs if job.state == LOST]:
            _round([job], engine(1, folder), folder, own, display)
            if job.state not in (*DONE, FAILED, NOT_APPLICABLE):
                job.state, job.reason = FAILED, "its process was killed twice (is there enough memory?)"
                _say_ended(job, {})


@contextmanager
def _scratch(jobs: Sequence[Job]) -> Iterator[Path]:
    """A folder for notes and logs that every node sees; kept where a run failed or may still go on."""
    shared = Path(jobs[0].config["results_dir"]).absolute() / ".launched"
    shared.mkdir(parents=True, exist_ok=True)
    folder = Path(mkdtemp(prefix=time.strftime("%Y%m%d-%H%M%S-"), dir=shared))
    yield folder
    if not any(job.state == FAILED for job in jobs):
        shutil.rmtree(folder, ignore_errors=True)


def _round(jobs: Sequence[Job], engine: Engine, folder: Path, own: Path | None, display: Display) -> None:
    """Have the engine carry the jobs out, as far as it can."""
    notes = Path(mkdtemp(prefix="notes-", dir=folder))
    orders = []
    for index, job in enumerate(jobs):
        orders.append(Order(job.config, job.alone(own), str(notes / f"{index}.json")))
        job.state = WAITING
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
        if job.state in (WAITING, RUNNING):
            job.state, job.reason = LOST if engine.local else FAILED, f"its job ended early; see {folder}"
            if not engine.local:
                _say_ended(job, {})


class Watch:
    """Follows runs by their notes and training curves, the same whatever carries them out."""

    def __init__(self, jobs: Sequence[Job], notes: Path, display: Display):
        self.jobs, self.notes, self.display, self._next = jobs, notes, display, 0.0
        self.steps = [_step(job) for job in jobs]
        display.start(
            str(jobs[0].config["study"] or "sweep"), sum(job.steps for job in jobs), sum(self.steps)
        )

    def look(self) -> None:
        """Read what has changed and show it, twice a second at most."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + SHOW_SECONDS
        for path in self.notes.glob("*.json"):
            job = self.jobs[index := int(path.stem)]
            if job.state not in (WAITING, RUNNING):
                continue
            note = read_note(path)
            job.state, job.reason = note["state"], note.get("reason", "")
            job.name = note.get("name", job.name)  # another one where code was edited in between
            self.steps[index] = _step(job) if job.state == RUNNING else job.steps
            if job.state not in (WAITING, RUNNING):
                _say_ended(job, note)
        counts = Counter("done" if job.state in DONE else job.state for job in self.jobs)
        self.display.note(", ".join(f"{number} {state}" for state, number in sorted(counts.items())))
        self.display.step(sum(self.steps))

    def stop(self) -> None:
        """A last look."""
        self._next = 0.0
        self.look()
        self.display.stop()


def _say_ended(job: Job, note: dict[str, Any]) -> None:
    for line in note.get("said", []):
        say(line)
    if job.state == ELSEWHERE:
        say(f"{job.name}: being run by another process; waiting for it")
        return
    exact, twice, loss = (note.get("metrics", {}).get(key) for key in METRICS)
    metrics = "" if exact is None else f", exact match in distribution {exact:.3f}"
    if exact is None and loss is not None:
        metrics = f", loss in distribution {loss:.3f}"
    metrics += "" if twice is None else f", at 2x {twice:.3f}"
    reason = "" if job.state == "finished" else f" ({one_line(job.reason)})"
    done = f"{note['done']}, " if note.get("done") and job.state != FAILED else ""
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
