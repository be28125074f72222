"""Better, worse or not separated: schemes on one task, within the settings that all of them met.

``scores`` are those of `scores.scores_of`, [settings, schemes], NaN where the task was not learned. A
scheme is compared if it learned the task in `ENOUGH` of the settings, with signs of differences flipped
within settings and Holm's method over the others.

The verdicts on a scheme that has not met all settings are forecast (stochastic curtailment, Lan, Simon and
Halperin 1982): in a further setting it differs from the others as in one of those so far (an urn of Polya).
With the weight of `PRIOR` settings nothing is known about it: signs are random, and whether it learns the
task is as of one of the others there.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from statistics import fmean

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
ENOUGH = 0.75  # of the settings: in so many a scheme must have learned a task to be compared
EARLIEST = 4  # settings before a forecast
FEWEST_TURNING = 10  # settings in which the factor on which a sign depends can be told from chance
PRIOR = 2.0  # settings
FUTURES = 200
SIMULATIONS = 4_000  # of encodings that are equally good
TURNS = 0.02  # beyond it on both sides, a difference has turned around


@dataclass(frozen=True)
class Difference:
    """A scheme less another, over the settings in which both learned the task."""

    verdict: str
    settings: int
    interval: Interval  # at the level of its test, so that the two agree; NaN where there is no test
    p: float  # adjusted


@dataclass(frozen=True)
class Forecast:
    """The verdict that all settings will most likely give, and the probability that they give another."""

    verdict: str
    change: float


def verdicts_on(scores: pd.DataFrame, mine: str) -> dict[str, Difference]:
    """A scheme against every other."""
    others = scores.drop(columns=mine)
    apart = -others.sub(scores[mine], axis=0)
    words, ps = _verdicts(apart.to_numpy()[None], scores[[mine]].notna().to_numpy().T, _learned(others))
    made, left = dict[str, Difference](), int((~np.isnan(ps)).sum())
    table = pd.DataFrame({"word": words[0], "p": ps[0], "holm": holm(ps[0])}, index=others.columns)
    for name, word, _, p in table.sort_values("p", kind="stable").itertuples():
        d = apart[name].dropna().to_numpy(float)
        tested = word in TESTED
        interval = paired_interval(d, ALPHA / left) if tested else Interval(math.nan)
        made[str(name)] = Difference(str(word), len(d) if tested else 0, interval, float(p))
        left -= word in (BETTER, WORSE)  # the level of the first not separated holds for all that follow
    return {str(name): made[str(name)] for name in others}


def best(scores: pd.DataFrame) -> tuple[str, dict[str, Difference]]:
    """The scheme with the highest mean of those that learned the task often enough, and its differences.

    Means are over the settings in which a scheme learned the task. Without such a scheme the name is empty.
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
    """The factors on whose value it depends which of two schemes is higher, in all settings but one at most.

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


def _verdicts(apart: np.ndarray, mine: np.ndarray, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Words and p [sets, others] of differences [sets, settings, others].

    ``mine`` [sets, settings] is where the scheme learned the task; ``others`` which of them did often enough.
    """
    learned = mine.mean(axis=1) >= ENOUGH
    words = np.where(learned[:, None], np.where(others, NOT_SEPARATED, ONLY_YOURS),
                     np.where(others, ONLY_OTHER, NEITHER)).astype(object)  # fmt: skip
    ps = np.full(words.shape, math.nan)
    for index in np.flatnonzero(others):
        ps[learned, index] = paired_ps(apart[learned][:, :, index])
    adjusted = np.array([holm(row) for row in ps.tolist()])
    sums = np.nansum(apart, axis=1)
    smallest = 2.0 ** (1 - (~np.isnan(apart)).sum(axis=1)) * others.sum()  # p, if all signs agreed
    words[(words == NOT_SEPARATED) & (smallest > ALPHA)] = TOO_FEW
    words[(adjusted <= ALPHA) & (sums > 0)], words[(adjusted <= ALPHA) & (sums < 0)] = BETTER, WORSE
    return words, ps


def forecast(mine: pd.Series, others: pd.DataFrame) -> dict[str, Forecast]:
    """For each other scheme the verdict after all settings, from the scores of ``mine`` in those so far.

    Args:
        mine: by setting, NaN where the task was not learned.
        others: `scores.scores_of` of the other schemes, in all settings.
    """
    apart, learned = _futures(mine, others)
    words, _ = _verdicts(apart, learned, _learned(others))
    likely = zip(others, (Counter(column.tolist()).most_common(1)[0] for column in words.T), strict=True)
    return {str(name): Forecast(word, 1 - often / FUTURES) for name, (word, often) in likely}


def _futures(mine: pd.Series, others: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Differences [futures, settings, others], and where the scheme learned the task [futures, settings]."""
    draw, each = np.random.default_rng(0), np.arange(FUTURES)
    apart = np.tile(-others.loc[mine.index].sub(mine, axis=0).to_numpy(float), (FUTURES, 1, 1))
    learned = np.tile(mine.notna().to_numpy(), (FUTURES, 1))
    for there in others.drop(index=mine.index).to_numpy(float):
        count = learned.shape[1]
        own, other = draw.integers(count, size=FUTURES), draw.integers(len(there), size=FUTURES)
        free = draw.random(FUTURES) < PRIOR / (PRIOR + count)
        signs = np.where(free[:, None], draw.choice([-1.0, 1.0], size=(FUTURES, len(there))), 1.0)
        known = np.where(free, ~np.isnan(there[other]), learned[each, own])
        row = np.where(known[:, None], apart[each, own] * signs, np.nan)
        apart = np.concatenate([apart, row[:, None]], axis=1)
        learned = np.concatenate([learned, known[:, None]], axis=1)
    return apart, learned


def may_stop(forecasts: Iterable[Forecast], change: float) -> bool:
    """Whether further settings are expected to change a smaller share of these verdicts than ``change``."""
    return fmean(one.change for one in forecasts) < change
