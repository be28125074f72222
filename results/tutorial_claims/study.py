"""Judge the claims of tutorials on sinusoidal encodings.

Claims about vectors, order and code are judged by the conditions in ``claims.csv``. Those about trained
models are judged by exact match: on the tasks of the bank that need order, with a row per configuration, and
on precedence, with one per seed.
"""

import math
import operator
import re
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pe_experiments.comparison import Runs
from pe_experiments.comparison.statistics import ALPHA, EQUAL_WITHIN, holm, permutation_p
from pe_experiments.evaluation.metrics import SOLVED
from pe_experiments.studies import Study, format_mean, read_archive, read_table, table, with_options
from pe_experiments.studies.inference import mean_below_p, paired_ps
from results.bank.study import early_scores

from .audits import NOISE

BANK = Path(__file__).parents[1] / "bank"
HOLDS, DEPENDS, FAILS = "holds", "depends", "does not hold"
UNSUPPORTED, UNTESTED = "not supported", "not tested"
VERDICTS = {"hold": HOLDS, "depend": DEPENDS, "fail": FAILS, "unsupported": UNSUPPORTED, "untested": UNTESTED}
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
        findings[row["claim"]] = row["measured"].format_map(values), verdict_on(met)
    return findings


def verdict_on(met: Sequence[bool]) -> str:
    """Return that a claim holds in all of the cases, in some or in none."""
    return HOLDS if all(met) else DEPENDS if any(met) else FAILS


def judge_trained(runs: Runs, bank: pd.DataFrame) -> dict[str, Finding]:
    """Return the finding on each claim about trained models.

    Args:
        runs: the runs of the study.
        bank: the runs of the bank at the better learning rate, with a column ``learned``.
    """
    rows = with_options(runs, width="model.d_model", k="task.k")
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
    verdict = FAILS
    if runs["learned"].mean() >= 0.5:
        verdict = {True: HOLDS, False: DEPENDS, None: UNSUPPORTED}[solved(runs[TWICE])]
    return f"Exact match in distribution: {within}; at 2x: {twice}.", verdict


def judge_reach(tasks: Tasks, encoding: str) -> Finding:
    """Judge whether an encoding works at twice the length on the tasks that it learned."""
    decided, parts = [], []
    for task in tasks:
        twice = metric_of(tasks, task, encoding, TWICE)
        if twice.empty:
            parts.append(f"{task} not learned")
            continue
        parts.append(f"{task} {format_mean(twice, 'seed' if task == PRECEDENCE else 'configuration')}")
        works = solved(twice, len(tasks))
        if works is not None:
            decided.append(works)
    verdict = verdict_on(decided) if len(decided) >= 2 else UNSUPPORTED
    return f"At 2x: {'; '.join(parts)}.", verdict


def metric_of(tasks: Tasks, task: str, encoding: str, metric: str) -> pd.Series:
    """Return a metric by seed; past training of no run if fewer than half learned the task.

    Past training, unlearned configurations of the bank are left out.
    """
    runs = tasks[task][tasks[task]["label"] == encoding].set_index("seed")
    if metric == IN_DISTRIBUTION:
        return runs[metric]
    if runs["learned"].mean() < 0.5:
        return runs[metric].iloc[:0]
    return runs[metric] if task == PRECEDENCE else runs.loc[runs["learned"], metric]


def solved(values: pd.Series, tests: int = 1) -> bool | None:
    """Return True if every value reaches `SOLVED`, False if the mean is significantly lower, else None."""
    if values.min() >= SOLVED:
        return True
    return False if tests * mean_below_p(values.tolist(), SOLVED) <= ALPHA else None


def judge_pair(tasks: Tasks, metrics: Sequence[str], first: str, second: str) -> Finding:
    """Judge whether the first encoding is better than the second, by tests with Holm's correction.

    Signs are flipped within configurations, seeds are permuted. The signs of the significant differences
    decide whether the claim holds, fails or depends; it needs significant differences on two tasks.
    """
    rows = []
    unlearned = 0
    for task, metric in product(tasks, metrics):
        values, others = (metric_of(tasks, task, encoding, metric) for encoding in (first, second))
        if values.empty or others.empty:
            unlearned += 1
            continue
        differences = (values - others).to_numpy(float)
        if np.ptp([*values, *others]) <= EQUAL_WITHIN:
            p = math.nan
        elif task == PRECEDENCE:
            p = permutation_p([*values], [*others])
        else:
            p = paired_ps(differences[None])[0]
        rows.append([task, WORDS[metric], np.nanmean(differences), p])
    tests = pd.DataFrame(rows, columns=["task", "where", "difference", "p"])
    tests["p"] = holm(tests["p"].tolist())
    tested = tests.dropna()
    parts = [f"{row.task}, {row.where} {row.difference:+z.2f} (p {row.p:.2g})" for row in tested.itertuples()]
    if len(tested) < len(tests):
        parts.append(f"{len(tests) - len(tested)} not tested: all runs have the same value")
    if unlearned:
        parts.append(f"{unlearned} not tested: an encoding did not learn the task")
    significant = tested[tested["p"] <= ALPHA]
    is_better = (significant["difference"] > 0).tolist()
    verdict = verdict_on(is_better) if significant["task"].nunique() >= 2 else UNSUPPORTED
    return "; ".join(parts) + ".", verdict


def judge(folder: Path) -> pd.DataFrame:
    """Return the rows of ``claims.csv`` with the columns ``measured`` and ``verdict`` filled in."""
    claims = read_table(folder / "claims.csv").fillna("")
    bank_runs = read_archive(BANK).runs.merge(early_scores()[["name", "learned"]], on="name")
    findings = judge_untrained(claims, read_table(folder / "audits.csv"))
    findings |= judge_trained(read_archive(folder), bank_runs)
    claims["verdict"] = UNTESTED
    for claim, finding in findings.items():
        claims.loc[claims["claim"] == claim, ["measured", "verdict"]] = finding
    return claims


def values(claims: pd.DataFrame) -> dict[str, Any]:
    """Return the table of the claims that do not hold as written, and the number of claims by verdict.

    Claims about vectors and about trained models are counted separately.
    """
    shown = pd.concat([claims[claims["verdict"] == verdict] for verdict in (FAILS, DEPENDS, UNSUPPORTED)])
    values: dict[str, Any] = {"claims": table(shown[["claim", "measured", "verdict"]])}
    for group, rows in claims.groupby(np.where(claims["holds_if"] == "", "trained", "vectors")):
        values[str(group)] = len(rows)
        for name, verdict in VERDICTS.items():
            values[f"{group}_{name}"] = (rows["verdict"] == verdict).sum()
    return values


STUDY = Study(
    sweep=("tutorial_claims",),
    load=judge,
    values=values,
    tables={"verdicts": lambda claims: claims.drop(columns="holds_if")},
    compare=True,
)
