"""The contract of every task under configs/task; a new YAML is tested automatically."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pe_experiments.checking import task_contract
from pe_experiments.checking.task_contract import CHECKS, differing_builds
from pe_experiments.configuration.choices import shipped
from pe_experiments.configuration.component import load_component
from pe_experiments.tasks import Task
from pe_experiments.tasks.base import OneAnswer
from pe_experiments.tasks.copying import Copy
from pe_experiments.tasks.local import Lag
from tests.conftest import Script
from tests.integration.user_encodings import TellingIds

TASKS = sorted(shipped("task"))
# Few symbols, so that bags repeat and the best answer to a bag can be counted.
FEW = {
    "vocab_size": 3,
    "symbols": 2,
    "fillers": 2,
    "keys": 4,
    "values": 2,
    "variables": 4,
    "modulus": 3,
    "nodes": 5,
}
CEILING = "ceiling"
SLOW = ("examples", "splits")  # a second each


def build(name: str, **changes: int) -> Task:
    shipped_section = shipped("task")[name]
    section = shipped_section | {key: value for key, value in changes.items() if key in shipped_section}
    return load_component("task", section).build()


def broken(task: Task, checks: Iterable[str]) -> dict[str, str]:
    """The checks that a task fails, with what was measured."""
    results = {check: CHECKS[check](task) for check in checks}
    return {check: result.measured for check, result in results.items() if result.holds is False}


@pytest.mark.parametrize("name", TASKS)
def test_a_task_keeps_its_contract(name: str) -> None:
    assert broken(build(name), CHECKS.keys() - {CEILING, *SLOW}) == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_a_task_draws_many_examples(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for count, fewer in (("BAGS", 4_000), ("SPLITS", 1_000), ("SEEDS", 200)):
        monkeypatch.setattr(task_contract, count, fewer)
    assert broken(build(name), SLOW) == {}


@pytest.mark.parametrize("name", TASKS)
def test_a_predictor_that_ignores_order_reaches_the_ceiling(name: str) -> None:
    fewer_symbols = {} if name == "text" else FEW  # bytes are 256
    task = build(name, **fewer_symbols)
    result = CHECKS[CEILING](task)
    lengths = [length for length in range(4, 8) if task.nearest_length(length) == length]
    if any(task.bag_ceiling(length) is not None for length in lengths):
        assert result.holds is True, result.measured
    else:
        assert result.holds is not False, result.measured


def test_a_lag_that_looks_ahead_keeps_the_contract() -> None:
    assert broken(Lag(k=-2, vocab_size=3), CHECKS) == {}


class Mistaken(Copy):
    """Copying, with one mistake planted by the test."""

    def __init__(self) -> None:
        super().__init__(vocab_size=3)


def shifted(self: Task, inputs: Tensor) -> Tensor:
    return inputs.roll(1, dims=1)


def unseeded(self: Task, length: int, batch_size: int, generator: torch.Generator) -> Any:
    inputs = torch.randint(3, (batch_size, length))
    return inputs, inputs.clone()


def from_a_list(examples: int) -> Any:
    """Copying, of inputs from a fixed list."""

    def sample(self: Task, length: int, batch_size: int, generator: torch.Generator) -> Any:
        inputs = torch.randint(3, (examples, length), generator=torch.Generator().manual_seed(0))
        chosen = inputs[torch.randint(examples, (batch_size,), generator=generator)]
        return chosen, chosen.clone()

    return sample


def with_its_label(self: Task, length: int, batch_size: int, generator: torch.Generator) -> Any:
    inputs = torch.randint(2, (batch_size, length), generator=generator)
    inputs[:, -1] = inputs[:, :-1].sum(1) % 2
    return inputs, inputs[:, -1:].clone()


def parity_before_the_last(self: Task, inputs: Tensor) -> Tensor:
    return inputs[:, :-1].sum(1, keepdim=True) % 2


MISTAKES: dict[str, dict[str, Any]] = {
    "rule": {"solve": shifted},
    "lengths": {"nearest_length": lambda self, length: length + 1},
    "generator": {"sample": unseeded},
    "order": {"order_sensitive": False},
    "chance": {"chance": lambda self, length: 1 / 4},
    "ceiling_possible": {"bag_ceiling": lambda self, length, prefix=False: 0.1},
    "ceiling": {"bag_ceiling": lambda self, length, prefix=False: 1.0},
    "blind_guess": {"input_blind": lambda self, length: 0.9},
    "layouts": {"target_length": lambda self, length: length + 1},
    "position_ids": {"position_ids": TellingIds.position_ids},
    "depth": {"depth": lambda self, inputs: inputs.sum(dim=1)},
    "examples": {"sample": from_a_list(8)},
    "splits": {"sample": from_a_list(3_000)},
    "leaks": {
        "sample": with_its_label,
        "solve": parity_before_the_last,
        "target_length": lambda self, length: 1,
    },
}


@pytest.mark.parametrize("check", CHECKS)
def test_each_check_finds_its_mistake(check: str) -> None:
    assert CHECKS[check](type("Planted", (Mistaken,), MISTAKES[check])()).holds is False


def wrong_at(wrong_length: int) -> Any:
    """Copying, except at a single length."""

    def sample(self: Task, length: int, batch_size: int, generator: torch.Generator) -> Any:
        inputs = torch.randint(3, (batch_size, length), generator=generator)
        return inputs, inputs.flip(1) if length == wrong_length else inputs.clone()

    return sample


def of_numpy(self: Task, length: int, batch_size: int, generator: torch.Generator) -> Any:
    inputs = torch.from_numpy(np.random.randint(3, size=(batch_size, length)))
    return inputs, inputs.clone()


def of_a_new_generator(self: Task, length: int, batch_size: int, generator: torch.Generator) -> Any:
    inputs = torch.from_numpy(np.random.default_rng().integers(3, size=(batch_size, length)))
    return inputs, inputs.clone()


@pytest.mark.parametrize(
    ("check", "sample", "measured"),
    [
        ("rule", wrong_at(33), "length 33: "),
        ("rule", wrong_at(160), "length 160: "),
        ("generator", of_numpy, "it draws from or seeds numpy.random"),
        ("generator", of_a_new_generator, "the same generator gave other examples"),
    ],
)
def test_mistakes_that_hide_are_found(check: str, sample: Any, measured: str) -> None:
    assert measured in CHECKS[check](type("Planted", (Mistaken,), {"sample": sample})()).measured


class OwnPermutation(Mistaken):
    """Its symbols are permuted by an order that each instance draws."""

    def __init__(self) -> None:
        super().__init__()
        self.order = torch.tensor(random.Random().sample(range(1000), 1000))

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        inputs, _ = super().sample(length, batch_size, generator)
        return self.order[inputs], self.order[inputs]


def test_a_task_that_differs_between_instances_is_found() -> None:
    assert "two instances draw other examples" in differing_builds(OwnPermutation)
    assert differing_builds(Copy) == ""


class SecondLargest(OneAnswer):
    """A correct task: of nine symbols the second largest is hardly ever 0 or 1."""

    vocab_size = 10
    order_sensitive = False
    shortest = 2

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        inputs = torch.randint(10, (batch_size, length), generator=generator)
        return inputs, inputs.sort(dim=1).values[:, -2:-1].clone()

    def solve_row(self, row: list[int]) -> list[int]:
        return [sorted(row)[-2]]


def test_rare_answers_do_not_fail_a_correct_task() -> None:
    assert broken(SecondLargest(), CHECKS) == {}


@pytest.mark.slow
def test_check_task_prints_what_fails(script: Script) -> None:
    right = script("check_task", "task=parity").succeeded()
    assert "FAILS" not in right
    wrong = script("check_task", "task._target_=tests.integration.user_encodings.TellingIds")
    assert wrong.code == 1
    assert "FAILS: ids precede the answer\n  measured: " in wrong.out
    assert "usually: position_ids reads the targets' values" in wrong.out
    assert "task.k=x: expected a whole number" in script("check_task", "task=lag", "task.k=x").err
