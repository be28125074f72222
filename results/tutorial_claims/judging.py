"""Judge claims of tutorials: by the conditions in ``claims.csv``, and about trained models by exact match.

Tasks are those of the bank that need order, with a row per configuration, and precedence, with one per seed.
"""

import math
import operator
import re
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from pe_experiments.comparison import Runs
from pe_experiments.comparison.statistics import (
    ALPHA,
    EQUAL_WITHIN,
    holm,
    mean_below_p,
    paired_ps,
    permutation_p,
)
from pe_experiments.evaluation.summary import SOLVED
from pe_experiments.studies import format_mean, with_settings

from .audits import NOISE

HOLDS, FAILS, DEPENDS = "holds", "does not hold", "depends"
UNSUPPORTED, UNTESTED = "not supported", "not tested"
SIGNS = {"<": operator.lt, ">": operator.gt, "=": operator.eq}
IN_DISTRIBUTION, TWICE, PAST = "exact_match_in_distribution", "exact_match_at_2x", "exact_match_extrapolation"
WORDS = {IN_DISTRIBUTION: "in distribution", TWICE: "at 2x", PAST: "past training"}
WIDTH = 64
PRECEDENCE = "precedence"

Tasks = Mapping[str, pd.DataFrame]  # runs by task, with the column ``learned``
Finding = tuple[str, str]  # what was measured, and the verdict


class Value(float):
    """A measured value; printed as ``below 1e-09`` if it is 0 after rounding."""

    def __str__(self) -> str:
        return f"{float(self):.3g}" if self else f"below {NOISE:g}"

    def __format__(self, style: str) -> str:
        if style == "crash":
            return "crashes" if self else "works"
        return super().__format__(style)


def judge_untrained(claims: pd.DataFrame, audits: pd.DataFrame) -> dict[str, Finding]:
    """Return the finding on each claim: it holds if all its conditions are met, depends if some are.

    A condition is ``QUANTITY < BOUND``, also with > and =; the bound is a number or a quantity.
    """
    values: dict[str, Any] = dict(zip(audits["quantity"], map(Value, audits["value"]), strict=True))
    findings = {}
    for row in claims[claims["holds_if"] != ""].to_dict("records"):
        met = []
        for condition in row["holds_if"].split("; "):
            quantity, sign, bound = re.split(r" ([<>=]) ", condition)
            limit = float(bound) if bound[0] in "-0123456789" else values[bound]
            met.append(SIGNS[sign](values[quantity], limit))
        verdict = FAILS
        if any(met):
            verdict = HOLDS if all(met) else DEPENDS
        findings[row["claim"]] = row["measured"].format_map(values), verdict
    return findings


def judge_trained(runs: Runs, bank: pd.DataFrame) -> dict[str, Finding]:
    """Return the finding on each claim about trained models.

    Args:
        runs: the runs of the study.
        bank: the runs of the bank at the better learning rate, with a column ``learned``.
    """
    rows = with_settings(runs, width="model.d_model", k="task.k")
    rows = rows[rows["width"] == WIDTH].assign(learned=rows["solved_in_distribution"].eq(True))
    tasks = {str(task): part for task, part in bank.groupby("task") if task != "majority"}  # needs no order
    tasks[PRECEDENCE] = rows[rows["task"] == PRECEDENCE]
    lag = rows[(rows["task"] == "lag") & (rows["label"] == "sinusoidal")]
    is_ahead = lag["k"] == -4  # an encoder names the symbol four positions ahead
    reach = judge_reach(tasks, "sinusoidal")
    return {
        "Relative positions are easily learnt": judge_offset(lag[~is_ahead]),
        "Training easily finds attention to the word four ahead": judge_offset(lag[is_ahead]),
        "Fixed sinusoids generalise to lengths not seen": reach,
        "Fixed sinusoids can generalise to longer sequences": ("As above.", reach[1]),
        "Learned positions adapt better to the task": judge_pair(
            tasks, [IN_DISTRIBUTION], "learned", "sinusoidal"
        ),
        "Fixed sinusoids reach further than learned positions": judge_pair(
            tasks, [TWICE, PAST], "sinusoidal", "learned"
        ),
    }


