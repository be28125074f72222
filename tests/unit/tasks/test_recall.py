"""Recall of overwritten keys, among noise and over several hops: what their inputs look like."""

from __future__ import annotations

import pytest
import torch

from pe_experiments.tasks import Task
from pe_experiments.tasks.recall import MultiHop, OverwrittenRecall


def draw(task: Task, length: int, rows: int = 4000) -> tuple[torch.Tensor, torch.Tensor]:
    return task.sample(length, rows, torch.Generator().manual_seed(length))


@pytest.mark.parametrize("pairs", [2, 3, 10])
def test_the_queried_key_was_written_at_least_twice(pairs: int) -> None:
    inputs, targets = draw(OverwrittenRecall(keys=40), 2 * pairs + 1)
    written = inputs[:, :-1:2] == inputs[:, -1:]
    times = written.sum(dim=1).double()
    assert times.min() == 2
    last = torch.tensor([max(i for i, hit in enumerate(row) if hit) for row in written.tolist()])
    assert torch.equal(inputs[:, 1::2].gather(1, last[:, None]), targets)


@pytest.mark.parametrize("hops", [1, 2, 5])
def test_links_join_to_one_cycle_and_the_answer_is_so_many_links_away(hops: int) -> None:
    task = MultiHop(hops, variables=12)
    for length in (2 * hops + 3, 25):
        inputs, targets = draw(task, length, 300)
        for row, (answer,) in zip(inputs.tolist(), targets.tolist(), strict=True):
            leads_to = dict(zip(row[:-1:2], row[1:-1:2], strict=True))
            assert len(leads_to) == length // 2
            walk = [row[-1]]
            while leads_to[walk[-1]] != row[-1]:
                walk.append(leads_to[walk[-1]])
            assert len(walk) == length // 2  # one cycle
            assert walk[hops] == answer
