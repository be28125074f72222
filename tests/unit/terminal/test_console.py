"""Progress lines: one that is overwritten on a terminal, several in a log."""

from __future__ import annotations

import io
import sys

import pytest
from rich.table import Table

from pe_experiments.terminal import console


@pytest.mark.parametrize(
    ("terminal", "out"),
    [
        (False, "copy 1/2  loss 0.5000, 0 s left\ncopy 2/2  loss 0.5000, 0 s left\ndone\n"),
        (True, "\x1b[Kcopy 1/2  loss 0.5\r\x1b[Kcopy 2/2  loss 0.5\r\x1b[K\x1b[Kdone\n"),
    ],
)
def test_a_terminal_line_is_overwritten_and_removed(
    terminal: bool, out: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("LINE_SECONDS", "REDRAWN_SECONDS", "ENOUGH_SECONDS"):
        monkeypatch.setattr(console, name, 0.0)
    monkeypatch.setenv("COLUMNS", "19")  # as narrow as a terminal may be
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    display = console.Lines()
    display.start("copy", 2)
    display.row({"loss": 0.5})
    display.step(1)
    display.step(2)
    display.stop()
    display.stop()
    console.say("done")
    assert capsys.readouterr().out == out


class Broken(io.TextIOBase):
    """A stream of a closed terminal or of a full disk."""

    def __init__(self, error: Exception):
        self.error = error

    def isatty(self) -> bool:
        raise self.error

    def write(self, text: str) -> int:
        raise self.error


@pytest.mark.parametrize("error", [OSError(28, "ENOSPC"), ValueError(), None])
def test_printing_never_raises(error: Exception | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, Broken(error) if error else None)
    lines = console.Lines()
    lines.start("training", 10)
    lines.note("loss 1")
    lines.step(10)
    lines.say("a remark")
    lines.stop()
    console.print_table(Table("a", "b"))
    console.complain("trouble")


def test_control_characters_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    console.say("a\x1b[2J\u202eb\nünd\t編碼 \xa0")
    console.complain("\x1b[31mred")
    assert capsys.readouterr() == (
        "a\\x1b[2J\\u202eb\nünd\t編碼 \xa0\n",
        "error: \\x1b[31mred\n",
    )
