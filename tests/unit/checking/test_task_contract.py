"""Test what the checker says about tasks: shortcuts, few examples, rare answers."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import Tensor

from pe_experiments.checking.task_contract import CHECKS, differing_builds
from pe_experiments.tasks.base import OneAnswer
from pe_experiments.tasks.copying import Copy

Examples = tuple[Tensor, Tensor]


class SecondLargest(OneAnswer):
    """A correct task: of nine symbols the second largest is hardly ever 0 or 1."""

    vocab_size = 10
    order_sensitive = False
    shortest = 2

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> Examples:
        inputs = torch.randint(10, (batch_size, length), generator=generator)
        return inputs, inputs.sort(dim=1).values[:, -2:-1].clone()

    def solve_row(self, row: list[int]) -> list[int]:
        return [sorted(row)[-2]]


def test_rare_answers_do_not_fail_a_correct_task() -> None:
    assert [name for name, check in CHECKS.items() if check(SecondLargest()).holds is False] == []


@pytest.mark.parametrize("wrong_length", [33, 160])
def test_a_task_wrong_at_a_single_length_is_found(wrong_length: int) -> None:
    class WrongAtOneLength(Copy):
        def sample(self, length: int, batch_size: int, generator: torch.Generator) -> Examples:
            inputs, targets = super().sample(length, batch_size, generator)
            return inputs, targets.flip(1) if length == wrong_length else targets

    assert f"length {wrong_length}: " in CHECKS["rule"](WrongAtOneLength()).measured


class NumpyInputs(Copy):
    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> Examples:
        inputs = torch.from_numpy(np.random.randint(self.vocab_size, size=(batch_size, length)))
        return inputs, inputs.clone()


class OwnGenerator(Copy):
    """Draws from a new generator without a seed in every call."""

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> Examples:
        drawn = np.random.default_rng().integers(self.vocab_size, size=(batch_size, length))
        inputs = torch.from_numpy(drawn)
        return inputs, inputs.clone()


def test_other_sources_of_random_numbers_are_found() -> None:
    assert CHECKS["generator"](NumpyInputs()).measured == "it draws from or seeds numpy.random"
    assert CHECKS["generator"](OwnGenerator()).measured == "the same generator gave other examples"


class OwnPermutation(Copy):
    """Its symbols are permuted by an order that each instance draws."""

    def __init__(self) -> None:
        super().__init__()
        self.order = torch.tensor(random.Random().sample(range(self.vocab_size), self.vocab_size))

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> Examples:
        inputs, _ = super().sample(length, batch_size, generator)
        return self.order[inputs], self.order[inputs]


def test_a_task_that_differs_between_instances_is_found() -> None:
    assert "two instances draw other examples" in differing_builds(OwnPermutation)
    assert differing_builds(Copy) == ""
