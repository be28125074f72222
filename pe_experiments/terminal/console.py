"""The terminal's output while a run goes on and when it is done."""

from __future__ import annotations

import io
import os
import sys
import time
from contextlib import suppress
from shutil import get_terminal_size
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table

from pe_experiments.terminal.errors import printable

Row = dict[str, Any]
LINE_SECONDS = 10.0  # between progress lines where there is no terminal to draw on
ENOUGH_SECONDS = 10.0  # of progress, before the time left is estimated
REDRAWN_SECONDS = 0.2  # between those on a terminal
CLEAR = "\x1b[K"  # the rest of a terminal's line


def say(text: str, end: str = "\n") -> None:
    """Print one plain line, at once; on a terminal over one that ended in ``\\r``. It never raises."""
    if sys.stdout is not None:  # None: closed before Python began
        _write((CLEAR if on_terminal() else "") + printable(text) + end, sys.stdout)


def complain(text: str) -> None:
    """Print one line to stderr. It never raises."""
    if sys.stderr is not None:
        _write(f"error: {text}\n", sys.stderr)


def _write(text: str, stream: TextIO) -> None:
    """Write and flush; what cannot be shown (closed pipe, dead terminal, full disk) ends no run."""
    try:
        stream.write(text)
        stream.flush()
    except UnicodeEncodeError:
        _write(text.encode("ascii", "backslashreplace").decode(), stream)
    except (OSError, ValueError):  # ValueError: closed
        with suppress(OSError, ValueError):  # or Python complains of the rest when it ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def on_terminal() -> bool:
    """Whether stdout is a terminal."""
    with suppress(OSError, ValueError):  # closed
        return sys.stdout is not None and sys.stdout.isatty()
    return False


class Display:
    """Shows how far something long has come; this one shows nothing (use from Python)."""

    _inside = ""

    def start(self, what: str, total: int, done: int = 0) -> None:
        """``what`` begins, at ``done`` of ``total`` steps."""

    def step(self, done: int) -> None:
        """That many steps are done."""

    def row(self, row: Row) -> None:
        """A row of the training curve: its loss and the last look at fresh examples are noted."""
        if "exact_match" in row:
            self._inside = f", exact match in distribution {row['exact_match']:.3f}"
        elif "validation_loss" in row:
            self._inside = f", {row['validation_loss']:.4f} on fresh examples"
        self.note(f"loss {row['loss']:.4f}{self._inside}")

    def note(self, text: str) -> None:
        """Further words for the line."""

    def say(self, text: str) -> None:
        """A remark on one run, which a sweep of many leaves out."""

    def stop(self) -> None:
        """It is over, finished or not; may be called twice."""


class Lines(Display):
    """A sober line now and then, for logs and pipes; on a terminal one line that is written over."""

    _total = 0

    def start(self, what: str, total: int, done: int = 0) -> None:
        self._what, self._total, self._note = what, total, ""
        self._began = self._first = self._shown = done
        self._started = self._last = time.monotonic()

    def step(self, done: int) -> None:
        now, terminal = time.monotonic(), on_terminal()
        if self._first == self._began:  # starting up, which says nothing about the time left
            self._started, self._first = now, done
        waited = now - self._last >= (REDRAWN_SECONDS if terminal else LINE_SECONDS)
        if waited or (self._note and done == self._total > self._shown):
            self._last, self._shown = now, done
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
            say("", "")  # takes the line away
        self._total = 0


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def print_table(table: Table) -> None:
    """Print a table as wide as it needs to be when there is no terminal to fit."""
    lines = io.StringIO()
    width = get_terminal_size().columns if on_terminal() else 120
    Console(file=lines, color_system=None, width=width).print(table)
    say(lines.getvalue(), end="")
