"""Tests and intervals of published studies: means between 0 and 1, paired configurations, rank correlations.

Like those of `comparison.statistics` they assume no distribution, except `paired_t_tests` of losses.
"""

import itertools
import math
from collections.abc import Sequence
from functools import cache

import numpy as np
import pandas as pd
from scipy import optimize, stats

from pe_experiments.comparison.statistics import (
    ALPHA,
    EQUAL_WITHIN,
    FEWEST,
    RESAMPLES,
    Interval,
    Values,
    holm,
    t_interval,
)


def mean_interval(values: Sequence[float] | np.ndarray) -> Interval:
    """Return the mean of a variable between 0 and 1, with Gaffke's 95 % interval.

    The upper end is a quantile of the randomly weighted mean of the values and 1, with weights uniform on
    the simplex; the lower end has 0 in place of 1. For values 0 and 1 this is the Clopper-Pearson interval.
    No distribution is known for which its coverage falls below 95 % (Gaffke 2005; Learned-Miller and Thomas
    2019, arXiv:1905.06208).
    """
    sample = np.asarray(values, dtype=float)
    mean = float(sample.mean())
    if len(sample) < FEWEST or np.isnan(sample).any():
        return Interval(mean)
    low = _quantile(sorted([*sample.tolist(), 0.0]), ALPHA / 2)
    high = _quantile(sorted([*sample.tolist(), 1.0]), 1 - ALPHA / 2)
    return Interval(mean, low, high)


def mean_below_p(values: Sequence[float], mean: float) -> float:
    """Return the one-sided p-value of "the mean is at least ``mean``" for values in 0 to 1 (Gaffke)."""
    return 1 - _share_below(sorted([*values, 1.0]), mean)


def _share_below(points: Sequence[float], value: float) -> float:
    """Return the chance that the randomly weighted mean of sorted points is <= ``value`` (Varsi 1973)."""
    above = [point - value for point in points if point > value]
    shares = [1.0] + [0.0] * len(above)
    for point in points[: len(points) - len(above)]:
        deficit = value - point
        for index, excess in enumerate(above, start=1):
            shares[index] = (excess * shares[index] + deficit * shares[index - 1]) / (excess + deficit)
    return shares[-1]


def _quantile(points: Sequence[float], share: float) -> float:
    """Return the value below which `_share_below` is ``share``."""
    if points[-1] - points[0] < 1e-9:
        return points[0]
    return float(optimize.brentq(lambda value: _share_below(points, value) - share, points[0], points[-1]))


def paired_t_tests(differences: pd.DataFrame) -> pd.DataFrame:
    """Return the t test of each column of paired differences [pairs, tests], one family by Holm's method.

    There is a row per test, with the columns ``difference, low, high, p``. Each interval has the level of
    `holm_alphas`.
    """
    columns = [differences[test].to_numpy(float) for test in differences]
    raw = [float(stats.ttest_1samp(values, 0).pvalue) for values in columns]
    tests = pd.DataFrame(list(map(t_interval, columns, holm_alphas(raw))), index=differences.columns)
    return tests.rename(columns={"estimate": "difference"}).assign(p=holm(raw))


def paired_ps(differences: np.ndarray) -> np.ndarray:
    """Return two-sided p-values of the means of paired differences [sets, pairs], by flipping signs.

    A p-value is at least 2 / 2^pairs. NaN marks a missing pair.
    """
    # A difference of 0 does not change p.
    means = np.nan_to_num(differences) @ _subset_means(differences.shape[1]).T
    beyond = np.minimum((means <= EQUAL_WITHIN).sum(axis=1), (means >= -EQUAL_WITHIN).sum(axis=1))
    return np.minimum(1.0, 2 * (1 + beyond) / (1 + means.shape[1]))


def paired_interval(differences: Sequence[float] | np.ndarray, alpha: float) -> Interval:
    """Return the mean paired difference and the means that `paired_ps` would not reject (Hartigan 1969).

    With too few pairs to reject any mean the interval is from -1 to 1.
    """
    sample = np.asarray(differences, dtype=float)
    means = np.sort(_subset_means(len(sample)) @ sample)
    end = int(alpha / 2 * (1 + len(means)) + EQUAL_WITHIN)
    if end == 0:
        return Interval(float(sample.mean()), -1.0, 1.0)
    return Interval(float(sample.mean()), float(means[end - 1]), float(means[-end]))


def paired_sign_tests(differences: np.ndarray) -> list[tuple[Interval, float]]:
    """Return the mean of each set of paired differences [sets, pairs], and its p-value by flipping signs.

    The p-values of `paired_ps` are adjusted by Holm's method, and the interval of each mean has the level of
    `holm_alphas`. NaN marks a missing pair.
    """
    p_values = paired_ps(differences).tolist()
    samples = [values[~np.isnan(values)] for values in differences]
    intervals = map(paired_interval, samples, holm_alphas(p_values))
    return [*zip(intervals, holm(p_values), strict=True)]


@cache
def _subset_means(pairs: int) -> np.ndarray:
    """Return one row per non-empty subset of pairs; its product with values is the mean of the subset."""
    members = np.array(list(itertools.product((0.0, 1.0), repeat=pairs))[1:])
    weights: np.ndarray = members / members.sum(axis=1, keepdims=True)
    return weights


def rank_correlation(first: Values, second: Values, one_sided: bool = False) -> tuple[float, float]:
    """Return Spearman's rho, and the share of orders with as large an absolute rho, or as large a rho.

    Tied values share their mean rank. Beyond `RESAMPLES` orders a fixed sample of this size is taken. Both
    results are NaN if all values of one side are equal.
    """
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return math.nan, math.nan
    x, y = (stats.zscore(stats.rankdata(values)) / math.sqrt(len(values)) for values in (first, second))
    size = float if one_sided else abs
    test = stats.permutation_test(
        (x,), lambda order: size(order @ y), permutation_type="pairings", alternative="greater",
        n_resamples=RESAMPLES, rng=np.random.default_rng(0),
    )  # fmt: skip
    return float(x @ y), float(test.pvalue)


def holm_alphas(p_values: Sequence[float]) -> list[float]:
    """Return the level at which Holm's method tests each p-value, so that intervals can agree with the tests.

    It is ALPHA / n with n the number of tests left, and stays the same after the first that is not
    significant. The interval of confidence 1 - level then excludes 0 if the test is significant.
    """
    significant = np.count_nonzero(np.array(holm(p_values)) <= ALPHA)
    ranks = stats.rankdata(p_values, method="ordinal", nan_policy="omit") - 1
    tests = np.count_nonzero(~np.isnan(ranks))
    levels: list[float] = (ALPHA / (tests - np.minimum(ranks, significant))).tolist()
    return levels
