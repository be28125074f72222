"""The comparison with released runs on SCAN: rank correlations against scipy, and tables without our runs."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from results.replications import scan


def test_rank_correlation_counts_all_orders() -> None:
    first = pd.Series([0.8, 0.7, 0.4, 0.3, 0.0], index=[*"abcde"])
    second = pd.Series([0.5, 0.9, 0.2, 0.2, 0.1], index=[*"baced"])  # tied
    expected = stats.spearmanr(first, second[first.index]).statistic
    orders = [stats.spearmanr(first, order).statistic for order in itertools.permutations(second)]
    rho, p = scan.rank_correlation(first, second)
    assert rho == pytest.approx(expected)
    assert p == np.mean(np.abs(orders) >= abs(expected) - 1e-9)
    assert scan.rank_correlation(first, first) == pytest.approx((1, 2 / 120))  # of five encodings, the least


def test_released_runs_have_three_seeds_of_five_encodings() -> None:
    released = scan.exact_match()[scan.THEIRS]
    assert released.groupby("encoding").size().to_dict() == dict.fromkeys(scan.ENCODINGS.values(), 3)
    assert released[[*scan.LENGTHS, "in distribution"]].notna().all(axis=None)
    order = scan.means(released).sort_values().index
    assert [*order] == ["sinusoidal", "rope_partial", "alibi", "t5", "none"]
