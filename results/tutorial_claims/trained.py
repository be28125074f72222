"""Judge claims of tutorials that need trained models.

The metric is exact match, since on these tasks token accuracy past training is at or below the bag ceiling;
for one-token answers both are equal. Holm's correction is applied within each claim.
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
from pe_experiments.studies import format_mean, with_settings

from .untrained import DEPENDS, FAILS, HOLDS, UNSUPPORTED, UNTESTED, Finding

IN_DISTRIBUTION, TWICE, PAST = "exact_match_in_distribution", "exact_match_at_2x", "exact_match_extrapolation"
FURTHER = (TWICE, PAST)
WORDS = {IN_DISTRIBUTION: "in distribution", TWICE: "at 2x", PAST: "past training"}
BANK = "bank"  # used as a width: the runs of the bank, one per setting
STUDY = 64  # the width at which encodings are compared
TASKS = (("copy", STUDY), ("precedence", STUDY))
AHEAD = "lag, ahead"  # an encoder names the symbol four positions ahead
OPPOSITE = {HOLDS: FAILS, FAILS: HOLDS}

Width = int | str  # of the model, or `BANK`


class Trained:
    """The runs of the study and the bank by task, encoding and width, a row per seed or setting.

    Args:
        runs: the runs of the study.
        bank: the runs of the bank at the better learning rate, one per setting, with a column ``learned``.
    """

    def __init__(self, runs: Runs, bank: pd.DataFrame):
        rows = with_settings(runs, width="model.d_model", k="task.k")
        rows["task"] = rows["task"].mask(rows["k"].eq(-4), AHEAD)
        rows["learned"] = rows["solved_in_distribution"].eq(True)
        rows = pd.concat([rows, bank.assign(width=BANK)])
        groups: Any = rows.set_index("seed").groupby(["task", "label", "width"])
        self.groups: dict[Any, pd.DataFrame] = dict(list(groups))
        bank_tasks = sorted(set(map(str, bank["task"])) - {"majority"})  # majority does not depend on order
        study_tasks = [(task, width) for task, width in TASKS if task not in bank_tasks]
        self.everywhere: list[tuple[str, Width]] = [*((task, BANK) for task in bank_tasks), *study_tasks]
        self.chance = runs.curves[runs.curves["in_summary"].eq(True)].groupby("task")["chance"].mean()

    def of(self, task: str, encoding: str, width: Width = STUDY) -> pd.DataFrame:
        return self.groups[task, encoding, width]

    def learned(self, task: str, encoding: str, width: Width = STUDY) -> bool:
        """Return whether at least half of the runs learned the task."""
        return bool(self.of(task, encoding, width)["learned"].mean() >= 0.5)

    def values(self, task: str, encoding: str, width: Width, metric: str) -> pd.Series:
        """Return a metric of the runs; past training, unlearned settings of the bank are left out."""
        runs = self.of(task, encoding, width)
        if width == BANK and metric != IN_DISTRIBUTION:
            runs = runs[runs["learned"]]
        return runs[metric]


@dataclass(frozen=True)
class Difference:
    """The mean of the encoding that is claimed to be better minus the mean of the other, and its test.

    ``p`` is NaN if it cannot be tested, for example because all runs have the same value.
    """

    mean: float
    p: float


def over_seeds(first: pd.Series, second: pd.Series) -> Difference:
    """Return the difference of means, with a permutation test over seeds."""
    all_equal = np.ptp([*first, *second]) <= ROUNDING
    p = math.nan if all_equal else permutation_p([*first], [*second])
    return Difference(float(first.mean() - second.mean()), p)


def within_settings(first: pd.Series, second: pd.Series) -> Difference:
    """Return the mean difference over common settings, with a sign-flip test."""
    differences = (first - second).dropna().to_numpy(float)
    if len(differences) == 0:
        return Difference(0.0, math.nan)
    all_equal = np.abs(differences).max() <= ROUNDING
    p = math.nan if all_equal else float(paired_ps(differences[None])[0])
    return Difference(float(differences.mean()), p)


# By name, which starts with the task; None if an encoding did not learn the task.
Differences = Mapping[str, Difference | None]


def difference(
    trained: Trained, task: str, metric: str, first: tuple[str, Width], second: tuple[str, Width]
) -> Difference | None:
    """Return the difference of two encodings; None past training if either did not learn the task."""
    if metric != IN_DISTRIBUTION and not (trained.learned(task, *first) and trained.learned(task, *second)):
        return None
    test = within_settings if first[1] == BANK else over_seeds
    return test(trained.values(task, *first, metric), trained.values(task, *second, metric))


def judge_differences(differences: Differences) -> Finding:
    """Return the differences in words, and the verdict by their tests with Holm's correction.

    The signs of the significant differences decide whether the claim holds, fails or depends. If there are
    several tasks, significant differences on at least two are required.
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
    significant = {name: learned[name].mean for name, p in tested.items() if p <= ALPHA}
    significant_tasks = {name.partition(",")[0] for name in significant}
    tasks = {name.partition(",")[0] for name in differences}
    verdict = UNSUPPORTED if tested else UNTESTED
    if len(significant_tasks) >= min(2, len(tasks)):
        verdict = DEPENDS
        if min(significant.values()) > 0:
            verdict = HOLDS
        elif max(significant.values()) < 0:
            verdict = FAILS
    return "; ".join(parts) + ".", verdict


