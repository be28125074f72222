"""The position ids that each policy gives to a sequence."""

from __future__ import annotations

import pytest
import scipy.stats
import torch

from pe_experiments.positions.interpolated import Interpolated
from pe_experiments.positions.random_float import RandomFloat
from pe_experiments.positions.random_ids import RandomOffset, RandomSubset


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


LENGTHS = torch.tensor([5, 3, 5])


def test_random_offsets_are_uniform_over_the_table() -> None:
    policy = RandomOffset(max_positions=8)
    ids = policy.training_ids(torch.full((4000,), 5), 5, generator())
    assert ids.unique().tolist() == list(range(8))
    assert (ids[:, 1:] - ids[:, :-1] == 1).all()
    starts = ids[:, 0].bincount(minlength=4).float() / 4000
    torch.testing.assert_close(starts, torch.full((4,), 0.25), rtol=0, atol=0.03)


def test_subsets_are_sorted_distinct_and_uniform() -> None:
    lengths = torch.tensor([4, 2, 4]).repeat(4000)
    ids = RandomSubset(max_positions=6).training_ids(lengths, 4, generator())
    long, short = ids[0::3], ids[1::3]
    assert (long.diff(dim=1) > 0).all()
    assert (short[:, 1] > short[:, 0]).all()
    assert (short[:, 2:] == short[:, 1:2]).all()  # padding repeats the last id
    for drawn in (long, short[:, :2]):
        shares = drawn.flatten().bincount(minlength=6) / drawn.numel()
        torch.testing.assert_close(shares, torch.full((6,), 1 / 6), rtol=0, atol=0.01)


def test_subsets_are_drawn_in_evaluation_unless_told_otherwise() -> None:
    drawn = RandomSubset(max_positions=50).evaluation_ids(LENGTHS, 5, generator())
    assert drawn.max() > 5
    consecutive = RandomSubset(50, evaluation="consecutive").evaluation_ids(LENGTHS, 5, generator())
    assert consecutive.tolist() == [[0, 1, 2, 3, 4]]
    assert RandomSubset(50).train_positions(5) == 50
    with pytest.raises(ValueError, match=r"5 tokens need more ids than positions\.max_positions=4"):
        RandomSubset(4).evaluation_ids(LENGTHS, 3, generator())


def test_interpolated_ids_are_squeezed_only_beyond_the_training_length() -> None:
    policy = Interpolated()
    assert policy.training_ids(LENGTHS, 5, generator()).tolist() == [[0, 1, 2, 3, 4]]
    assert policy.evaluation_ids(LENGTHS, 5, generator()).tolist() == [[0, 1, 2, 3, 4]]
    ids = policy.evaluation_ids(torch.tensor([8, 3]), 4, generator())
    assert ids[0].tolist() == [0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5]
    assert ids[1, :3].tolist() == [0, 1, 2]


def test_random_real_positions_are_sorted_and_uniform() -> None:
    ids = RandomFloat().training_ids(torch.tensor([5, 3]).repeat(4000), 5, generator())
    long, short = ids[0::2], ids[1::2]
    assert (long.diff(dim=1) > 0).all()
    assert (short[:, 1:3] > short[:, :2]).all()
    assert (short[:, 3:] == short[:, 2:3]).all()  # padding repeats the last one
    for drawn in (long, short[:, :3]):
        assert scipy.stats.kstest(drawn.flatten().numpy() / 5, "uniform").pvalue > 0.001


def test_random_real_positions_are_evenly_spaced_in_evaluation() -> None:
    ids = RandomFloat(span=8).evaluation_ids(torch.tensor([8, 3]), 4, generator())
    assert ids[0].tolist() == [0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5]
    assert ids[1, :3].tolist() == [1, 3, 5]  # as in a sequence of the longest training length
    with pytest.raises(ValueError, match="span=0 must be a finite number greater than 0"):
        RandomFloat(span=0)
