"""What a person sees in the terminal while a run goes on and when it is done."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

if TYPE_CHECKING:
    from pe_experiments.evaluations import RunResult

Row = dict[str, Any]
LINE_SECONDS = 10.0  # between progress lines where there is no terminal to draw on


def say(text: str) -> None:
    """One plain line; no markup, no wrapping, at once."""
    with _reader_may_leave():
        print(text, flush=True)


@contextmanager
def _reader_may_leave() -> Iterator[None]:
    """A closed pipe (``| head``) ends the output, not the run."""
    try:
        yield
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Display:
    """Shows how far something long has come; this one shows nothing (use from Python)."""

    def start(self, what: str, total: int, done: int = 0) -> None:
        """``what`` begins, at ``done`` of ``total`` steps."""

    def step(self, done: int) -> None:
        """That many steps are done."""

    def row(self, row: Row) -> None:
        """A row of the training curve."""

    def stop(self) -> None:
        """It is over, finished or not; may be called twice."""


class Bar(Display):
    """A progress bar with step, loss, exact match in distribution, and the time left."""

    def __init__(self) -> None:
        self._progress: Progress | None = None

    def start(self, what: str, total: int, done: int = 0) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
        )
        self._task = self._progress.add_task(what, total=total, completed=done, figures="")
        self._inside = ""
        self._progress.start()

    def step(self, done: int) -> None:
        if self._progress:
            self._progress.update(self._task, completed=done)

    def row(self, row: Row) -> None:
        if "exact_match" in row:
            self._inside = f"  exact match in distribution {row['exact_match']:.3f}"
        if self._progress:
            self._progress.update(self._task, figures=f"loss {row['loss']:.4f}{self._inside}")

    def stop(self) -> None:
        if self._progress:
            self._progress.stop()
        self._progress = None


class Lines(Display):
    """A sober line now and then: for logs, pipes and parallel sweeps.

    Args:
        prefix: put before every line, so that lines of parallel runs can be told apart.
    """

    def __init__(self, prefix: str = ""):
        self._prefix = f"[{prefix}] " if prefix else ""

    def start(self, what: str, total: int, done: int = 0) -> None:
        self._what, self._total, self._first, self._figures, self._inside = what, total, done, "", ""
        self._started = self._last = time.monotonic()

    def step(self, done: int) -> None:
        now = time.monotonic()
        if now - self._last >= LINE_SECONDS or (done == self._total and self._figures):
            self._last = now
            left = (now - self._started) / max(1, done - self._first) * (self._total - done)
            say(f"{self._prefix}{self._what} {done}/{self._total}{self._figures}  {left:.0f} s left")

    def row(self, row: Row) -> None:
        if "exact_match" in row:
            self._inside = f"  exact match in distribution {row['exact_match']:.3f}"
        self._figures = f"  loss {row['loss']:.4f}{self._inside}"


def display_for(prefix: str = "") -> Display:
    """A bar on a terminal, lines elsewhere and wherever several runs share the output."""
    return Bar() if sys.stdout.isatty() and not prefix else Lines(prefix)


def curve_table(rows: Sequence[Row], max_length: int, ceiling_note: str) -> Table:
    """The extrapolation curve as a table, with a line under the longest training length."""
    table = Table(title=None, caption=ceiling_note, caption_justify="left", show_edge=False, pad_edge=False)
    headings = ("length", "exact match", "95 % interval", "token accuracy", "bag ceiling", "chance", "")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "" else "right")
    inside = [row for row in rows if row["content_length"] <= max_length]
    for index, row in enumerate(rows):
        length = str(row["length"])
        if row["content_length"] != row["length"]:
            length = f"{row['length']} ({row['content_length']})"
        ceiling = row["bag_ceiling"]
        note = f"{row['content_length'] / max_length:g}x"
        if row["content_length"] == max_length:
            note = "<- longest training length"
        if row["untrained_positions"]:
            note += f", {row['untrained_positions']} untrained positions"
        table.add_row(
            length,
            f"{row['exact_match']:.3f}",
            f"{row['exact_match_low']:.3f}-{row['exact_match_high']:.3f}",
            f"{row['token_accuracy']:.3f}",
            "unknown" if ceiling is None else f"{float(ceiling):.3f}",
            f"{row['chance']:.3f}",
            note,
            end_section=index == len(inside) - 1,
        )
    return table


def show_result(result: RunResult) -> None:
    """What a run or an evaluation ended with: the table over lengths, the paths, how to upload it."""
    stored = result.result
    if result.status != "completed":
        say(f"{stored['name']}: {result.status} ({stored.get('reason', 'no reason recorded')})")
    else:
        bound = (
            "of the inputs and what came before"
            if result.experiment.format.prefix_is_known
            else "of the inputs"
        )
        decoding = result.experiment.decoding.replace("_", " ").replace("greedy", "greedy decoding")
        note = (
            f"exact match counts EOS; token accuracy is under {decoding}; bag ceiling: the best token "
            f"accuracy that a bag {bound} allows"
        )
        print_table(curve_table(result.curve, result.experiment.max_length, note))
        say(f"figure: {result.directory.figure}")
    if result.status == "error":
        say(f"traceback: {result.directory.error_log}")
    words = {"found": "found finished", "evaluated": "evaluated without training"}
    say(f"run:    {result.directory.path} ({words.get(result.done, result.done)})")
    if stored.get("upload") and result.status == "completed":
        say(f"upload: {stored['upload']}")
    if result.experiment.config.evaluation.decoding != result.experiment.decoding:
        say("note:   decoding=greedy is one forward pass here, as always: this format feeds no answer back")
    asked = result.experiment.config.training.max_length
    if result.experiment.max_length < asked:
        task = type(result.experiment.task).__name__
        say(
            f"note:   trained up to {result.experiment.max_length}: {task} makes nothing longer up to {asked}"
        )


def print_table(table: Table) -> None:
    """Print a table as wide as it needs to be when there is no terminal to fit."""
    console = Console() if sys.stdout.isatty() else Console(width=120)
    with _reader_may_leave():
        console.print(table)
        sys.stdout.flush()


WORTH_NAMING = {"table.csv": "table", "report.html": "page", "report.md": "report"}


def say_files(files: Iterable[Path]) -> None:
    """Where the table and the page are, and the figures: each where they are few, else their folder."""
    files = list(files)
    for path in files:
        if path.name in WORTH_NAMING:
            say(f"{WORTH_NAMING[path.name]}: {path}")
    drawn = [path for path in files if path.suffix == ".png"]
    if len(drawn) > 2:
        say(f"figures: {drawn[0].parent} ({len(drawn)})")
    for path in drawn if len(drawn) <= 2 else []:
        say(f"figure: {path}")
