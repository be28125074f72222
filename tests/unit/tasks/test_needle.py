"""The needle task, and the depth at which the evidence for an answer stands."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pe_experiments.tasks import Task
from pe_experiments.tasks.needle import Needle
from pe_experiments.tasks.recall import AssociativeRecall, Induction
from pe_experiments.tasks.text import FEWEST_BYTES
from tests.unit.tasks import draw


@pytest.mark.parametrize(
    ("task", "row", "depth"),
    [
        (Needle(k=2, symbols=6), [6, 4, 0, 1, 2, 6], 0.0),
        (Needle(k=2, symbols=6), [3, 6, 4, 0, 1, 6], 0.5),
        (Needle(k=2, symbols=6), [3, 1, 6, 4, 0, 6], 1.0),
        (Needle(k=2, symbols=6), [6, 4, 0, 6], 0.0),  # the only place
        (Induction(fillers=6), [3, 6, 4, 1, 5, 6], 1 / 3),
        (Induction(fillers=6), [3, 1, 4, 6, 5, 6], 1.0),
        (AssociativeRecall(keys=3, values=3), [0, 4, 2, 3, 1, 4, 2], 0.5),
        (AssociativeRecall(keys=3, values=3), [0, 4, 2, 3, 1, 4, 1], 1.0),
    ],
)
def test_depth_is_where_the_answer_stands(task: Task, row: list[int], depth: float) -> None:
    measured = task.depth(torch.tensor([row]))
    assert measured is not None
    assert measured.tolist() == pytest.approx([depth])


def test_several_queries_have_no_depth() -> None:
    task = AssociativeRecall(queries=2)
    assert task.depth(draw(task, 20)[0]) is None


def test_a_needle_of_letters_in_a_text(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_bytes(bytes(1 + number // 6_000 for number in range(2 * FEWEST_BYTES)))
    task = Needle(k=3, filler="text", path=str(tmp_path))
    assert (task.vocab_size, task.chance(20)) == (257, 1 / 26)
    fillers = []
    for split in ("training", "evaluation"):
        inputs, targets = draw(task.for_split(split), 20)
        assert torch.equal(task.solve(inputs), targets)
        assert bytes(targets.unique().tolist()) == b"abcdefghijklmnopqrstuvwxyz"
        fillers.append(set(inputs[inputs < ord("a")].tolist()))
    assert not fillers[0] & fillers[1] - {16}  # the byte at the cut is in both
    assert [str(path) for path in task.data_files] == [str(tmp_path / "book.txt")]
    assert task.nearest_length(10**6) == task.longest == 5_000
