"""Claims of tutorials that need trained models: one verdict per claim, by fixed rules.

The metric is exact match: on these tasks token accuracy past training lies at or below the bag ceiling, and
for one-token answers both are the same. Each claim is its own family for Holm's adjustment.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from pe_experiments.comparison import Runs, statistics
from pe_experiments.comparison.statistics import ALPHA, holm
from pe_experiments.evaluation.summary import SOLVED
from pe_experiments.published import mean_in_words, with_settings
from pe_experiments.terminal.errors import UserError

from .untrained import DEPENDS, FAILS, HOLDS, UNSUPPORTED, UNTESTED, Finding

IN_DISTRIBUTION, TWICE, PAST = "exact_match_in_distribution", "exact_match_at_2x", "exact_match_extrapolation"
FURTHER = (TWICE, PAST)
WORDS = {IN_DISTRIBUTION: "in distribution", TWICE: "at 2x", PAST: "past training"}
TASKS = (("copy", 0), ("precedence", 0))  # and their widths; 0 is that of the study
AHEAD = "lag, ahead"  # of an encoder that names the symbol four ahead
OPPOSITE = {HOLDS: FAILS, FAILS: HOLDS}
BANK = -1  # in place of a width: the bank's runs, one per setting


class Trained:
    """The runs of the study by task, encoding and width.

    ``bank`` are the bank's runs that count, one per setting, with a column ``learned``; ``everywhere`` the
    bank's tasks that need order and the encoder's, with their widths.
    """

    def __init__(self, runs: Runs, bank: pd.DataFrame):
        table = with_settings(runs, width="model.d_model", k="task.k")
        table["task"] = table["task"].mask(table["k"].eq(-4), AHEAD)
        table["learned"] = table["solved_in_distribution"].eq(True)
        self.longest = int(table["max_length"].iloc[0])
        # Encodings are compared at the width of the learned ones; other widths have sinusoidal only.
        self.width = int(table.loc[table["label"] == "learned", "width"].iloc[0])
        groups: Any = table.set_index("seed").groupby(["task", "label", "width"])
        self.groups: dict[Any, pd.DataFrame] = dict(list(groups))
        for (title, encoding), own in bank.groupby(["task", "label"]):
            self.groups[title, encoding, BANK] = own.set_index("seed")
        banked = sorted(set(map(str, bank["task"])) - {"majority"})  # which needs no order
        mine = [task for task in ("copy", "precedence") if task not in banked]
        self.everywhere = [*((task, BANK) for task in banked), *((task, 0) for task in mine)]
        self.chance = runs.curves[runs.curves["in_summary"].eq(True)].groupby("task")["chance"].mean()

    def of(self, task: str, encoding: str, width: int = 0) -> pd.DataFrame:
        """A row per seed or setting; ``width`` 0 means `self.width`."""
        found = self.groups.get((task, encoding, width or self.width))
        if found is None:
            at = f"{task}, {encoding} at d_model={width or self.width}"
            raise UserError(f"tutorial_claims has no runs of {at}; finish sweep=tutorial_claims")
        return found

    def learnt(self, task: str, encoding: str, width: int = 0) -> bool:
        """Whether at least half of the runs learned the task."""
        return bool(self.of(task, encoding, width)["learned"].mean() >= 0.5)

    def values(self, task: str, encoding: str, width: int, metric: str) -> pd.Series:
        """Of the bank only in settings in which the task was learned, unless the metric says how well."""
        runs = self.of(task, encoding, width)
        kept = width != BANK or metric == IN_DISTRIBUTION
        return runs[metric] if kept else runs.loc[runs["learned"], metric]


@dataclass(frozen=True)
class Difference:
    """The mean of one encoding less that of another, which the claim says is worse, and its test.

    ``p`` is NaN where all runs have the same value, so that nothing can be tested.
    """

    mean: float
    p: float


def over_seeds(first: pd.Series, second: pd.Series) -> Difference:
    """By the permutation test."""
    same = np.ptp([*first, *second]) <= statistics.ROUNDING
    p = math.nan if same else statistics.permutation_p(list(first), list(second))
    return Difference(float(first.mean() - second.mean()), p)


def within_settings(first: pd.Series, second: pd.Series) -> Difference:
    """By flipping signs within the settings that both have."""
    d = (first - second).dropna().to_numpy(float)
    apart = np.abs(d).max(initial=0.0) > statistics.ROUNDING
    p = float(statistics.paired_ps(d[None])[0]) if apart else math.nan
    return Difference(float(d.sum() / max(1, len(d))), p)


Side = tuple[str, int]  # encoding, or task, and width
Differences = Mapping[str, Difference | None]  # by name, task first; None where an encoding did not learn it


def difference(t: Trained, task: str, metric: str, *sides: Side) -> Difference | None:
    """First encoding against second; None past training where one did not learn the task."""
    if metric != IN_DISTRIBUTION and not all(t.learnt(task, *side) for side in sides):
        return None
    first, second = (t.values(task, *side, metric) for side in sides)
    return (within_settings if sides[0][1] == BANK else over_seeds)(first, second)


def weighed(differences: Differences) -> Finding:
    """These differences in words, and the verdict: holds or fails by the tests after Holm, or depends.

    Significant tests on one task decide only where it is the only one; else not supported, or not tested.
    """
    made = {name: difference for name, difference in differences.items() if difference is not None}
    adjusted = holm([difference.p for difference in made.values()])
    tested = {name: p for name, p in zip(made, adjusted, strict=True) if not np.isnan(p)}
    parts = [f"{name} {round(made[name].mean, 2) + 0.0:+.2f} (p {p:.2g})" for name, p in tested.items()]
    if untested := len(made) - len(tested):
        parts.append(f"{untested} not tested: all runs have the same value, or there are fewer than three")
    if unlearnt := len(differences) - len(made):
        parts.append(f"{unlearnt} not tested: an encoding did not learn the task")
    decided = {name: made[name].mean for name, p in tested.items() if p <= ALPHA}
    where, tried = ({name.partition(",")[0] for name in several} for several in (decided, differences))
    verdict = UNSUPPORTED if tested else UNTESTED
    if len(where) >= min(2, len(tried)):
        verdict = HOLDS if min(decided.values()) > 0 else FAILS if max(decided.values()) < 0 else DEPENDS
    return "; ".join(parts) + ".", verdict


def solved(values: pd.Series, tests: int = 1) -> bool | None:
    """Whether every one reaches 0.9; False only if the mean is below (Bonferroni over tests), else None."""
    if len(values) < statistics.FEWEST:
        return None
    if values.min() >= SOLVED:
        return True
    return False if tests * statistics.mean_below_p(list(values), SOLVED) <= ALPHA else None


def of_training(t: Trained) -> dict[str, Finding]:
    """By claim what was measured of trained models, and the verdict."""
    fixed, (beyond, works) = reach(t, "sinusoidal"), reach(t, "learned")
    adapted = compared(t, t.everywhere, [IN_DISTRIBUTION], "learned", "sinusoidal")
    initialised = compared(t, TASKS, FURTHER, "learned_sinusoidal", "learned")
    further = compared(t, t.everywhere, FURTHER, "sinusoidal", "learned")
    return {
        "A trained encoder needs positions to know what comes first": order(t),
        "Relative positions are easily learnt": offset(t, "lag"),
        "Training easily finds attention to the word four ahead": offset(t, AHEAD),
        "Add, do not concatenate (a larger vector)": weighed(added_or_concatenated(t, 2 * t.width)),
        "Add, do not concatenate (a vector as large)": weighed(added_or_concatenated(t, t.width)),
        "Fixed sinusoids generalise to lengths not seen": fixed,
        "Fixed sinusoids can generalise to longer sequences": ("As above.", fixed[1]),
        "Learned positions do not generalise to lengths not seen": (beyond, OPPOSITE.get(works, works)),
        "Learned positions adapt better to the task": adapted,
        "Fixed sinusoids reach further than learned positions": further,
        "A learned table should start from sinusoids": initialised,
        "Sinusoids reach further than no positions": compared(t, t.everywhere, FURTHER, "sinusoidal", "none"),
    }


def order(t: Trained) -> Finding:
    none, sinusoidal = (t.of("precedence", encoding)[IN_DISTRIBUTION] for encoding in ("none", "sinusoidal"))
    measured = f"Exact match in distribution: none {mean_in_words(none)}, sinusoidal "
    measured += f"{mean_in_words(sinusoidal)}; guessing gives {t.chance['precedence']:.2f}."
    _, verdict = weighed({"precedence": over_seeds(sinusoidal, none)})
    if verdict == HOLDS and (t.learnt("precedence", "none") or not t.learnt("precedence", "sinusoidal")):
        verdict = DEPENDS
    return measured, verdict


def offset(t: Trained, task: str) -> Finding:
    runs = t.of(task, "sinusoidal")
    within, twice = mean_in_words(runs[IN_DISTRIBUTION]), mean_in_words(runs[TWICE])
    verdict = {True: HOLDS, False: DEPENDS, None: UNSUPPORTED}[solved(runs[TWICE])]
    measured = f"Exact match in distribution: {within}; at 2x: {twice}."
    return measured, verdict if t.learnt(task, "sinusoidal") else FAILS


def added_or_concatenated(t: Trained, width: int) -> Differences:
    """Added minus put beside the token in a model of that width, in distribution and past training."""
    return {
        f"{task}, {name}, {WORDS[of]}": difference(t, task, of, (name, 0), (f"{name}(combine=concat)", width))
        for task, name, of in product(
            ("copy", "precedence"), ("sinusoidal", "learned"), (IN_DISTRIBUTION, PAST)
        )
    }


def reach(t: Trained, encoding: str) -> Finding:
    """Whether the encoding works at twice the length on all tasks that it learned, on none, or on some."""
    found, shown = list[bool | None](), []
    for task, width in t.everywhere:
        twice, learnt = t.values(task, encoding, width, TWICE), t.learnt(task, encoding, width)
        found += [solved(twice, len(t.everywhere))] if learnt else []
        words = mean_in_words(twice, "setting" if width == BANK else "seed")
        shown.append(f"{task} {words if learnt else 'not learned'}")
    decided = [one for one in found if one is not None]
    if len(decided) < min(2, len(t.everywhere)):
        return f"At 2x: {'; '.join(shown)}.", UNSUPPORTED
    return f"At 2x: {'; '.join(shown)}.", HOLDS if all(decided) else DEPENDS if any(decided) else FAILS


def compared(t: Trained, tasks: Sequence[Side], metrics: Sequence[str], first: str, second: str) -> Finding:
    """Whether the first encoding is better by these metrics on these tasks, each with a width."""
    made = {}
    for (task, width), metric in product(tasks, metrics):
        made[f"{task}, {WORDS[metric]}"] = difference(t, task, metric, (first, width), (second, width))
    return weighed(made)
