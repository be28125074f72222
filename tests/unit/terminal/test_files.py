"""Files are written completely or not at all, and never through links."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pe_experiments.terminal.files import consistent_files, make_folder, replace_together, write_atomically


def test_the_draft_of_a_failed_write_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*paths: Any) -> None:
        raise OSError("no")

    (tmp_path / "a.csv").write_text("old")
    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="no"):
        write_atomically(tmp_path / "a.csv", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]
    assert (tmp_path / "a.csv").read_text() == "old"


NAMES = ("curves.csv", "figures/a.png", "runs.csv", "training.csv")


def test_several_writers_and_readers_of_a_folder_do_not_disturb_each_other(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "study")

    def write(writer: str) -> None:
        source = make_folder(tmp_path / writer)
        for text in map(str, range(60)):
            for name in map(Path, NAMES):
                make_folder((source / name).parent)
                (source / name).write_text(writer + text)
            replace_together(source, folder, map(Path, NAMES))
            for _ in range(10):
                write_atomically(folder / "manifest.json", writer + text)

    def read(reader: str) -> None:
        for _ in range(120):
            with consistent_files(folder):
                assert len({(folder / name).read_text() for name in NAMES if (folder / name).exists()}) <= 1

    with ThreadPoolExecutor(4) as threads:
        ended = [threads.submit(task, name) for task, name in ((write, "a"), (write, "b"), (read, "c"))]
        for future in ended:
            future.result()
