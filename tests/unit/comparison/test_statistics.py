"""Test the statistics against other implementations and against simulated studies."""

import itertools

import numpy as np
import pytest
from scipy import stats

from pe_experiments.comparison.statistics import (
    holm,
    permutation_p,
    seed_interval,
    seeds_needed,
    share_interval,
)
from pe_experiments.studies.inference import holm_alphas, mean_below_p, mean_interval, rank_correlation


@pytest.mark.parametrize("seeds", [3, 5, 12])
def test_zeros_and_ones_have_the_interval_of_clopper_and_pearson(seeds: int) -> None:
    for successes in range(seeds + 1):
        values = [1.0] * successes + [0.0] * (seeds - successes)
        expected = stats.binomtest(successes, seeds).proportion_ci(method="exact")
        for interval in (mean_interval(values), share_interval(successes, seeds)):
            assert interval.estimate == pytest.approx(successes / seeds)
            assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_the_p_value_of_a_mean_inverts_its_interval() -> None:
    values = [0.0, 0.5, 0.2, 0.9, 0.9]
    interval = mean_interval(values)
    assert mean_below_p(values, interval.high) == pytest.approx(0.025)
    assert mean_below_p([0.0] * 5, 0.9) == pytest.approx(0.1**5)
    assert mean_below_p([1.0] * 5, 0.9) == 1.0


def test_many_seeds_are_permuted_at_random() -> None:
    separated = permutation_p(list(np.linspace(0.5, 1, 12)), list(np.linspace(0, 0.4, 12)))
    assert 0 < separated < 1e-4
    rng = np.random.default_rng(3)
    first, second = rng.normal(0, 1, 12), rng.normal(0.5, 1, 12)
    assert permutation_p(first, second) == pytest.approx(stats.ttest_ind(first, second).pvalue, abs=0.02)


@pytest.mark.parametrize(("difference", "tests"), [(2.0, 1), (1.3, 1), (2.0, 15)])
def test_a_planned_study_finds_the_difference_and_a_smaller_one_does_not(
    difference: float, tests: int
) -> None:
    """In simulations, by the t test for which the number of seeds is planned."""
    seeds = seeds_needed(0.1 * difference, 0.1, tests)
    assert seeds
    rng = np.random.default_rng(0)
    for number, enough in ((seeds, True), (seeds - 1, False)):
        first, second = (rng.normal(mean, 1, (20_000, number)) for mean in (0, difference))
        found = stats.ttest_ind(first, second, axis=1).pvalue <= 0.05 / tests
        assert (found.mean() >= 0.79) == enough


def test_a_large_difference_takes_as_many_seeds_as_can_reach_the_level() -> None:
    """SciPy has no number for the far tail of the noncentral t distribution."""
    assert stats.binom(12, 0.5).pmf(6) * 2**12 > 2 * 10 / 0.05  # six seeds of both can reach .05 / 10
    assert seeds_needed(0.1, 0.0229, tests=10) == 6


def test_holm_on_a_worked_example() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    untested = holm([0.01, float("nan"), 0.5])
    assert untested[0] == pytest.approx(0.02)  # a pair that was not tested is not in the family
    assert np.isnan(untested[1])
    assert untested[2] == pytest.approx(0.5)
    assert holm([]) == []


def test_holm_tests_at_the_level_of_its_step() -> None:
    nan = float("nan")
    levels = holm_alphas([0.02, 0.001, nan, 0.04, 0.3])  # 0.001 is significant of four, 0.02 not of three
    assert levels == pytest.approx([0.05 / 3, 0.05 / 4, nan, 0.05 / 3, 0.05 / 3], nan_ok=True)
    assert holm_alphas([0.001, 0.002]) == pytest.approx([0.025, 0.05])


def test_a_permutation_p_does_not_depend_on_the_size_of_losses() -> None:
    first, second = [1.0, 2.0, 3.0, 4.0, 5.0], [2.5, 6.0, 7.0, 8.0, 9.0]
    large = [[1e4 + value for value in group] for group in (first, second)]
    assert permutation_p(*large) == permutation_p(first, second) > 0


def test_a_rank_correlation_counts_all_orders() -> None:
    first, second = [0.8, 0.7, 0.4, 0.3, 0.0], [0.9, 0.5, 0.2, 0.2, 0.3]  # one tie
    expected = stats.spearmanr(first, second).statistic
    orders = [stats.spearmanr(first, order).statistic for order in itertools.permutations(second)]
    rho, p = rank_correlation(first, second)
    assert rho == pytest.approx(expected)
    assert p == np.mean(np.abs(orders) >= abs(expected) - 1e-9)
    assert rank_correlation(first, first) == pytest.approx((1, 2 / 120))  # the least p of five pairs
    assert np.isnan(rank_correlation(first, [1, 1, 1, 1, 1])).all()


def test_a_one_sided_rank_correlation_of_many_pairs_is_that_of_scipy() -> None:
    x, y = np.random.default_rng(2).normal(size=(2, 12))
    expected = stats.spearmanr(x, x + y, alternative="greater")
    assert rank_correlation(x, x + y, one_sided=True) == pytest.approx(expected, abs=0.01)


def test_an_interval_of_seeds_is_students_within_the_bounds_and_perfect_seeds_have_none() -> None:
    values = [0.9, 0.95, 1.0, 1.0, 0.97]
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    interval = seed_interval(values, (0.0, 1.0))
    assert (interval.low, interval.high) == (pytest.approx(expected.low), 1.0)
    unbounded = seed_interval(values)
    assert (unbounded.low, unbounded.high) == pytest.approx((expected.low, expected.high))
    assert np.isnan(seed_interval([1.0] * 5, (0.0, 1.0)).low)
    assert seed_interval([-0.2, 0.0, 0.1], (0.0, 1.0)).low == -0.2  # below guessing
