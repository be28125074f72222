"""Progress lines: one that is overwritten on a terminal, several in a log."""

from __future__ import annotations

import io
import sys

import pytest
from rich.table import Table

from pe_experiments.terminal import console


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
