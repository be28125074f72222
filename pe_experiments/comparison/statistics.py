"""Statistics for a handful of seeds, whose outcomes past the training lengths are often all or nothing.

Seeds are the unit of replication. Intervals and tests do not assume normal errors: a nominal 95 % t interval
of five seeds that are 0 or 0.5 covers 23 to 94 %. Functions take and return numbers; `table` and `pairs`
apply them to runs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
from scipy import optimize, stats

LEVEL = 0.95  # of every interval
ALPHA = 1 - LEVEL  # of every test
POWER = 0.8  # at which a difference counts as detectable
FEWEST = 3  # with fewer seeds there is neither an interval nor a test
RESAMPLES = 200_000  # permutations: all of them up to 10 against 10 seeds, else a sample of this size
ROUNDING = 1e-12  # closer values are equal
MOST_FLIPS = 16  # all sign patterns up to this many pairs, else a sample

# Share of studies, in %, whose `mean_interval` holds the true mean, with 3, 5 and 10 seeds. The outcomes of a
# seed: 0 or 0.5, and 0 or 1, with the probability of the higher one; two smooth ones. A test simulates it.
COVERAGE = {
    "0 or 0.5, P = 0.05": (99, 98, 99),
    "0 or 0.5, P = 0.2": (99, 99, 99),
    "0 or 0.5, P = 0.5": (100, 100, 99),
    "0 or 1, P = 0.05": (99, 98, 99),
    "0 or 1, P = 0.2": (99, 99, 99),
    "0 or 1, P = 0.5": (100, 100, 98),
    "uniform on 0 to 1": (100, 100, 100),
    "normal, mean 0.4, deviation 0.1": (100, 100, 100),
}
SIMULATED = (3, 5, 10)

NAN = float("nan")


@dataclass(frozen=True)
class Interval:
    """An estimate with the ends of its interval; the ends are NaN where there are too few seeds."""

    estimate: float
    low: float = NAN
    high: float = NAN


def mean_interval(
    values: Sequence[float] | np.ndarray, lowest: float = 0.0, alpha: float = ALPHA
) -> Interval:
    """The mean of a variable that lies between ``lowest`` and 1, with Gaffke's 95 % interval.

    The upper end is a quantile of the mean of the values and 1 under random weights (uniform on the simplex),
    the lower end one of the values and ``lowest``. For values that are 0 or 1 this is the Clopper-Pearson
    interval, and no distribution is known for which its coverage falls below 95 % (Gaffke 2005;
    Learned-Miller and Thomas 2019, arXiv:1905.06208). It never leaves the range. Its simulated coverage is
    98 to 100 % (`COVERAGE`). It is wide: five seeds of value 1 do not exclude a mean of 0.48.

    Args:
        values: one per seed; NaN (not measured) makes the mean NaN.
        lowest: the smallest possible value.
        alpha: 1 minus the level of the interval.
    """
    x, mean = _mean(values)
    if not _enough(x):
        return Interval(mean)
    below, above = (tuple(sorted([*x.tolist(), end])) for end in (lowest, 1.0))
    return Interval(mean, _quantile(below, alpha / 2), _quantile(above, 1 - alpha / 2))


def t_interval(values: Sequence[float] | np.ndarray) -> Interval:
    """The mean of a smooth variable without bounds, such as a loss, with Student's 95 % interval."""
    x, mean = _mean(values)
    if not _enough(x):
        return Interval(mean)
    half = float(stats.t.ppf(1 - ALPHA / 2, len(x) - 1) * x.std(ddof=1) / math.sqrt(len(x)))
    return Interval(mean, mean - half, mean + half)


def _mean(values: Sequence[float] | np.ndarray) -> tuple[np.ndarray, float]:
    x = np.asarray(values, dtype=float)
    return x, float(x.mean()) if len(x) else NAN


def _enough(x: np.ndarray) -> bool:
    """Whether there are seeds enough for an interval or a test, all of them measured."""
    return len(x) >= FEWEST and not np.isnan(x).any()


def difference_interval(
    first: Sequence[float] | np.ndarray, second: Sequence[float] | np.ndarray, alpha: float = ALPHA
) -> Interval:
    """The difference of two means of values between 0 and 1, from the interval of each.

    Each end is as far from the difference as the root of the summed squares of the two intervals' ends are
    from their means (Zou and Donner 2008, MOVER). Not paired: past training, seeds correlate little.

    Args:
        first, second: one value per seed.
        alpha: 1 minus the level; divided by the number of intervals, they hold jointly (Bonferroni).
    """
    one, other = mean_interval(first, alpha=alpha), mean_interval(second, alpha=alpha)
    difference = one.estimate - other.estimate
    return Interval(
        difference,
        difference - math.hypot(one.estimate - one.low, other.high - other.estimate),
        difference + math.hypot(one.high - one.estimate, other.estimate - other.low),
    )


