"""Write output and progress to the terminal."""

from __future__ import annotations

import io
import os
import select
import sys
import time
from contextlib import suppress
from shutil import get_terminal_size
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table

from pe_experiments.terminal.errors import printable

Row = dict[str, Any]
LINE_SECONDS = 10.0  # between progress lines without a terminal
ENOUGH_SECONDS = 10.0  # of progress before the remaining time is estimated
REDRAWN_SECONDS = 0.2  # between updates on a terminal
CLEAR = "\x1b[K"  # clears the rest of the line


def say(text: str, end: str = "\n") -> None:
    """Print and flush one line, on a terminal over a line that ended in ``\\r``. Never raise."""
    if sys.stdout is not None:  # None if closed before Python started
        _write((CLEAR if on_terminal() else "") + printable(text) + end, sys.stdout)


def complain(text: str) -> None:
    """Print one line to stderr. Never raise."""
    if sys.stderr is not None:
        _write(f"error: {text}\n", sys.stderr)


def _write(text: str, stream: TextIO) -> None:
    """Write and flush; ignore errors (closed pipe, dead terminal, full disk), which must not end a run."""
    try:
        stream.write(text)
        stream.flush()
    except UnicodeEncodeError:
        _write(text.encode("ascii", "backslashreplace").decode(), stream)
    except (OSError, ValueError):  # ValueError: closed
        with suppress(OSError, ValueError):  # else Python reports unwritten output at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def reader_left() -> bool:
    """Return whether stdout is a pipe that nobody reads any more, as after ``| head``."""
    watched = select.poll()
    watched.register(sys.stdout, 0)  # errors are always reported
    return bool(watched.poll(0))


def on_terminal() -> bool:
    """Return whether stdout is a terminal."""
    with suppress(OSError, ValueError):  # closed
        return sys.stdout is not None and sys.stdout.isatty()
    return False


class Display:
    """Base class of progress displays, which shows nothing (for use from Python)."""

    _inside = ""

    def start(self, what: str, total: int, done: int = 0) -> None:
        """Start the progress of ``what`` at ``done`` of ``total`` steps."""

    def step(self, done: int) -> None:
        """Show the number of finished steps."""

    def row(self, row: Row) -> None:
        """Show the loss and the last validation of a row of the training curve."""
        if "exact_match" in row:
            self._inside = f", exact match in distribution {row['exact_match']:.3f}"
        elif "validation_loss" in row:
            self._inside = f", {row['validation_loss']:.4f} on fresh examples"
        self.note(f"loss {row['loss']:.4f}{self._inside}")

    def note(self, text: str) -> None:
        """Add text to the line."""

    def say(self, text: str) -> None:
        """Print a remark on one run, which sweeps omit."""

    def stop(self) -> None:
        """End the progress, finished or not; may be called twice."""


class Lines(Display):
    """Print progress lines for logs and pipes; on a terminal update a single line."""

    _total = 0

    def start(self, what: str, total: int, done: int = 0) -> None:
        self._what = what
        self._total = total
        self._note = ""
        self._began = self._first = self._shown = done
        self._started = self._last = time.monotonic()

    def step(self, done: int) -> None:
        now = time.monotonic()
        terminal = on_terminal()
        if self._first == self._began:  # still starting, so the remaining time is unknown
            self._started = now
            self._first = done
        waited = now - self._last >= (REDRAWN_SECONDS if terminal else LINE_SECONDS)
        if waited or (self._note and done == self._total > self._shown):
            self._last = now
            self._shown = done
            took, moved = now - self._started, done - self._first
            known = moved > 0 and took >= ENOUGH_SECONDS
            left = f"{duration(took / moved * (self._total - done))} left" if known else ""
            line = f"{self._what} {done}/{self._total}  {', '.join(filter(None, (self._note, left)))}"
            say(line[: get_terminal_size().columns - 1] if terminal else line, "\r" if terminal else "\n")

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
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def print_table(table: Table) -> None:
    """Print a table in full width if there is no terminal."""
    lines = io.StringIO()
    width = get_terminal_size().columns if on_terminal() else 120
    Console(file=lines, color_system=None, width=width).print(table)
    say(lines.getvalue(), end="")
