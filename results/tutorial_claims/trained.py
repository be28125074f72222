"""Claims of tutorials that need trained models: one verdict per claim, by fixed rules.

The metric is exact match: on these tasks token accuracy past training lies at or below the bag ceiling, and
for one-token answers both are the same. Each claim is its own family for Holm's adjustment.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from pe_experiments.comparison import Runs
from pe_experiments.comparison.statistics import (
    ALPHA,
    FEWEST,
    ROUNDING,
    holm,
    mean_below_p,
    paired_ps,
    permutation_p,
)
from pe_experiments.evaluation.summary import SOLVED
from pe_experiments.published import format_mean, with_settings

from .untrained import DEPENDS, FAILS, HOLDS, UNSUPPORTED, UNTESTED, Finding

IN_DISTRIBUTION, TWICE, PAST = "exact_match_in_distribution", "exact_match_at_2x", "exact_match_extrapolation"
FURTHER = (TWICE, PAST)
WORDS = {IN_DISTRIBUTION: "in distribution", TWICE: "at 2x", PAST: "past training"}
BANK = "bank"  # in place of a width: the bank's runs, one per setting
STUDY = 64  # the width at which encodings are compared; other widths have sinusoidal only
TASKS = (("copy", STUDY), ("precedence", STUDY))
AHEAD = "lag, ahead"  # of an encoder that names the symbol four ahead
OPPOSITE = {HOLDS: FAILS, FAILS: HOLDS}

Width = int | str  # of the model, or `BANK`


class Trained:
    """The runs of the study and the bank by task, encoding and width, a row per seed or setting.

    Args:
        runs: those of the study.
        bank: the bank's runs that count, one per setting, with a column ``learned``.
    """

    def __init__(self, runs: Runs, bank: pd.DataFrame):
        rows = with_settings(runs, width="model.d_model", k="task.k")
        rows["task"] = rows["task"].mask(rows["k"].eq(-4), AHEAD)
        rows["learned"] = rows["solved_in_distribution"].eq(True)
        rows = pd.concat([rows, bank.assign(width=BANK)])
        groups: Any = rows.set_index("seed").groupby(["task", "label", "width"])
        self.groups: dict[Any, pd.DataFrame] = dict(list(groups))
        banked = sorted(set(map(str, bank["task"])) - {"majority"})  # which needs no order
        here = [(task, width) for task, width in TASKS if task not in banked]
        self.everywhere: list[tuple[str, Width]] = [*((task, BANK) for task in banked), *here]
        self.chance = runs.curves[runs.curves["in_summary"].eq(True)].groupby("task")["chance"].mean()

    def of(self, task: str, encoding: str, width: Width = STUDY) -> pd.DataFrame:
        return self.groups[task, encoding, width]

    def learned(self, task: str, encoding: str, width: Width = STUDY) -> bool:
        """Return whether at least half of the runs learned the task."""
        return bool(self.of(task, encoding, width)["learned"].mean() >= 0.5)

    def values(self, task: str, encoding: str, width: Width, metric: str) -> pd.Series:
        """Return a metric; of the bank past training only in settings in which the task was learned."""
        runs = self.of(task, encoding, width)
        if width == BANK and metric != IN_DISTRIBUTION:
            runs = runs[runs["learned"]]
        return runs[metric]


@dataclass(frozen=True)
class Difference:
    """The mean of one encoding less that of another, which the claim says is worse, and its test.

    ``p`` is NaN where all runs have the same value, so that nothing can be tested.
    """

    mean: float
    p: float


def over_seeds(first: pd.Series, second: pd.Series) -> Difference:
    """Return a difference, tested by permuting seeds."""
    same = np.ptp([*first, *second]) <= ROUNDING
    return Difference(
        float(first.mean() - second.mean()), math.nan if same else permutation_p([*first], [*second])
    )


def within_settings(first: pd.Series, second: pd.Series) -> Difference:
    """Return a difference, tested by flipping signs within the settings that both have."""
    differences = (first - second).dropna().to_numpy(float)
    if len(differences) == 0:
        return Difference(0.0, math.nan)
    same = np.abs(differences).max() <= ROUNDING
    return Difference(float(differences.mean()), math.nan if same else float(paired_ps(differences[None])[0]))


Differences = Mapping[str, Difference | None]  # by name, task first; None where an encoding did not learn it


def difference(
    t: Trained, task: str, metric: str, first: tuple[str, Width], second: tuple[str, Width]
) -> Difference | None:
    """Return the difference of two encodings; None past training where one did not learn the task."""
    if metric != IN_DISTRIBUTION and not (t.learned(task, *first) and t.learned(task, *second)):
        return None
    test = within_settings if first[1] == BANK else over_seeds
    return test(t.values(task, *first, metric), t.values(task, *second, metric))


def judge_differences(differences: Differences) -> Finding:
    """Return these differences in words, and the verdict: holds or fails by the tests after Holm, or depends.

    Significant tests on one task decide only where it is the only one; else not supported, or not tested.
    """
    learned = {name: difference for name, difference in differences.items() if difference is not None}
    adjusted = holm([difference.p for difference in learned.values()])
    tested = {name: p for name, p in zip(learned, adjusted, strict=True) if not np.isnan(p)}
    parts = [f"{name} {round(learned[name].mean, 2) + 0.0:+.2f} (p {p:.2g})" for name, p in tested.items()]
    if len(tested) < len(learned):
        count = len(learned) - len(tested)
        parts.append(f"{count} not tested: all runs have the same value, or there are fewer than three")
    if len(learned) < len(differences):
        parts.append(f"{len(differences) - len(learned)} not tested: an encoding did not learn the task")
    decided = {name: learned[name].mean for name, p in tested.items() if p <= ALPHA}
    tasks, all_tasks = ({name.partition(",")[0] for name in names} for names in (decided, differences))
    verdict = UNSUPPORTED if tested else UNTESTED
    if len(tasks) >= min(2, len(all_tasks)):
        verdict = HOLDS if min(decided.values()) > 0 else FAILS if max(decided.values()) < 0 else DEPENDS
    return "; ".join(parts) + ".", verdict


def solved(values: pd.Series, tests: int = 1) -> bool | None:
    """Return whether every value reaches 0.9; False if the mean is below (Bonferroni), else None."""
    if len(values) < FEWEST:
        return None
    if values.min() >= SOLVED:
        return True
    return False if tests * mean_below_p(list(values), SOLVED) <= ALPHA else None


def judge_trained(t: Trained) -> dict[str, Finding]:
    """Return, by claim, what was measured of trained models, and the verdict."""
    fixed, (beyond, works) = judge_reach(t, "sinusoidal"), judge_reach(t, "learned")
    return {
        "A trained encoder needs positions to know what comes first": judge_order(t),
        "Relative positions are easily learnt": judge_offset(t, "lag"),
        "Training easily finds attention to the word four ahead": judge_offset(t, AHEAD),
        "Add, do not concatenate (a larger vector)": judge_concatenation(t, 2 * STUDY),
        "Add, do not concatenate (a vector as large)": judge_concatenation(t, STUDY),
        "Fixed sinusoids generalise to lengths not seen": fixed,
        "Fixed sinusoids can generalise to longer sequences": ("As above.", fixed[1]),
        "Learned positions do not generalise to lengths not seen": (beyond, OPPOSITE.get(works, works)),
        "Learned positions adapt better to the task": judge_pair(
            t, t.everywhere, [IN_DISTRIBUTION], "learned", "sinusoidal"
        ),
        "Fixed sinusoids reach further than learned positions": judge_pair(
            t, t.everywhere, FURTHER, "sinusoidal", "learned"
        ),
        "A learned table should start from sinusoids": judge_pair(
            t, TASKS, FURTHER, "learned_sinusoidal", "learned"
        ),
        "Sinusoids reach further than no positions": judge_pair(
            t, t.everywhere, FURTHER, "sinusoidal", "none"
        ),
    }


def judge_order(t: Trained) -> Finding:
    none, sinusoidal = (t.of("precedence", encoding)[IN_DISTRIBUTION] for encoding in ("none", "sinusoidal"))
    measured = f"Exact match in distribution: none {format_mean(none)}, sinusoidal "
    measured += f"{format_mean(sinusoidal)}; guessing gives {t.chance['precedence']:.2f}."
    _, verdict = judge_differences({"precedence": over_seeds(sinusoidal, none)})
    if verdict == HOLDS and (t.learned("precedence", "none") or not t.learned("precedence", "sinusoidal")):
        verdict = DEPENDS
    return measured, verdict


def judge_offset(t: Trained, task: str) -> Finding:
    runs = t.of(task, "sinusoidal")
    within, twice = format_mean(runs[IN_DISTRIBUTION]), format_mean(runs[TWICE])
    verdict = {True: HOLDS, False: DEPENDS, None: UNSUPPORTED}[solved(runs[TWICE])]
    measured = f"Exact match in distribution: {within}; at 2x: {twice}."
    return measured, verdict if t.learned(task, "sinusoidal") else FAILS


def judge_concatenation(t: Trained, width: int) -> Finding:
    """Judge adding against concatenation in a model of that width, in distribution and past training."""
    differences = {}
    for (task, _), encoding, metric in product(TASKS, ("sinusoidal", "learned"), (IN_DISTRIBUTION, PAST)):
        concatenated = (f"{encoding}(combine=concat)", width)
        name = f"{task}, {encoding}, {WORDS[metric]}"
        differences[name] = difference(t, task, metric, (encoding, STUDY), concatenated)
    return judge_differences(differences)


def judge_pair(
    t: Trained, tasks: Sequence[tuple[str, Width]], metrics: Sequence[str], first: str, second: str
) -> Finding:
    """Judge whether the first encoding is better by these metrics on these tasks, each with a width."""
    differences = {}
    for (task, width), metric in product(tasks, metrics):
        name = f"{task}, {WORDS[metric]}"
        differences[name] = difference(t, task, metric, (first, width), (second, width))
    return judge_differences(differences)


def judge_reach(t: Trained, encoding: str) -> Finding:
    """Judge whether an encoding works at twice the length on all tasks that it learned, on none, or some."""
    decided, words = [], []
    for task, width in t.everywhere:
        twice = t.values(task, encoding, width, TWICE)
        if not t.learned(task, encoding, width):
            words.append(f"{task} not learned")
            continue
        words.append(f"{task} {format_mean(twice, 'setting' if width == BANK else 'seed')}")
        works = solved(twice, len(t.everywhere))
        if works is not None:
            decided.append(works)
    verdict = HOLDS if all(decided) else DEPENDS if any(decided) else FAILS
    if len(decided) < min(2, len(t.everywhere)):
        verdict = UNSUPPORTED
    return f"At 2x: {'; '.join(words)}.", verdict
