"""Scratchpads and index hints of parity and addition."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from pe_experiments.checking.task_contract import CHECKS
from pe_experiments.tasks import Task
from pe_experiments.tasks.arithmetic import Addition, Order
from pe_experiments.tasks.counting import Parity
from tests.unit.tasks import draw


def lengths(task: Task) -> list[int]:
    return [length for length in range(1, 30) if task.nearest_length(length) == length]


ORDERS: tuple[Order, ...] = ("forward", "reversed")
PADDED = [
    Addition(operands, answer, "padded", scratchpad, hints)
    for operands, answer, scratchpad, hints in product(ORDERS, ORDERS, (False, True), (0, 12))
]
PARITIES = [Parity(scratchpad, hints) for scratchpad, hints in product((False, True), (0, 12))]


@pytest.mark.parametrize("task", [*PADDED, *PARITIES])
def test_examples_obey_the_rule_at_all_lengths(task: Task) -> None:
    assert [name for name in ("rule", "lengths", "layouts") if not CHECKS[name](task).holds] == []


def test_the_scratchpad_of_lee_et_al() -> None:
    """Their example: 128+367, then ``A->5 , C->1``, ``A->9 , C->0``, ``A->4 , C->0``, then 495."""
    task = Addition(width="padded", scratchpad=True)
    answer = task.solve(torch.tensor([[1, 2, 8, 10, 3, 6, 7]]))
    assert answer.tolist() == [[5, 1, 9, 0, 4, 0, 0, 4, 9, 5]]


@pytest.mark.parametrize("task", [task for task in PADDED if task.hints])
def test_hints_mark_place_values(task: Addition) -> None:
    """The numbers that digits and hints give add up, with the smallest hint at the units."""
    inputs, targets = draw(task, 21)
    for row, answer in zip(inputs.tolist(), targets.tolist(), strict=True):
        units = min(symbol for symbol in row if symbol > 10)
        plus = row.index(10)
        steps = 15 if task.scratchpad else 0  # five places with hint, digit and carry
        numbers = [row[:plus], row[plus + 1 :], answer[steps:]]
        values = [
            sum(digit * 10 ** (hint - units) for hint, digit in zip(part[::2], part[1::2], strict=True))
            for part in numbers
        ]
        assert values[0] + values[1] == values[2]


@pytest.mark.parametrize("task", [Addition(width="padded", hints=12), Parity(hints=12), Parity(True, 12)])
def test_short_examples_show_every_hint(task: Task) -> None:
    symbols = torch.cat(draw(task, lengths(task)[0], 2000), dim=1)
    first = task.vocab_size - 12
    assert symbols[symbols >= first].unique().tolist() == list(range(first, task.vocab_size))