def mean_below_p(values: Sequence[float], mean: float) -> float:
    """One-sided p-value of "the mean is ``mean`` or more" for values in 0 to 1, by Gaffke's bound."""
    return 1 - _share_below(tuple(sorted([*map(float, values), 1.0])), mean)


def mean_above_p(values: Sequence[float], mean: float) -> float:
    """One-sided p-value of "the mean is ``mean`` or less" for values in 0 to 1, by Gaffke's bound."""
    return _share_below(tuple(sorted([*map(float, values), 0.0])), mean)


def _share_below(points: tuple[float, ...], value: float) -> float:
    """Probability that the randomly weighted mean of the points, which are sorted, is at most ``value``.

    The share of a simplex below a plane, exact (Varsi 1973); ties do no harm.
    """
    above = [point - value for point in points if point > value]
    shares = [1.0] + [0.0] * len(above)
    for point in points[: len(points) - len(above)]:
        short = value - point
        for index, over in enumerate(above, start=1):
            shares[index] = (over * shares[index] + short * shares[index - 1]) / (over + short)
    return shares[-1]


@lru_cache(maxsize=10_000)
def _quantile(points: tuple[float, ...], share: float) -> float:
    """Inverse of `_share_below`."""
    if points[-1] - points[0] < 1e-9:
        return points[0]
    return float(optimize.brentq(lambda value: _share_below(points, value) - share, points[0], points[-1]))


@cache
def share_interval(successes: int, trials: int) -> Interval:
    """``k`` of ``n`` seeds, with the exact interval of Clopper and Pearson (1934)."""
    if trials < FEWEST:
        return Interval(successes / trials if trials else NAN)
    ends = stats.binomtest(successes, trials).proportion_ci(LEVEL, method="exact")
    return Interval(successes / trials, float(ends.low), float(ends.high))


def permutation_p(first: Sequence[float], second: Sequence[float]) -> float:
    """Two-sided p-value of a difference of means between two sets of seeds, by permutation.

    Exact up to ten seeds against ten, else from a fixed sample of permutations. With five against five it is
    at least 2 / 252. NaN below three seeds or where a value is missing.
    """
    if min(len(first), len(second)) < FEWEST or np.isnan([*first, *second]).any():
        return NAN
    return float(permutation_ps(np.array([first], dtype=float), second)[0])


def permutation_ps(firsts: np.ndarray, second: Sequence[float]) -> np.ndarray:
    """`permutation_p` of each row of ``firsts`` [sets, seeds] against the same seeds."""
    n, m = firsts.shape[1], len(second)
    pooled = np.hstack([firsts, np.tile(np.asarray(second, dtype=float), (len(firsts), 1))]).T
    sums = _splits(n, m) @ pooled
    apart = np.abs(sums / n - (pooled.sum(axis=0) - sums) / m)
    observed = np.abs(pooled[:n].mean(axis=0) - pooled[n:].mean(axis=0))
    return np.asarray((apart >= observed - ROUNDING).mean(axis=0))


def seeds_needed(tests: int) -> int:
    """The fewest seeds per scheme with which `permutation_p` can be 0.05 or less after Holm."""
    return next(n for n in itertools.count(FEWEST) if tests * 2 / math.comb(2 * n, n) <= ALPHA)


@cache
def _splits(first: int, second: int) -> np.ndarray:
    """Which of the pooled seeds form the first group: a row of zeros and ones per split."""
    both = first + second
    if math.comb(both, first) <= RESAMPLES:
        chosen = np.array(list(itertools.combinations(range(both), first)))
    else:
        drawn = np.random.default_rng(0).random((RESAMPLES, both)).argsort(axis=1)
        chosen = np.vstack([np.arange(both), drawn])[:, :first]
    splits = np.zeros((len(chosen), both))
    np.put_along_axis(splits, chosen, 1.0, axis=1)
    return splits


def sign_flip_p(differences: Sequence[float] | np.ndarray) -> float:
    """Two-sided p-value of a mean difference of paired seeds under random signs; at least 2 / 2^pairs.

    All sign patterns up to 16 pairs, then a fixed sample. NaN below three pairs.
    """
    d = np.asarray(differences, dtype=float)
    if not _enough(d):
        return NAN
    means = np.abs(_signs(len(d)) @ d)
    return float((means >= abs(d.sum()) - ROUNDING).mean())


@cache
def _signs(pairs: int) -> np.ndarray:
    if pairs <= MOST_FLIPS:
        return np.array(list(itertools.product([1.0, -1.0], repeat=pairs)))
    drawn = np.random.default_rng(0).choice([1.0, -1.0], size=(RESAMPLES, pairs))
    return np.vstack([np.ones(pairs), drawn])


