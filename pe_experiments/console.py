"""What a person sees in the terminal while a run goes on and when it is done."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

if TYPE_CHECKING:
    from pe_experiments.experiment import RunResult

Row = dict[str, Any]
LINE_SECONDS = 10.0  # between progress lines where there is no terminal to draw on


def say(text: str) -> None:
    """One plain line; no markup, no wrapping, at once."""
    print(text, flush=True)


class Display(Protocol):
    """Shows how far a training is."""

    def start(self, steps: int, from_step: int) -> None: ...
    def step(self, step: int) -> None: ...
    def row(self, row: Row) -> None: ...
    def stop(self) -> None: ...


class Silent:
    """Shows nothing; for use from Python."""

    def start(self, steps: int, from_step: int) -> None: ...
    def step(self, step: int) -> None: ...
    def row(self, row: Row) -> None: ...
    def stop(self) -> None: ...


class Bar:
    """A progress bar with step, loss, exact match inside the training lengths, and the time left."""

    def __init__(self) -> None:
        self._progress = Progress(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}  exact match inside {task.fields[inside]}"),
            TimeRemainingColumn(),
            console=Console(),
        )

    def start(self, steps: int, from_step: int) -> None:
        self._task = self._progress.add_task(
            "training", total=steps, completed=from_step, loss="-", inside="-"
        )
        self._progress.start()

    def step(self, step: int) -> None:
        self._progress.update(self._task, completed=step)

    def row(self, row: Row) -> None:
        fields = {"loss": f"{row['loss']:.4f}"}
        if "exact_match" in row:
            fields["inside"] = f"{row['exact_match']:.3f}"
        self._progress.update(self._task, **fields)  # type: ignore[arg-type]

    def stop(self) -> None:
        self._progress.stop()


class Lines:
    """A sober line now and then: for logs, pipes and parallel sweeps.

    Args:
        prefix: put before every line, so that lines of parallel runs can be told apart.
    """

    def __init__(self, prefix: str = ""):
        self._prefix = f"[{prefix}] " if prefix else ""
        self._inside = ""

    def start(self, steps: int, from_step: int) -> None:
        self._steps, self._from_step = steps, from_step
        self._started = self._last = time.monotonic()

    def step(self, step: int) -> None: ...

    def row(self, row: Row) -> None:
        if "exact_match" in row:
            self._inside = f"  exact match inside {row['exact_match']:.3f}"
        now, step = time.monotonic(), row["step"]
        if now - self._last >= LINE_SECONDS or step == self._steps:
            self._last = now
            left = (now - self._started) / max(1, step - self._from_step) * (self._steps - step)
            loss = f"loss {row['loss']:.4f}"
            say(f"{self._prefix}step {step}/{self._steps}  {loss}{self._inside}  {left:.0f} s left")

    def stop(self) -> None: ...


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
            "of the inputs and the answer so far"
            if result.experiment.format.answer_is_read
            else "of the inputs"
        )
        note = (
            f"exact match counts EOS; token accuracy is under teacher forcing; bag ceiling: the best token "
            f"accuracy that a bag {bound} allows"
        )
        print_table(curve_table(result.curve, result.experiment.config.training.max_length, note))
        say(f"figure: {result.directory.figure}")
    if result.status == "error":
        say(f"traceback: {result.directory.error_log}")
    words = {"found": "found finished", "evaluated": "evaluated without training"}
    say(f"run:    {result.directory.path} ({words.get(result.done, result.done)})")
    if stored.get("upload") and result.status == "completed":
        say(f"upload: {stored['upload']}")


def print_table(table: Table) -> None:
    """Print a table as wide as it needs to be when there is no terminal to fit."""
    console = Console() if sys.stdout.isatty() else Console(width=120)
    console.print(table)
