"""Closed forms of the bag ceiling, compared with enumeration and with published simulations."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from pe_experiments.tasks.ceilings import mode_share
from pe_experiments.tasks.copying import Copy, UniqueCopy


@pytest.mark.parametrize(("length", "symbols"), [(1, 4), (2, 2), (5, 3), (7, 2), (4, 9), (9, 3)])
def test_mode_share_equals_enumeration(length: int, symbols: int) -> None:
    words = list(itertools.product(range(symbols), repeat=length))
    expected = sum(max(Counter(word).values()) for word in words) / len(words) / length
    assert mode_share(length, symbols) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("length", [5, 20, 256])
def test_prefix_ceiling_is_the_mean_over_the_remaining_lengths(length: int) -> None:
    expected = sum(mode_share(left, 10) for left in range(1, length + 1)) / length
    assert Copy().bag_ceiling(length, prefix=True) == pytest.approx(expected, abs=1e-12)


def test_prefix_ceiling_of_distinct_symbols() -> None:
    """The reference counts how often one fixed choice among the remaining symbols is right."""
    hits = trials = 0
    for order in itertools.permutations(range(5)):
        for step in range(5):
            hits += min(order[step:]) == order[step]
            trials += 1
    assert UniqueCopy().bag_ceiling(5, prefix=True) == pytest.approx(hits / trials, abs=1e-12)
