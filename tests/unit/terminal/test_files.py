"""Files are written whole, together, and never through a link to a file."""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from pe_experiments.terminal.errors import UserError
from pe_experiments.terminal.files import finish_replacing, make_folder, replace_together, write_atomically
from tests.processes import killed_at


def test_a_link_is_replaced_not_followed(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years")
    (tmp_path / "report.html").symlink_to(tmp_path / "thesis.tex")
    (tmp_path / f".report.html.{os.getpid()}.tmp").symlink_to(tmp_path / "thesis.tex")
    write_atomically(tmp_path / "report.html", "page")
    assert (tmp_path / "thesis.tex").read_text() == "years"
    assert not (tmp_path / "report.html").is_symlink()
    assert (tmp_path / "report.html").read_text() == "page"


def test_no_draft_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    left, fresh = tmp_path / ".a.csv.1.tmp", tmp_path / ".a.csv.2.tmp"  # of a killed process; of one at work
    left.touch()
    fresh.touch()
    os.utime(left, (1, 1))
    write_atomically(tmp_path / "a.csv", "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".a.csv.2.tmp", "a.csv"]


def test_a_folder_is_made_unless_a_file_is_there(tmp_path: Path) -> None:
    assert make_folder(tmp_path / "a" / "b").is_dir()
    (tmp_path / "study").write_text("text")
    for name in ("study", "study/figures"):
        with pytest.raises(UserError, match="is a file; delete it or choose another name"):
            make_folder(tmp_path / name)


NAMES = ("runs.csv", "curves.csv", "figures/a.png", "training.csv")


def test_killed_anywhere_a_set_is_the_old_one_or_the_new_one(tmp_path: Path) -> None:
    outcomes = set()
    for operation in count():
        made, folder = (tmp_path / str(operation) / name for name in ("made", "folder"))
        for base, text in ((made, "new"), (folder, "old")):
            for name in NAMES:
                (base / name).parent.mkdir(parents=True, exist_ok=True)
                (base / name).write_text(text)
        killed = killed_at(operation, lambda: replace_together(made, folder, map(Path, NAMES)))  # noqa: B023
        finish_replacing(folder)  # as whoever reads a set does
        texts = {(folder / name).read_text() for name in NAMES}
        assert len(texts) == 1
        outcomes |= texts
        if not killed:
            break
    assert outcomes == {"old", "new"}
    assert texts == {"new"}
    assert sorted(path.name for path in folder.iterdir()) == [
        "curves.csv",
        "figures",
        "runs.csv",
        "training.csv",
    ]
    assert operation > 8
