"""Statistics for few seeds, whose outcomes past the training lengths are often all or nothing.

The seed is the unit of replication. Tests assume no distribution. Comparisons show Student's interval, which
says how far the seeds scatter around their mean. It cannot know of outcomes that no seed has had: of five
seeds with values 0 or 0.5 it covers the true mean in 23 to 94 % of studies. The interval of Gaffke
(`studies.inference.mean_interval`) covers it in 95 %, and is so wide that five seeds of 1 have [0.48, 1].
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd
from scipy import stats

LEVEL = 0.95  # confidence level of every interval
ALPHA = 1 - LEVEL  # significance level of every test
FEWEST = 3  # seeds needed for an interval or a test
RESAMPLES = 200_000  # permutations in a test that has more, as one of more than 10 against 10 seeds has
POWER = 0.8  # share of studies in which a planned number of seeds finds the difference
MOST_SEEDS = 1000  # a study with more is not planned
EQUAL_WITHIN = 1e-12  # values closer than this count as equal

Values = Sequence[float] | np.ndarray | pd.Series


@dataclass(frozen=True)
class Interval:
    """An estimate and the ends of its interval; the ends are NaN with too few seeds."""

    estimate: float
    low: float = math.nan
    high: float = math.nan


def seed_interval(
    values: Sequence[float] | np.ndarray, bounds: tuple[float, float] | None = None
) -> Interval:
    """Return the mean over seeds with Student's interval, cut at the bounds of the metric.

    Seeds that all have the same value have no interval: they say nothing about how far seeds scatter.
    """
    interval = t_interval(values)
    if np.ptp(values) <= EQUAL_WITHIN:
        return Interval(interval.estimate)
    if bounds is None:
        return interval
    lowest = min(bounds[0], float(np.min(values)))  # a chance level makes it negative past training
    return Interval(interval.estimate, max(interval.low, lowest), min(interval.high, bounds[1]))


def t_interval(values: Sequence[float] | np.ndarray, alpha: float = ALPHA) -> Interval:
    """Return the mean of a smooth, unbounded variable such as a loss, with Student's interval."""
    sample = np.asarray(values, dtype=float)
    mean = float(sample.mean())
    if len(sample) < FEWEST or np.isnan(sample).any():
        return Interval(mean)
    quantile = stats.t.ppf(1 - alpha / 2, len(sample) - 1)
    half_width = float(quantile * sample.std(ddof=1) / math.sqrt(len(sample)))
    return Interval(mean, mean - half_width, mean + half_width)


def share_interval(successes: int, trials: int) -> Interval:
    """Return the share of successes, with the exact interval of Clopper and Pearson (1934)."""
    if trials < FEWEST:
        return Interval(successes / trials)
    ends = stats.binomtest(successes, trials).proportion_ci(LEVEL, method="exact")
    return Interval(successes / trials, float(ends.low), float(ends.high))


def permutation_p(first: Sequence[float] | np.ndarray, second: Sequence[float] | np.ndarray) -> float:
    """Return the two-sided p-value of a difference of means between two sets of seeds, by permutation.

    The test is exact up to ten against ten seeds and uses a fixed sample of permutations beyond. With five
    against five seeds p is at least 2 / 252. With fewer than three seeds or a missing value p is NaN.
    """
    pooled = np.concatenate([first, second]).astype(float)
    if min(len(first), len(second)) < FEWEST or np.isnan(pooled).any():
        return math.nan
    rounding = EQUAL_WITHIN * max(1.0, float(np.abs(pooled).max()))
    observed = abs(np.mean(first) - np.mean(second))
    if observed <= rounding:
        return 1.0
    # `stats.permutation_test` would take 1.6 s for ten against ten seeds, and 20 minutes for all pairs of
    # twelve encodings on twelve tasks.
    splits = _splits(len(first), len(second))
    first_sums = pooled @ splits
    differences = np.abs(first_sums / len(first) - (pooled.sum() - first_sums) / len(second))
    return float((differences >= observed - rounding).mean())


@cache
def _splits(first: int, second: int) -> np.ndarray:
    """Return the members of the first group [seeds, splits]: in all splits, or the real one and a sample."""
    seeds = first + second
    if math.comb(seeds, first) <= RESAMPLES:
        members = np.array(list(itertools.combinations(range(seeds), first)))
    else:
        permutations = np.random.default_rng(0).random((RESAMPLES, seeds)).argsort(axis=1)
        members = np.vstack([np.arange(seeds), permutations])[:, :first]
    splits = np.zeros((seeds, len(members)))
    np.put_along_axis(splits, members.T, 1.0, axis=0)
    return splits


def smallest_p(first: int, second: int) -> float:
    """Return the smallest value of `permutation_p` with these numbers of seeds."""
    return (2 if first == second else 1) / math.comb(first + second, first)


def seeds_needed(difference: float, deviation: float, tests: int = 1) -> int | None:
    """Return how many seeds per encoding find a difference of means in the share `POWER` of studies.

    The number is that of a two-sided t test at the level ``ALPHA / tests`` (Bonferroni), and at least so high
    that `permutation_p` can reach this level. Holm's method finds slightly more than Bonferroni's.

    Args:
        difference: the true difference of the two means, in the unit of the metric.
        deviation: the standard deviation over seeds of each encoding, in the same unit.
        tests: number of differences that the study tests.

    Returns:
        The number of seeds, at least `FEWEST`, or None if it exceeds `MOST_SEEDS`.

    Source: Cohen (1988), *Statistical Power Analysis for the Behavioral Sciences*, chapter 2.
    """
    if difference <= 0 or deviation < 0:
        raise ValueError(f"difference={difference} must be positive and deviation={deviation} not negative")
    level = ALPHA / tests
    # A z test needs fewer seeds than a t test, by a few.
    quantiles = stats.norm.ppf(1 - level / 2) + stats.norm.ppf(POWER)
    fewest = max(FEWEST, math.floor(2 * (quantiles * deviation / difference) ** 2))
    for seeds in range(fewest, MOST_SEEDS + 1):
        if smallest_p(seeds, seeds) <= level and _t_test_power(difference, deviation, seeds, level) >= POWER:
            return seeds
    return None


def _t_test_power(difference: float, deviation: float, seeds: int, level: float) -> float:
    """Return the power of a two-sided t test of two equal groups, by the noncentral t distribution."""
    if deviation == 0:
        return 1.0
    freedom = 2 * seeds - 2
    distribution = stats.nct(freedom, difference / deviation * math.sqrt(seeds / 2))
    critical = stats.t.ppf(1 - level / 2, freedom)
    lower_tail = distribution.cdf(-critical)  # SciPy returns NaN where it is too small to compute
    return float(distribution.sf(critical) + np.nan_to_num(lower_tail))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted by Holm's method (1979). NaN (not tested) stays NaN and is not counted."""
    p = np.array(p_values, dtype=float)
    order = np.argsort(p)[: np.count_nonzero(~np.isnan(p))]  # NaN comes last
    p[order] = np.minimum(1.0, np.maximum.accumulate(np.arange(len(order), 0, -1) * p[order]))
    return p.tolist()