def judge_offset(runs: pd.DataFrame) -> Finding:
    """Judge whether sinusoids learn a relative position and use it at twice the length."""
    within, twice = format_mean(runs[IN_DISTRIBUTION]), format_mean(runs[TWICE])
    measured = f"Exact match in distribution: {within}; at 2x: {twice}."
    if runs["learned"].mean() < 0.5:
        return measured, FAILS
    return measured, {True: HOLDS, False: DEPENDS, None: UNSUPPORTED}[solved(runs[TWICE])]


def judge_reach(tasks: Tasks, encoding: str) -> Finding:
    """Judge whether an encoding works at twice the length on the tasks that it learned."""
    decided, parts = [], []
    for task, runs in tasks.items():
        twice = metric_of(task, runs, encoding, TWICE)
        if twice is None:
            parts.append(f"{task} not learned")
            continue
        parts.append(f"{task} {format_mean(twice, 'seed' if task == PRECEDENCE else 'configuration')}")
        works = solved(twice, len(tasks))
        if works is not None:
            decided.append(works)
    verdict = UNSUPPORTED
    if len(decided) >= 2:
        verdict = HOLDS if all(decided) else DEPENDS if any(decided) else FAILS
    return f"At 2x: {'; '.join(parts)}.", verdict


def metric_of(task: str, runs: pd.DataFrame, encoding: str, metric: str) -> pd.Series | None:
    """Return a metric by seed; past training None if fewer than half of the runs learned the task.

    Past training, unlearned configurations of the bank are left out.
    """
    runs = runs[runs["label"] == encoding].set_index("seed")
    if metric != IN_DISTRIBUTION:
        if runs["learned"].mean() < 0.5:
            return None
        if task != PRECEDENCE:
            runs = runs[runs["learned"]]
    return runs[metric]


def solved(values: pd.Series, tests: int = 1) -> bool | None:
    """Return True if every value reaches `SOLVED`, False if the mean is significantly lower, else None."""
    if values.min() >= SOLVED:
        return True
    return False if tests * mean_below_p(values.tolist(), SOLVED) <= ALPHA else None


def judge_pair(tasks: Tasks, metrics: Sequence[str], first: str, second: str) -> Finding:
    """Judge whether the first encoding is better than the second, by tests with Holm's correction.

    The signs of the significant differences decide whether the claim holds, fails or depends; significant
    differences on at least two tasks are required.
    """
    means: dict[tuple[str, str], float] = {}
    ps: list[float] = []
    unlearned = 0
    for (task, runs), metric in product(tasks.items(), metrics):
        values, others = (metric_of(task, runs, encoding, metric) for encoding in (first, second))
        if values is None or others is None:
            unlearned += 1
            continue
        mean, p = difference_and_p(values, others, paired=task != PRECEDENCE)
        means[task, metric] = mean
        ps.append(p)
    adjusted = dict(zip(means, holm(ps), strict=True))
    tested = {key: p for key, p in adjusted.items() if not np.isnan(p)}
    parts = [
        f"{task}, {WORDS[metric]} {means[task, metric]:+z.2f} (p {p:.2g})"
        for (task, metric), p in tested.items()
    ]
    if len(tested) < len(means):
        parts.append(f"{len(means) - len(tested)} not tested: all runs have the same value")
    if unlearned:
        parts.append(f"{unlearned} not tested: an encoding did not learn the task")
    significant = {key: means[key] for key, p in tested.items() if p <= ALPHA}
    verdict = UNSUPPORTED if tested else UNTESTED
    if len({task for task, _ in significant}) >= 2:
        verdict = DEPENDS
        if min(significant.values()) > 0:
            verdict = HOLDS
        elif max(significant.values()) < 0:
            verdict = FAILS
    return "; ".join(parts) + ".", verdict


def difference_and_p(first: pd.Series, second: pd.Series, paired: bool) -> tuple[float, float]:
    """Return a mean difference and its p-value, NaN if all runs have the same value.

    Pairs of configurations are tested by flipping signs, seeds by permutation.
    """
    if not paired:
        is_equal = np.ptp([*first, *second]) <= EQUAL_WITHIN
        return float(first.mean() - second.mean()), math.nan if is_equal else permutation_p(
            [*first], [*second]
        )
    differences = (first - second).dropna().to_numpy(float)
    is_equal = np.abs(differences).max(initial=0) <= EQUAL_WITHIN
    mean = float(differences.mean()) if len(differences) else 0.0
    return mean, math.nan if is_equal else float(paired_ps(differences[None])[0])
