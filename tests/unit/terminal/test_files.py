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


def test_drafts_of_failed_and_killed_writes_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*paths: Any) -> None:
        raise OSError("no")

    (tmp_path / "a.csv").write_text("old")
    replace = os.replace
    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="no"):
        write_atomically(tmp_path / "a.csv", "new")
    monkeypatch.setattr(os, "replace", replace)
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]
    assert (tmp_path / "a.csv").read_text() == "old"
    old_draft, new_draft = tmp_path / ".a.csv.1.tmp", tmp_path / ".a.csv.2.tmp"
    old_draft.touch()
    new_draft.touch()  # its process may be at work
    os.utime(old_draft, (1, 1))
    write_atomically(tmp_path / "a.csv", "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".a.csv.2.tmp", "a.csv"]
