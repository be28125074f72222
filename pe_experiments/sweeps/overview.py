"""How far a whole sweep is, shown while it goes on.

Read from the runs' directories and the workers' notes, so that it is the same for every engine.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pe_experiments.console import LINE_SECONDS
from pe_experiments.sweeps.planning import FAILED, Job
from pe_experiments.sweeps.worker import ELSEWHERE, METRICS, RUNNING, read_note

LOOK_SECONDS = 0.5
SHOWN = 12  # running runs on a terminal


@dataclass
class Watched:
    """One run that is being carried out: where its note is, and how far it is in steps."""

    job: Job
    note: Path
    first: int
    step: int = 0
    loss: str = ""
    inside: str = ""
    state: str = ""


class Overview:
    """Shows the sweep in the launching terminal: bars on a terminal, sober lines elsewhere.

    Args:
        title: of the sweep.
        found: runs that were finished already.
    """

    def __init__(self, title: str, found: int):
        self.title, self.found = title, found
        self.out = sys.stdout
        self.console = Console(file=self.out)
        self.watched: list[Watched] = []
        self.counts = {"finished": 0, "diverged": 0, FAILED: 0, "not applicable": 0}
        self.started = time.monotonic()
        self._last_line = self.started
        self._lock = threading.Lock()
        self._live: Live | None = None

    @contextmanager
    def watching(self, jobs: Sequence[Job], notes: Sequence[Path]) -> Iterator[None]:
        """Show these jobs until the block is left."""
        firsts = [progress(job)[0] for job in jobs]
        self.watched = [Watched(*row) for row in zip(jobs, notes, firsts, strict=True)]
        stop = threading.Event()
        thread = threading.Thread(target=self._watch, args=(stop,), daemon=True)
        if self.console.is_terminal:
            self._live = Live(
                console=self.console, refresh_per_second=4, redirect_stdout=False, transient=True
            )
            self._live.start()
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            self._look()
            if self._live:
                self._live.stop()
                self._live = None

    def ended(self, job: Job, note: dict[str, Any]) -> None:
        """Say what became of a run."""
        if job.state in self.counts:
            self.counts[job.state] += 1
        for line in note.get("said", []):
            self._print(line)
        if note.get("state") == ELSEWHERE:
            self._print(f"{job.name}: being run by another process; waiting for it")
            return
        inside, twice = (note["metrics"].get(key) for key in METRICS) if note.get("metrics") else (None, None)
        metrics = "" if inside is None else f", exact match in distribution {inside:.3f}"
        metrics += "" if twice is None else f", at 2x {twice:.3f}"
        reason = "" if job.state == "finished" else f" ({' '.join(job.reason.split())})"
        done = f"{note['done']}, " if note.get("done") and job.state != FAILED else ""
        self._print(f"{job.name}: {done}{job.state}{reason}{metrics}")

    def _watch(self, stop: threading.Event) -> None:
        while not stop.wait(LOOK_SECONDS):
            self._look()
            if self._live:
                self._live.update(self._picture())
            elif time.monotonic() - self._last_line >= LINE_SECONDS:
                self._last_line = time.monotonic()
                self._print(self._line())

    def _look(self) -> None:
        """Read the notes and the training curves of what is not over yet."""
        for watched in self.watched:
            if watched.state not in ("", RUNNING):
                continue
            note = read_note(watched.note)
            watched.state = note.get("state", "")
            if watched.state == RUNNING:
                watched.step, watched.loss, watched.inside = progress(watched.job)
            elif watched.state:
                watched.step = watched.job.steps if watched.state != ELSEWHERE else watched.step
                watched.job.state, watched.job.reason = watched.state, note.get("reason", "")
                self.ended(watched.job, note)

    def _line(self) -> str:
        running = sum(watched.state == RUNNING for watched in self.watched)
        waiting = sum(watched.state == "" for watched in self.watched)
        elsewhere = sum(watched.state == ELSEWHERE for watched in self.watched)
        done = self.found + self.counts["finished"] + self.counts["diverged"]
        parts = [f"{self.title}: {done} done", f"{running} running", f"{waiting} waiting"]
        parts += [f"{self.counts[FAILED]} failed"] if self.counts[FAILED] else []
        parts += [f"{elsewhere} elsewhere"] if elsewhere else []
        return ", ".join([*parts, f"{duration(left)} left" if (left := self._seconds_left()) else ""]).strip(
            ", "
        )

    def _seconds_left(self) -> float | None:
        made = sum(max(0, watched.step - watched.first) for watched in self.watched)
        left = sum(watched.job.steps - max(watched.first, watched.step) for watched in self.watched)
        elapsed = time.monotonic() - self.started
        return elapsed / made * left if made else None

    def _picture(self) -> Group:
        total = sum(watched.job.steps for watched in self.watched)
        made = sum(watched.step for watched in self.watched)
        rows = Table.grid(padding=(0, 2))
        running = [watched for watched in self.watched if watched.state == RUNNING]
        for watched in running[:SHOWN]:
            bar = ProgressBar(watched.job.steps, watched.step, width=20)
            inside = f"exact match in distribution {float(watched.inside):.3f}" if watched.inside else ""
            loss = f"loss {float(watched.loss):.4f}" if watched.loss else "starting"
            rows.add_row(Text(watched.job.name), bar, f"{watched.step}/{watched.job.steps}", loss, inside)
        if len(running) > SHOWN:
            rows.add_row(f"and {len(running) - SHOWN} more")
        head = Table.grid(padding=(0, 2))
        head.add_row(Text(self._line()), ProgressBar(total, made, width=40))
        return Group(rows, head)

    def _print(self, text: str) -> None:
        try:
            with self._lock:
                if self._live:
                    self._live.console.print(Text(text), soft_wrap=True)
                else:
                    print(text, file=self.out, flush=True)
        except (BrokenPipeError, ValueError):  # the reader has left: the sweep goes on
            pass


def progress(job: Job) -> tuple[int, str, str]:
    """Last step, loss and exact match in distribution in a run's ``metrics.csv``."""
    from csv import DictReader

    try:
        rows = list(DictReader(job.run.metrics.read_text().splitlines()))
        inside = next((row["exact_match"] for row in reversed(rows) if row.get("exact_match")), "")
        return int(rows[-1]["step"]), rows[-1]["loss"], inside
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return 0, "", ""


def duration(seconds: float) -> str:
    """``45 s``, ``12 min``, ``3.5 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
