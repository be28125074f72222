"""Files are written completely or not at all, and never through links."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from pe_experiments.terminal.files import write_atomically


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years")
    (tmp_path / "report.html").symlink_to(tmp_path / "thesis.tex")
    write_atomically(tmp_path / "report.html", "page")
    assert (tmp_path / "thesis.tex").read_text() == "years"
    assert not (tmp_path / "report.html").is_symlink()
    assert (tmp_path / "report.html").read_text() == "page"


def test_the_draft_of_a_failed_write_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*paths: Any) -> None:
        raise OSError("no")

    (tmp_path / "a.csv").write_text("old")
    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="no"):
        write_atomically(tmp_path / "a.csv", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]
    assert (tmp_path / "a.csv").read_text() == "old"
