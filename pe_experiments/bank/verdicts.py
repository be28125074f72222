"""Compare encodings on one task, within shared configurations: better, worse or not separated (tied).

``scores`` come from `scores.scores_by_setting`: [configurations, encodings], NaN where the task was not
learned. An encoding is compared if it learned the task in at least the share `ENOUGH` of configurations. The
tests flip signs of differences within configurations and are adjusted by Holm's method.
"""

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd

from pe_experiments.comparison.statistics import ALPHA, ROUNDING, Interval, holm, paired_interval, paired_ps

BETTER, WORSE, NOT_SEPARATED = "better", "worse", "not separated"
TOO_FEW = "too few settings"  # even if all differences had the same sign
ONLY_YOURS, NEITHER = "only yours often enough", "neither often enough"  # learned
ONLY_OTHER = "only the other often enough"
SIGNS = {BETTER: "+", WORSE: "-", NOT_SEPARATED: "=", TOO_FEW: "."}
SIGNS |= {ONLY_YOURS: "(+)", ONLY_OTHER: "(-)", NEITHER: "0"}
TESTED = (BETTER, WORSE, NOT_SEPARATED)
ENOUGH = 0.75  # share of configurations in which an encoding must learn a task to be compared
FEWEST_TURNING = 10  # configurations needed to tell the factor on which a sign depends from chance
SIMULATIONS = 4_000  # number of simulated sets of equally good encodings
TURNS = 0.02  # smallest difference, on both sides, that counts as a change of sign


@dataclass(frozen=True)
class Difference:
    """An encoding minus another, over the configurations in which both learned the task."""

    verdict: str
    settings: int
    interval: Interval  # at the level of the test, so that both agree; NaN without a test
    p: float  # adjusted


def verdicts_on(scores: pd.DataFrame, encoding: str) -> dict[str, Difference]:
    """Return the differences between an encoding and every other, by the name of the other."""
    others = scores.drop(columns=encoding)
    differences = -others.sub(scores[encoding], axis=0)
    learned = bool(_learned_often(scores[[encoding]])[0])
    words, ps = _verdicts(differences.to_numpy(), learned, _learned_often(others))
    table = pd.DataFrame({"verdict": words, "p": ps, "p_holm": holm(ps.tolist())}, index=others.columns)
    tests_left = int(table["p"].notna().sum())
    by_name: dict[str, Difference] = {}
    for name, verdict, _, p_holm in table.sort_values("p", kind="stable").itertuples():
        settings = 0
        interval = Interval(math.nan)
        if verdict in TESTED:
            pairs = differences[name].dropna().to_numpy(float)
            settings = len(pairs)
            interval = paired_interval(pairs, ALPHA / tests_left)
        by_name[str(name)] = Difference(str(verdict), settings, interval, float(p_holm))
        if verdict in (BETTER, WORSE):  # all later ones have the level of the first tie
            tests_left -= 1
    return {str(name): by_name[str(name)] for name in others}


def best(scores: pd.DataFrame) -> tuple[str, dict[str, Difference]]:
    """Return the encoding with the highest mean and its differences from every other.

    Only encodings that learned the task often enough can be best; if there is none, the name is empty. Means
    are over the configurations in which an encoding learned the task.
    """
    means = scores.mean()[_learned_often(scores)]
    if means.empty:
        return "", {}
    first = str(means.idxmax())
    return first, verdicts_on(scores, first)


def calibrated_p(p: float, encodings: int, settings: int) -> float:
    """Return the probability of such a small adjusted p-value for the best of equally good encodings.

    `best` selects and tests with the same scores, so its p-values are too small.
    """
    return float((_smallest_of_equals(encodings, settings) <= p + ROUNDING).mean())


@cache
def _smallest_of_equals(encodings: int, settings: int) -> np.ndarray:
    """Return simulated smallest adjusted p-values of the best against the others, for normal scores."""
    random = np.random.default_rng(0)
    differences = []
    for scores in random.normal(size=(SIMULATIONS, settings, encodings)):
        first = scores.mean(axis=0).argmax()
        differences.append(np.delete(scores[:, [first]] - scores, first, axis=1).T)
    smallest: list[float] = []
    # A hundred at a time: on a busy machine NumPy's threads make thousands of small products take a minute.
    for some in np.split(np.array(differences), SIMULATIONS // 100):
        ps = paired_ps(some.reshape(-1, settings)).reshape(len(some), -1)
        smallest += [min(holm(each)) for each in ps.tolist()]
    return np.array(smallest)


def turning_factors(differences: pd.Series, factors: pd.DataFrame) -> list[str]:
    """Return the factors whose value decides which of two encodings is higher, with at most one exception.

    Args:
        differences: by configuration, NaN where one encoding did not learn the task.
        factors: one column per factor, by configuration.
    """
    known = differences.dropna()
    if len(known) < FEWEST_TURNING:
        return []
    turning: list[str] = []
    for name in map(str, factors):
        means = known.groupby(factors[name]).mean()
        follow = ((known > 0) == (factors.loc[known.index, name] == means.idxmax())).sum()
        if means.min() < -TURNS and means.max() > TURNS and follow >= len(known) - 1:
            turning.append(name)
    return turning


def _learned_often(scores: pd.DataFrame) -> np.ndarray:
    """Return which encodings learned the task in enough configurations to be compared."""
    return scores.notna().mean().to_numpy() >= ENOUGH


def _verdicts(differences: np.ndarray, learned: bool, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return verdicts and p-values [others] of differences [configurations, others].

    ``learned`` says whether the encoding learned the task in enough configurations, ``others`` which of the
    other encodings did.
    """
    words = np.where(others, NOT_SEPARATED, ONLY_YOURS) if learned else np.where(others, ONLY_OTHER, NEITHER)
    words = words.astype(object)
    ps = np.full(words.shape, math.nan)
    if learned:
        ps[others] = paired_ps(differences.T[others])
    adjusted = np.array(holm(ps.tolist()))
    sums = np.nansum(differences, axis=0)
    smallest = 2.0 ** (1 - (~np.isnan(differences)).sum(axis=0)) * others.sum()  # p if all signs agreed
    words[(words == NOT_SEPARATED) & (smallest > ALPHA)] = TOO_FEW
    words[(adjusted <= ALPHA) & (sums > 0)] = BETTER
    words[(adjusted <= ALPHA) & (sums < 0)] = WORSE
    return words, ps
