"""The text task: which bytes belong to which split, datasets that a library saved, and refused input."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from pe_experiments.store.identity import identify
from pe_experiments.tasks.base import Split
from pe_experiments.tasks.text import FEWEST_BYTES, MOST_IN_MEMORY, Text
from pe_experiments.terminal.errors import UserError
from tests.conftest import Tiny


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder of forty files. Each repeats one byte, so a byte tells its file."""
    folder = tmp_path / "texts"
    for number in range(40):
        path = folder / f"part{number % 3}" / f"{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([number + 1]) * (1500 + 10 * number))
    return folder


def letters(task: Text, split: Split) -> set[int]:
    inputs, targets = task.for_split(split).sample(50, 2000, torch.Generator().manual_seed(1))
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    return set(inputs.unique().tolist())


def test_each_file_is_in_one_split_which_moving_the_folder_does_not_change(
    folder: Path, tmp_path: Path
) -> None:
    task = Text(str(folder))
    parts = [letters(task, split) for split in ("training", "validation", "evaluation")]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 40
    assert min(map(len, parts)) >= 2
    listed = {row["path"]: row["split"] for row in task.listing()}
    number = min(parts[2])
    assert listed[f"part{(number - 1) % 3}/{number - 1}.txt"] == "evaluation"
    moved = Text(str(folder.rename(tmp_path / "elsewhere") / "**" / "*.txt"))
    assert moved.listing() == task.listing()
    assert letters(moved, "evaluation") == parts[2]


def test_a_single_file_is_cut_into_splits_that_share_no_window(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    text = bytes(1 + number // 10_000 for number in range(1_200_000))  # large enough to be memory-mapped
    path.write_bytes(text)
    task = Text(str(path))
    assert [task.bounds[s][1] for s in task.bounds] == [1_080_000, 1_140_000, 1_200_000]
    assert task.read(19_990, 20).tolist() == [2] * 10 + [3] * 10
    assert [(min(x), max(x)) for x in (letters(task, s) for s in task.bounds)] == [
        (1, 108),
        (109, 114),
        (115, 120),
    ]
    assert task.nearest_length(10**6) == task.longest == 60_000


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"there is no such file, or no file in such a folder$"),
        (b"", r"there is no byte in it$"),
        (b"short", rf"5 bytes are too short a text; at least {FEWEST_BYTES} are needed$"),
        (b"\x89PNG\0" * FEWEST_BYTES, r"text.txt holds zero bytes, so it is no text in UTF-8; a glob as"),
    ],
)
def test_bad_files_are_refused(tiny: Tiny, tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "text.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=r"^task: path=.*: .*" + message):
        tiny("task=text", f"task.path={path}")


@pytest.mark.parametrize("size", [60_000, 3_000_000])
@pytest.mark.parametrize("change", ["truncated", "rewritten", "deleted"])
def test_a_text_that_changes_during_a_run_is_refused(tmp_path: Path, size: int, change: str) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(b"abc " * (size // 4))
    task = Text(str(path))
    if size > MOST_IN_MEMORY:  # a smaller text is in memory after the first window
        task.read(0, 100)
    if change == "truncated":
        os.truncate(path, 10)
    elif change == "rewritten":
        path.write_bytes(b"xyz " * (size // 4))
        os.utime(path, (1, 1))
    else:
        path.unlink()
    with pytest.raises(UserError, match=r"text\.txt was changed during the run"):
        task.read(size - 200, 100)


ROWS = [f"row {number} of a text" for number in range(8000)]


@pytest.mark.filterwarnings("ignore:Cannot ")  # the library pickles parts of itself with dill
def test_the_rows_of_a_dataset_are_a_text(tiny: Tiny, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    dataset = datasets.Dataset.from_dict({"text": [*ROWS, ""], "number": list(range(8001))})
    folder = tmp_path / "saved"
    dataset.save_to_disk(folder)
    task = Text(str(folder))
    content = "\n".join(ROWS).encode()
    assert task.read(0, task.ends[-1]).tobytes() == content
    assert task.bounds["training"] == (0, round(0.9 * len(content)))
    dataset.save_to_disk(tmp_path / "again")
    first, second = (identify(tiny("task=text", f"task.path={tmp_path / n}")) for n in ("saved", "again"))
    assert first.hash == second.hash
    for column in ("number", "story"):
        with pytest.raises(UserError, match=rf"column={column}: .*; allowed: text$"):
            tiny("task=text", f"task.path={folder}", f"task.column={column}")


@pytest.mark.filterwarnings("ignore:Cannot ")  # the library pickles parts of itself with dill
def test_the_splits_of_a_dataset_are_kept(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    parts = {"test": ROWS[:500], "train": ROWS[500:7000], "validation": ROWS[7000:]}
    saved = datasets.DatasetDict({name: datasets.Dataset.from_dict({"story": parts[name]}) for name in parts})
    saved.save_to_disk(tmp_path / "saved")
    task = Text(str(tmp_path / "saved"), column="story")
    for split, name in (("training", "train"), ("validation", "validation"), ("evaluation", "test")):
        start, stop = task.bounds[split]
        assert task.read(start, stop - start).tobytes() == "\n".join(parts[name]).encode()
    assert [row["split"] for row in task.listing()] == ["training", "validation", "evaluation"]
