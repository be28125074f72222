"""Texts that the library ``datasets`` has saved."""

from __future__ import annotations

from pathlib import Path

import pytest

from pe_experiments.store.identity import identify
from pe_experiments.tasks.text import Text
from pe_experiments.terminal.errors import UserError
from tests.conftest import Tiny

# The library pickles parts of itself with `dill`, which warns.
pytestmark = pytest.mark.filterwarnings("ignore:Cannot ")
ROWS = [f"row {number} of a text" for number in range(8000)]


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
