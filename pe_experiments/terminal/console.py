"""Write output and progress to the terminal."""

from __future__ import annotations

import io
import os
import select
import sys
import time
from contextlib import suppress
from shutil import get_terminal_size
from typing import Any, Self, TextIO

from rich.console import Console
from rich.table import Table

from pe_experiments.terminal.errors import printable

Row = dict[str, Any]
LINE_SECONDS = 10.0  # between progress lines without a terminal
ENOUGH_SECONDS = 10.0  # of progress, before the remaining time is estimated
REDRAWN_SECONDS = 0.2  # between updates on a terminal
CLEAR = "\x1b[K"  # clears the rest of the line


def say(text: str, end: str = "\n") -> None:
    """Print and flush one line; on a terminal, clear the progress line first. Never raise."""
    if sys.stdout is not None:  # None if closed before Python started
        _write((CLEAR if on_terminal() else "") + printable(text) + end, sys.stdout)


def complain(text: str) -> None:
    if sys.stderr is not None:
        _write(printable(f"error: {text}\n"), sys.stderr)


def _write(text: str, stream: TextIO) -> None:
    """Write and flush; ignore errors such as a closed pipe or a full disk, which must not end a run."""
    try:
        stream.write(text)
        stream.flush()
    except UnicodeEncodeError:
        _write(text.encode("ascii", "backslashreplace").decode(), stream)
    except (OSError, ValueError):  # ValueError: the stream is closed
        with suppress(OSError, ValueError):  # otherwise Python reports unwritten output at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def reader_left() -> bool:
    """Return whether stdout is a pipe that nobody reads any more, as after ``| head``."""
    poller = select.poll()
    poller.register(sys.stdout, 0)  # errors are reported even with an empty event mask
    return bool(poller.poll(0))


def on_terminal() -> bool:
    with suppress(OSError, ValueError):  # the stream is closed
        return sys.stdout is not None and sys.stdout.isatty()
    return False


class Observer:
    """Receive the progress of a training; by default ignore it."""

    def step(self, done: int) -> None:
        """Receive the number of finished steps."""

    def row(self, row: Row) -> None:
        """Receive a row of ``metrics.csv``."""

    def evaluated(self, rows: list[Row], seconds: float) -> None:
        """Receive the rows of ``by_step.csv`` of one step, whose evaluation took some seconds."""


class Display(Observer):
    """A progress display that shows nothing, for use from Python; the base class of other displays."""

    _last_validation = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, what: str, total: int, done: int = 0) -> None:
        """Start the progress of ``what`` at ``done`` of ``total`` steps."""

    def row(self, row: Row) -> None:
        """Show the loss in a row of the training curve and the result of the last validation."""
        if "exact_match" in row:
            self._last_validation = f", exact match in distribution {row['exact_match']:.3f}"
        elif "validation_loss" in row:
            self._last_validation = f", {row['validation_loss']:.4f} on fresh examples"
        self.note(f"loss {row['loss']:.4f}{self._last_validation}")

    def note(self, text: str) -> None:
        """Set the text that follows the number of steps."""

    def say(self, text: str) -> None:
        """Print a remark on a single run; nothing is printed in a sweep."""

    def stop(self) -> None:
        """End the progress, whether it is finished or not; can be called twice."""


class Lines(Display):
    """Print progress lines for logs and pipes; on a terminal update a single line."""

    _total = 0

    def start(self, what: str, total: int, done: int = 0) -> None:
        self._what = what
        self._total = total
        self._note = ""
        self._first_step = done  # steps before are of earlier processes
        self._started_at = time.monotonic()
        self._printed_steps = done
        self._printed_at = self._started_at

    def step(self, done: int) -> None:
        now = time.monotonic()
        terminal = on_terminal()
        is_due = now - self._printed_at >= (REDRAWN_SECONDS if terminal else LINE_SECONDS)
        has_finished = done == self._total > self._printed_steps
        if not (is_due or (self._note and has_finished)):
            return
        self._printed_at = now
        self._printed_steps = done
        seconds = now - self._started_at
        steps = done - self._first_step
        remarks = [self._note] if self._note else []
        if steps > 0 and seconds >= ENOUGH_SECONDS:
            remarks.append(f"{duration(seconds / steps * (self._total - done))} left")
        self._show(f"{self._what} {done}/{self._total}  {', '.join(remarks)}")

    def _show(self, line: str) -> None:
        if on_terminal():
            say(line[: get_terminal_size().columns - 1], "\r")
        else:
            say(line)

    def note(self, text: str) -> None:
        self._note = text

    def say(self, text: str) -> None:
        say(text)

    def stop(self) -> None:
        if self._total and on_terminal():
            say("", "")  # clears the line
        self._total = 0


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def print_table(table: Table) -> None:
    """Print a table in the width of the terminal, or in 120 columns if there is none."""
    lines = io.StringIO()
    width = get_terminal_size().columns if on_terminal() else 120
    Console(file=lines, color_system=None, width=width).print(table)
    say(lines.getvalue(), end="")