def solved(values: pd.Series, tests: int = 1) -> bool | None:
    """Return True if every value reaches `SOLVED`, False if the mean is significantly lower, else None."""
    if len(values) < FEWEST:
        return None
    if values.min() >= SOLVED:
        return True
    return False if tests * mean_below_p(list(values), SOLVED) <= ALPHA else None


def judge_trained(trained: Trained) -> dict[str, Finding]:
    """Return the finding on each claim about trained models."""
    sinusoidal_reach = judge_reach(trained, "sinusoidal")
    learned_measured, learned_verdict = judge_reach(trained, "learned")
    return {
        "A trained encoder needs positions to know what comes first": judge_order(trained),
        "Relative positions are easily learnt": judge_offset(trained, "lag"),
        "Training easily finds attention to the word four ahead": judge_offset(trained, AHEAD),
        "Add, do not concatenate (a larger vector)": judge_concatenation(trained, 2 * STUDY),
        "Add, do not concatenate (a vector as large)": judge_concatenation(trained, STUDY),
        "Fixed sinusoids generalise to lengths not seen": sinusoidal_reach,
        "Fixed sinusoids can generalise to longer sequences": ("As above.", sinusoidal_reach[1]),
        "Learned positions do not generalise to lengths not seen": (
            learned_measured,
            OPPOSITE.get(learned_verdict, learned_verdict),
        ),
        "Learned positions adapt better to the task": judge_pair(
            trained, trained.everywhere, [IN_DISTRIBUTION], "learned", "sinusoidal"
        ),
        "Fixed sinusoids reach further than learned positions": judge_pair(
            trained, trained.everywhere, FURTHER, "sinusoidal", "learned"
        ),
        "A learned table should start from sinusoids": judge_pair(
            trained, TASKS, FURTHER, "learned_sinusoidal", "learned"
        ),
        "Sinusoids reach further than no positions": judge_pair(
            trained, trained.everywhere, FURTHER, "sinusoidal", "none"
        ),
    }


def judge_order(trained: Trained) -> Finding:
    """Judge whether an encoder needs positions to learn precedence."""
    none, sinusoidal = (
        trained.of("precedence", encoding)[IN_DISTRIBUTION] for encoding in ("none", "sinusoidal")
    )
    measured = f"Exact match in distribution: none {format_mean(none)}, sinusoidal "
    measured += f"{format_mean(sinusoidal)}; guessing gives {trained.chance['precedence']:.2f}."
    _, verdict = judge_differences({"precedence": over_seeds(sinusoidal, none)})
    if verdict == HOLDS and (
        trained.learned("precedence", "none") or not trained.learned("precedence", "sinusoidal")
    ):
        verdict = DEPENDS
    return measured, verdict


def judge_offset(trained: Trained, task: str) -> Finding:
    """Judge whether sinusoids learn a relative position and use it at twice the length."""
    runs = trained.of(task, "sinusoidal")
    within, twice = format_mean(runs[IN_DISTRIBUTION]), format_mean(runs[TWICE])
    measured = f"Exact match in distribution: {within}; at 2x: {twice}."
    if not trained.learned(task, "sinusoidal"):
        return measured, FAILS
    verdict = {True: HOLDS, False: DEPENDS, None: UNSUPPORTED}[solved(runs[TWICE])]
    return measured, verdict


def judge_concatenation(trained: Trained, width: int) -> Finding:
    """Judge whether adding is better than concatenation in a model of the given width."""
    differences = {}
    for (task, _), encoding, metric in product(TASKS, ("sinusoidal", "learned"), (IN_DISTRIBUTION, PAST)):
        concatenated = (f"{encoding}(combine=concat)", width)
        name = f"{task}, {encoding}, {WORDS[metric]}"
        differences[name] = difference(trained, task, metric, (encoding, STUDY), concatenated)
    return judge_differences(differences)


def judge_pair(
    trained: Trained, tasks: Sequence[tuple[str, Width]], metrics: Sequence[str], first: str, second: str
) -> Finding:
    """Judge whether the first encoding is better than the second.

    Args:
        trained: the runs.
        tasks: tasks, each with the width at which it is compared.
        metrics: metrics to compare.
        first: the encoding that is claimed to be better.
        second: the other encoding.
    """
    differences = {}
    for (task, width), metric in product(tasks, metrics):
        name = f"{task}, {WORDS[metric]}"
        differences[name] = difference(trained, task, metric, (first, width), (second, width))
    return judge_differences(differences)


def judge_reach(trained: Trained, encoding: str) -> Finding:
    """Judge whether an encoding works at twice the length on the tasks that it learned."""
    decided, parts = [], []
    for task, width in trained.everywhere:
        twice = trained.values(task, encoding, width, TWICE)
        if not trained.learned(task, encoding, width):
            parts.append(f"{task} not learned")
            continue
        parts.append(f"{task} {format_mean(twice, 'setting' if width == BANK else 'seed')}")
        works = solved(twice, len(trained.everywhere))
        if works is not None:
            decided.append(works)
    if len(decided) < min(2, len(trained.everywhere)):
        verdict = UNSUPPORTED
    elif all(decided):
        verdict = HOLDS
    else:
        verdict = DEPENDS if any(decided) else FAILS
    return f"At 2x: {'; '.join(parts)}.", verdict
