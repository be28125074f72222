"""The share of the most frequent symbol, compared with enumeration; the contract counts the ceilings."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from pe_experiments.tasks.ceilings import mode_share


@pytest.mark.parametrize(("length", "symbols"), [(1, 4), (2, 2), (5, 3), (7, 2), (4, 9), (9, 3)])
def test_mode_share_equals_enumeration(length: int, symbols: int) -> None:
    words = list(itertools.product(range(symbols), repeat=length))
    expected = sum(max(Counter(word).values()) for word in words) / len(words) / length
    assert mode_share(length, symbols) == pytest.approx(expected, abs=1e-12)