def equivalence_p(differences: Sequence[float] | np.ndarray, margin: float) -> float:
    """p-value of "the mean difference of paired seeds is ``margin`` or more in size" (two one-sided tests).

    Each side is an exact sign-flip test, which assumes that differences are symmetric around their mean. With
    five pairs the p-value is at least 1 / 32, reached only if all of them lie within the margin. NaN below
    three pairs.
    """
    d = np.asarray(differences, dtype=float)
    if not _enough(d):
        return NAN
    sides = (margin - d, margin + d)
    return max(float((_signs(len(d)) @ side >= side.sum() - ROUNDING).mean()) for side in sides)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjustment (1979). NaN (not tested) stays NaN and does not count as a test."""
    adjusted = [NAN] * len(p_values)
    known = sorted((p, index) for index, p in enumerate(p_values) if not np.isnan(p))
    largest = 0.0
    for rank, (p, index) in enumerate(known):
        largest = max(largest, min(1.0, (len(known) - rank) * p))
        adjusted[index] = largest
    return adjusted


def letters(names: Sequence[str], separated: Iterable[tuple[str, str]]) -> dict[str, str]:
    """A compact letter display: two names share a letter if and only if they are not separated.

    Letters are given in the order of the names. Source: Piepho 2004, insert and absorb.
    """
    groups = [frozenset(names)] if names else []
    for first, second in separated:
        split = [g - {out} for g in groups for out in ((first, second) if {first, second} <= g else ("",))]
        groups = [g for g in dict.fromkeys(split) if not any(g < other for other in split)]
    groups.sort(key=lambda group: sorted(names.index(name) for name in group))
    # a to z, then a2 to z2 and so on
    marks = [chr(ord("a") + n % 26) + (str(n // 26 + 1) if n >= 26 else "") for n in range(len(groups))]
    return {name: "".join(m for m, g in zip(marks, groups, strict=True) if name in g) for name in names}


def detectable_difference(groups: Sequence[Sequence[float] | np.ndarray]) -> float:
    """The smallest true difference between two schemes that a t test of their seeds finds in 80 % of studies.

    ``shift * sqrt(2 / n) * s``: s is the standard deviation over seeds pooled over the schemes, n the seeds
    of the scheme with the fewest, and shift that of the noncentral t distribution with 2n - 2 degrees of
    freedom at which the two-sided test at 0.05 has this power. With 5, 10, 20 seeds 2.02, 1.32, 0.91 times s.
    For one test, not adjusted for others. ``groups`` are the seeds of each scheme; NaN with fewer than two
    schemes or three seeds.
    """
    arrays = [np.asarray(group, dtype=float) for group in groups]
    if len(arrays) < 2 or not all(map(_enough, arrays)):
        return NAN
    seeds = min(map(len, arrays))
    squares = sum(float(((group - group.mean()) ** 2).sum()) for group in arrays)
    pooled = math.sqrt(squares / sum(len(group) - 1 for group in arrays))
    return shift_at_power(2 * seeds - 2) * math.sqrt(2 / seeds) * pooled


def detectable_change(differences: Sequence[float] | np.ndarray) -> float:
    """`detectable_difference` for paired seeds: ``shift / sqrt(n) * s`` with n - 1 degrees of freedom.

    With 5, 10, 20 pairs 1.68, 1.00, 0.66 times the standard deviation s of the differences.
    """
    d = np.asarray(differences, dtype=float)
    if not _enough(d):
        return NAN
    return shift_at_power(len(d) - 1) / math.sqrt(len(d)) * float(d.std(ddof=1))


@cache
def shift_at_power(freedom: int) -> float:
    """Noncentrality at which a two-sided t test has 80 % power."""
    critical = float(stats.t.ppf(1 - ALPHA / 2, freedom))

    def lacking(shift: float) -> float:
        return float(stats.nct.sf(critical, freedom, shift)) - POWER

    return float(optimize.brentq(lacking, 0.01, 20.0))


def probability_of_improvement(scheme: Sequence[float], other: Sequence[float]) -> float:
    """Share of all pairs of runs in which the run of the first scheme is better; ties count half.

    Source: Agarwal et al. 2021, arXiv:2108.13264, section 4.3 (the Mann-Whitney statistic).
    """
    if len(scheme) == 0 or len(other) == 0 or np.isnan([*scheme, *other]).any():
        return NAN
    apart = np.asarray(scheme, float)[:, None] - np.asarray(other, float)[None]
    return float((apart > ROUNDING).mean() + 0.5 * (np.abs(apart) <= ROUNDING).mean())


def shared_differences(first: Mapping[int, float], second: Mapping[int, float]) -> np.ndarray:
    """First minus second, at the seeds that both have."""
    return np.array([first[seed] - second[seed] for seed in sorted(set(first) & set(second))], dtype=float)
