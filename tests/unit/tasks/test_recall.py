"""Recall of overwritten keys, among noise and over several hops: what their inputs look like."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from pe_experiments.tasks import Task
from pe_experiments.tasks.recall import CompositionalRecall, MultiHop, OverwrittenRecall, PathStar


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


def test_of_two_keys_neither_suffices() -> None:
    task = CompositionalRecall(keys=4, values=50)
    inputs_BN, _ = task.sample(3 * 9 + 2, 100, torch.Generator().manual_seed(0))  # a full grid of 3 x 3 keys
    for column, queried in ((0, -2), (1, -1)):
        same_BT = inputs_BN[:, column:-2:3] == inputs_BN[:, queried, None]
        assert (same_BT.sum(1) == 3).all()
    with_noise = inputs_BN.clone()
    with_noise[:, -1] = 4 + (with_noise[:, -1] - 3) % 4  # another second key, which may not occur
    assert not torch.equal(task.solve(with_noise), task.solve(inputs_BN))


def test_the_path_in_a_star_is_made_of_its_edges() -> None:
    task = PathStar(arms=3, nodes=20)
    inputs_BN, path_BM = task.sample(3 * 2 * 4 + 2, 50, torch.Generator().manual_seed(0))
    for row, path in zip(inputs_BN.tolist(), path_BM.tolist(), strict=True):
        edges = list(zip(row[:-2:2], row[1:-2:2], strict=True))
        assert all(edge in edges for edge in pairwise(path))
        assert [start for start, _ in edges].count(path[0]) == 3
        assert [path[0], path[-1]] == row[-2:]
