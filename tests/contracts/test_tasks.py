"""What every task under configs/task must do; a new YAML is tested by being there."""

from __future__ import annotations

import pytest
import torch
from hydra.utils import instantiate
from hypothesis import given, settings
from hypothesis import strategies as st

from pe_experiments.components import shipped
from pe_experiments.formats import format_for
from pe_experiments.tasks import IGNORE, Task

TASKS = sorted(shipped("task"))
tasks = pytest.mark.parametrize("name", TASKS)


def build(name: str) -> Task:
    return instantiate(shipped("task")[name])


def draw(task: Task, length: int, rows: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    return task.sample(length, rows, torch.Generator().manual_seed(seed))


@tasks
@settings(max_examples=25, deadline=None)
@given(asked=st.integers(1, 100), seed=st.integers(0, 2**31))
def test_samples_obey_the_rule(name: str, asked: int, seed: int) -> None:
    task = build(name)
    length = task.nearest_length(asked)
    if length is None:
        return
    assert length <= asked
    assert task.nearest_length(length) == length
    inputs, targets = draw(task, length, 20, seed)
    assert inputs.shape == (20, length)
    assert targets.shape == (20, task.target_length(length))
    assert inputs.dtype == targets.dtype == torch.int64
    assert inputs.min() >= 0
    assert inputs.max() < task.vocab_size
    scored = targets[targets != IGNORE]
    assert len(scored)
    assert scored.min() >= 0
    assert scored.max() < task.vocab_size
    assert torch.equal(task.solve(inputs), targets)


@tasks
def test_same_generator_same_examples(name: str) -> None:
    task = build(name)
    for first, again in zip(draw(task, 9, 50, 3), draw(task, 9, 50, 3), strict=True):
        assert torch.equal(first, again)
    assert not torch.equal(draw(task, 9, 50, 3)[0], draw(task, 9, 50, 4)[0])


@tasks
@pytest.mark.parametrize("length", [4, 7, 12])
def test_shuffling_the_input_changes_the_answer_exactly_where_order_matters(name: str, length: int) -> None:
    task = build(name)
    inputs, targets = draw(task, length, 400)
    orders = torch.rand(400, length, generator=torch.Generator().manual_seed(1)).argsort(dim=1)
    shuffled = inputs.gather(1, orders)
    changed = (task.solve(shuffled) != targets).any(dim=1).float().mean()
    assert (changed > 0.1) if task.order_sensitive else (changed == 0)


@tasks
@pytest.mark.parametrize("length", [4, 9])
def test_chance_is_one_over_the_symbols_a_target_can_hold(name: str, length: int) -> None:
    task = build(name)
    _, targets = draw(task, length, 5000)
    seen = targets[targets != IGNORE].unique()
    assert task.chance(length) == pytest.approx(1 / len(seen))


@tasks
@pytest.mark.parametrize("length", [4, 9])
def test_no_bag_predictor_beats_the_ceiling(name: str, length: int) -> None:
    """The best predictor that sees a multiset and knows the rule: the modal answer over its shuffles."""
    task = build(name)
    ceiling = task.bag_ceiling(length)
    if ceiling is None:
        return
    inputs, targets = draw(task, length, 1500)
    generator = torch.Generator().manual_seed(5)
    guesses = []
    for row in inputs:
        orders = torch.rand(200, length, generator=generator).argsort(dim=1)
        guesses.append(task.solve(row[orders]).mode(dim=0).values)
    scored = targets != IGNORE
    reached = (torch.stack(guesses) == targets)[scored].float().mean().item()
    error = 0.5 / scored.sum().item() ** 0.5 * (scored.float().sum(1).mean().item() ** 0.5)
    assert reached <= ceiling + 3 * error
    assert reached >= ceiling - 3 * error - 0.02  # and it is a ceiling one can reach, not an empty bound


@tasks
@pytest.mark.parametrize("causal", [True, False])
def test_layouts_score_exactly_the_targets(name: str, causal: bool) -> None:
    task = build(name)
    layout = format_for(task, causal)
    inputs, targets = draw(task, 8, 10)
    rows = layout.lay_out(inputs, targets)
    assert rows.tokens_BT.shape == (10, layout.tokens(8, task.target_length(8)))
    assert rows.tokens_BT.max() < layout.vocab_size
    content = rows.labels_BT[(rows.labels_BT != IGNORE) & (rows.labels_BT != layout.eos)]
    assert torch.equal(content, targets[targets != IGNORE])
