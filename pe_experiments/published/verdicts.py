"""Better, worse or not separated: encodings on one task, within the settings that all of them met.

``scores`` are those of `scores.scores_of`, [settings, encodings], NaN where the task was not learned. A
encoding is compared if it learned the task in `ENOUGH` of the settings, with signs of differences flipped
within settings and Holm's method over the others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd

from pe_experiments.comparison.statistics import ALPHA, ROUNDING, Interval, holm, paired_interval, paired_ps

BETTER, WORSE, NOT_SEPARATED = "better", "worse", "not separated"
TOO_FEW = "too few settings"  # even if all agreed
ONLY_YOURS, NEITHER = "only yours often enough", "neither often enough"  # learned the task
ONLY_OTHER = "only the other often enough"
SIGNS = {BETTER: "+", WORSE: "-", NOT_SEPARATED: "=", TOO_FEW: "."}
SIGNS |= {ONLY_YOURS: "(+)", ONLY_OTHER: "(-)", NEITHER: "0"}
TESTED = (BETTER, WORSE, NOT_SEPARATED)
ENOUGH = 0.75  # of the settings: in so many an encoding must have learned a task to be compared
FEWEST_TURNING = 10  # settings in which the factor on which a sign depends can be told from chance
SIMULATIONS = 4_000  # of encodings that are equally good
TURNS = 0.02  # beyond it on both sides, a difference has turned around


@dataclass(frozen=True)
class Difference:
    """An encoding less another, over the settings in which both learned the task."""

    verdict: str
    settings: int
    interval: Interval  # at the level of its test, so that the two agree; NaN where there is no test
    p: float  # adjusted


def verdicts_on(scores: pd.DataFrame, mine: str) -> dict[str, Difference]:
    """An encoding against every other."""
    others = scores.drop(columns=mine)
    apart = -others.sub(scores[mine], axis=0)
    words, ps = _verdicts(apart.to_numpy(), bool(_learned(scores[[mine]])[0]), _learned(others))
    made, left = dict[str, Difference](), int((~np.isnan(ps)).sum())
    table = pd.DataFrame({"word": words, "p": ps, "holm": holm(ps.tolist())}, index=others.columns)
    for name, word, _, p in table.sort_values("p", kind="stable").itertuples():
        d = apart[name].dropna().to_numpy(float)
        tested = word in TESTED
        interval = paired_interval(d, ALPHA / left) if tested else Interval(math.nan)
        made[str(name)] = Difference(str(word), len(d) if tested else 0, interval, float(p))
        left -= word in (BETTER, WORSE)  # the level of the first not separated holds for all that follow
    return {str(name): made[str(name)] for name in others}


def best(scores: pd.DataFrame) -> tuple[str, dict[str, Difference]]:
    """The encoding with the highest mean of those that learned the task often enough, and its differences.

    Means are over the settings in which an encoding learned the task. Without such an encoding the name is
    empty.
    """
    means = scores.mean()[_learned(scores)]
    if means.empty:
        return "", {}
    first = str(means.idxmax())
    return first, verdicts_on(scores, first)


def calibrated_p(p: float, encodings: int, settings: int) -> float:
    """Chance of an adjusted p-value this small if the best of equally good encodings is compared.

    `best` chooses and tests with the same scores, so its p-values alone are too small.
    """
    return float((_smallest_of_equals(encodings, settings) <= p + ROUNDING).mean())


@cache
def _smallest_of_equals(encodings: int, settings: int) -> np.ndarray:
    """The smallest adjusted p-value of the best against the others, by simulation of normal scores."""
    random, smallest = np.random.default_rng(0), []
    for scores in random.normal(size=(SIMULATIONS, settings, encodings)):
        first = scores.mean(axis=0).argmax()
        others = np.delete(scores[:, [first]] - scores, first, axis=1)
        smallest.append(min(holm(paired_ps(others.T).tolist())))
    return np.array(smallest)


def turning(apart: pd.Series, factors: pd.DataFrame) -> list[str]:
    """Return the factors whose value decides which of two encodings is higher, save in at most one setting.

    Args:
        apart: their difference by setting, NaN where one did not learn the task.
        factors: a column per factor, by setting.
    """
    known, found = apart.dropna(), list[str]()
    for name in map(str, factors) if len(known) >= FEWEST_TURNING else ():
        means = known.groupby(factors[name]).mean()
        follow = ((known > 0) == (factors.loc[known.index, name] == means.idxmax())).sum()
        if means.min() < -TURNS and means.max() > TURNS and follow >= len(known) - 1:
            found.append(name)
    return found


def _learned(scores: pd.DataFrame) -> np.ndarray:
    return scores.notna().mean().to_numpy() >= ENOUGH


def _verdicts(apart: np.ndarray, mine: bool, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return words and p-values [others] of differences [settings, others].

    ``mine`` says whether the encoding learned the task in enough settings, ``others`` which of them did.
    """
    pair = (NOT_SEPARATED, ONLY_YOURS) if mine else (ONLY_OTHER, NEITHER)
    words = np.where(others, *pair).astype(object)
    ps = np.full(words.shape, math.nan)
    for index in np.flatnonzero(others) if mine else ():
        ps[index] = paired_ps(apart[None, :, index])[0]
    adjusted = np.array(holm(ps.tolist()))
    sums = np.nansum(apart, axis=0)
    smallest = 2.0 ** (1 - (~np.isnan(apart)).sum(axis=0)) * others.sum()  # p, if all signs agreed
    words[(words == NOT_SEPARATED) & (smallest > ALPHA)] = TOO_FEW
    words[(adjusted <= ALPHA) & (sums > 0)] = BETTER
    words[(adjusted <= ALPHA) & (sums < 0)] = WORSE
    return words, ps
