"""``positions=task``: which tokens share an id, which ids training shows, and what is refused."""

from __future__ import annotations

import pytest
import torch

from pe_experiments.data.batches import TrainingStream
from pe_experiments.data.formats import CausalFormat, SlotsFormat
from pe_experiments.tasks import IGNORE, PositionIds, Task
from pe_experiments.tasks.arithmetic import Addition
from pe_experiments.tasks.binary import BinaryAddition, BinaryMultiplication
from pe_experiments.tasks.copying import Copy, Duplicate, OddsFirst, Reverse, Rotate, Swap
from tests.conftest import Tiny
from tests.unit.tasks import draw


@pytest.mark.parametrize("task", [Copy(), Reverse(), Duplicate(), OddsFirst(), Swap(), Rotate(k=2)])
@pytest.mark.parametrize("length", [1, 6, 9])
def test_a_copied_symbol_has_the_id_of_its_source(task: Task, length: int) -> None:
    inputs, targets = draw(task, length)
    ids = task.position_ids(inputs, targets)["coupling"]
    by_id = {int(number): index for index, number in enumerate(ids.inputs_BN[0])}
    assert len(by_id) == length
    for index, number in enumerate(ids.targets_BM[0].tolist()):
        assert torch.equal(inputs[:, by_id[number]], targets[:, index])


@pytest.mark.parametrize(
    ("task", "base"),
    [
        (Addition(answer="reversed"), 10),
        (Addition("reversed", "reversed"), 10),
        (Addition(width="padded"), 10),
        (Addition(answer="reversed", width="padded"), 10),
        (BinaryAddition(), 2),
    ],
)
@pytest.mark.parametrize("length", [3, 9, 15])
def test_coupled_digits_have_the_same_place_value(task: Task, base: int, length: int) -> None:
    """Numbers computed from digits and ids add up."""
    inputs, targets = draw(task, length)
    ids = task.position_ids(inputs, targets)["coupling"]
    powers = ids.targets_BM.expand_as(targets)
    left = (inputs * base ** (ids.inputs_BN - 2).clamp(min=0)).where(ids.inputs_BN > 1, 0).sum(1)
    right = (targets * base ** (powers - 2)).where(targets != IGNORE, 0).sum(1)
    assert torch.equal(left, right)


@pytest.mark.parametrize("task", [Addition(), Addition("reversed", "reversed"), BinaryMultiplication()])
def test_abacus_counts_digits_from_one_in_every_number(task: Task) -> None:
    inputs, targets = draw(task, 9)
    ids = task.position_ids(inputs, targets)["abacus"]
    mark = task.vocab_size - 1
    for row, numbers in zip(inputs.tolist(), ids.inputs_BN.tolist(), strict=True):
        split = row.index(mark)
        assert numbers == [*range(1, split + 1), 0, *range(1, len(row) - split)]
    assert ids.targets_BM[0].tolist() == list(range(1, targets.shape[1] + 1))


def test_ids_are_laid_out_like_the_symbols() -> None:
    ids = PositionIds(torch.tensor([[2, 3, 4]]), torch.tensor([[4, 3, 2]]), separator=1)
    assert CausalFormat(10, True).lay_out_ids(ids, 2).tolist() == [[0, 2, 3, 4, 1, 4, 3, 2]] * 2
    assert SlotsFormat(10, False).lay_out_ids(ids, 1).tolist() == [[2, 3, 4, 4, 3, 2]]


@pytest.mark.parametrize("model", ["decoder", "encoder"])
def test_training_stays_inside_the_table_and_evaluation_starts_at_one(model: str, tiny: Tiny) -> None:
    experiment = tiny(
        "task=addition_reversed", "positions=task", "positions.max_positions=9", f"model={model}"
    )
    assert experiment.shape.train_positions == 9
    stream = TrainingStream(experiment.source, 64, "mixed")
    trained_ids = torch.cat([stream.batch(i).positions_BP.flatten() for i in range(40)])
    assert trained_ids.unique().tolist() == list(range(9))
    block = experiment.source.evaluation_block(9, 0)
    assert block.positions_BP.shape == (100, block.declared_B.max())
    assert block.positions_BP[block.positions_BP > 0].min() == 1
