"""The study of transfer to text: its statistics against independent ones, and what its outcomes mean."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from results.text import study as text
from results.transfer import study as transfer

Scores = dict[str, np.ndarray]


def scores(values: np.ndarray, noise: float, seed: int) -> Scores:
    draw = np.random.default_rng(seed)
    return {f"s{n}": value + noise * draw.normal(size=4) for n, value in enumerate(values)}


def test_rho_is_that_of_scipy_with_ties() -> None:
    draw = np.random.default_rng(0)
    one, other = draw.integers(4, size=(2, 12))
    assert transfer.rho(one, other) == pytest.approx(stats.spearmanr(one, other).statistic)


def test_the_partial_correlation_is_that_of_the_residuals_of_ranks() -> None:
    one, other, given = np.random.default_rng(1).normal(size=(3, 12))
    a, b, c = map(stats.rankdata, (one, other, given))
    residuals = [x - np.polyval(np.polyfit(c, x, 1), c) for x in (a, b)]
    expected = stats.pearsonr(*residuals).statistic
    assert transfer.rho(one, other, given) == pytest.approx(expected)


def test_the_p_value_is_that_of_scipy() -> None:
    one, other = np.random.default_rng(2).normal(size=(2, 12))
    one = one + 0.5 * other
    made = transfer.correlate(scores(one, 0, 0), scores(other, 0, 0))
    expected = stats.spearmanr(one, other, alternative="greater").pvalue
    assert made.p == pytest.approx(expected, abs=0.01)
    assert made.ceiling == pytest.approx(1)  # without noise a score is perfectly reliable


def test_noise_lowers_the_ceiling() -> None:
    values = np.linspace(0, 1, 12)
    noisy = transfer.correlate(scores(values, 1.0, 0), scores(values, 0.0, 1))
    assert noisy.ceiling < 0.95


def test_outcomes_follow_the_interval() -> None:
    values = np.linspace(0, 1, 12)
    same = transfer.correlate(scores(values, 0.01, 0), scores(values, 0.01, 1))
    turned = transfer.correlate(scores(values, 0.01, 0), scores(-values, 0.01, 1))
    unrelated = transfer.correlate(
        scores(values, 0.01, 0), scores(np.random.default_rng(5).normal(size=12), 0.01, 1)
    )
    said = [transfer.outcome(made).partition(":")[0] for made in (same, turned, unrelated)]
    assert said[0].startswith("**Useful**")
    assert said[1].startswith("**Not useful**")
    assert said[2].startswith("**Open**")


def test_names_at_line_ends_keep_apart() -> None:
    moved = text._apart([0.9, 0.5, 0.5, 0.49])
    assert all(a - b >= 0.052 - 1e-9 for a, b in itertools.pairwise(moved))
    assert moved[-1] == 0.49
