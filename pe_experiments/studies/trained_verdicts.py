"""What trained models say of the claims of tutorials: one verdict per claim, from rules fixed beforehand.

Compared is exact match: on these tasks the token accuracies past training lie at or below what an order-blind
predictor reaches, and where an answer is one token both are the same. Each claim is a family of its own for
Holm's adjustment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from pe_experiments.comparison.runs_table import summary_of
from pe_experiments.comparison.statistics import (
    ALPHA,
    FEWEST,
    ROUNDING,
    holm,
    mean_above_p,
    mean_below_p,
    mean_interval,
    permutation_p,
)
from pe_experiments.errors import UserError
from pe_experiments.evaluation import SOLVED
from pe_experiments.runs import COMPLETED
from pe_experiments.studies.audit_verdicts import DEPENDS, FAILS, HOLDS, UNSUPPORTED, Verdict

TASKS = (("copy", "decoder"), ("precedence", "encoder"))
WITHIN, TWICE, PAST = "exact_match_in_distribution", "exact_match_at_2x", "exact_match_extrapolation"
WORDS = {WITHIN: "within", TWICE: "at 2x", PAST: "past training"}
COMBINED = ("sinusoidal", "learned")
EXTENSIONS = ("rope_linear", "rope_ntk", "rope_dynamic_ntk", "rope_yarn")
ABSENT = "not tested"  # the study has no such runs yet
SWEEP = "python scripts/train.py sweep=tutorial_claims"


@dataclass(frozen=True)
class Difference:
    """Two sets of runs, by seed; the claim says that the first is better."""

    first: Mapping[int, float]
    second: Mapping[int, float]

    @property
    def mean(self) -> float:
        return float(np.mean(list(self.first.values())) - np.mean(list(self.second.values())))

    @property
    def p(self) -> float:
        """Of the permutation test; NaN where all runs have one value, so that there is nothing to test."""
        pooled = [*self.first.values(), *self.second.values()]
        if np.ptp(pooled) <= ROUNDING:
            return float("nan")
        return permutation_p(list(self.first.values()), list(self.second.values()))


class Trained:
    """The runs of the study, asked for by task, model, scheme and width.

    Args:
        table: from `comparison.table.scheme_table`.
        curves: ``curves`` of the same `Runs`.
        extension: columns ``name, seed, scheme, length, exact_match, token_accuracy``: RoPE models read with
            their frequencies as trained (``rope``) and rescaled.
    """

    def __init__(self, table: pd.DataFrame, curves: pd.DataFrame, extension: pd.DataFrame):
        self.extension = extension.rename(columns={"length": "content_length"})
        self._curves = curves[curves["in_summary"].eq(True)]
        self.table = table.assign(width=table["settings"].str.extract(r"model\.d_model=(\d+)")[0].astype(int))
        # The width that schemes are compared at is the one at which there is more than sinusoidal.
        self.width = int(self.row(*TASKS[0], "rope", None)["width"])

    def has(self, task: str, model: str, label: str, width: int | None = 0) -> bool:
        """Whether the study has run that."""
        return len(self._rows(task, model, label, width)) > 0

    def row(self, task: str, model: str, label: str, width: int | None = 0) -> pd.Series:
        """The table's row of a scheme; ``width`` 0 is the common one, None any.

        Raises:
            UserError: there is none, or more than one.
        """
        found = self._rows(task, model, label, width)
        if len(found) != 1:
            at = f"at d_model={width or self.width}" if width is not None else "at any width"
            found_of = f"{len(found)} protocols of {task}, {model}, {label} {at}"
            raise UserError(f"tutorial_claims: {found_of}, not one; finish {SWEEP}")
        return found.iloc[0]

    def _rows(self, task: str, model: str, label: str, width: int | None) -> pd.DataFrame:
        table = self.table
        here = (table["task"] == task) & (table["model"] == model) & (table["scheme"] == label)
        found = table[here]
        return found if width is None else found[found["width"] == (width or self.width)]

    def widths(self, task: str, model: str) -> list[int]:
        """The widths sinusoidal was trained at."""
        same = (self.table["task"] == task) & (self.table["model"] == model)
        return sorted(self.table.loc[same & (self.table["scheme"] == "sinusoidal"), "width"])

    def curves(self, row: pd.Series) -> pd.DataFrame:
        """A row per run and length."""
        mine = (self._curves["protocol"] == row["protocol"]) & (self._curves["label"] == row["scheme"])
        return self._curves[mine]

    def by_seed(self, row: pd.Series, metric: str) -> dict[int, float]:
        """A metric of every run."""
        return by_seed(self.curves(row), int(row["max_length"]), metric)

    def learnt(self, row: pd.Series) -> bool:
        """Whether at least half of the runs solved the training lengths."""
        values = list(self.by_seed(row, WITHIN).values())
        return sum(value >= SOLVED for value in values) >= len(values) / 2

    def difference(self, first: pd.Series, second: pd.Series, metric: str) -> Difference | None:
        """First against second; None past training where one of them did not learn the task."""
        if metric != WITHIN and not (self.learnt(first) and self.learnt(second)):
            return None
        return Difference(self.by_seed(first, metric), self.by_seed(second, metric))

    def extended(self, scheme: str) -> pd.DataFrame:
        """A row per RoPE model and length, read with ``scheme``."""
        return self.extension[self.extension["scheme"] == scheme]


def by_seed(curves: pd.DataFrame, max_length: int, metric: str) -> dict[int, float]:
    """A metric of every run of these curves."""
    found: dict[int, float] = {}
    for seed, rows in curves.groupby("seed"):
        points: Any = rows.to_dict("records")
        status = rows["status"].iloc[0] if "status" in rows else COMPLETED
        found[int(str(seed))] = float(summary_of(points, max_length, status)[metric])
    return found


def of_training(t: Trained) -> list[Verdict]:
    """The verdicts that rest on trained models."""
    parts = (_order_learnt, _relative, _combined, _room, _fixed_or_learned, _extended)
    return [verdict for part in parts for verdict in part(t)]


def weigh(differences: Sequence[Difference]) -> str:
    """Holds or fails by the tests after Holm, depends where they disagree, else not supported."""
    adjusted = holm([difference.p for difference in differences])
    decided = [d.mean for d, p in zip(differences, adjusted, strict=True) if p <= ALPHA]
    if not decided:
        return UNSUPPORTED
    return HOLDS if min(decided) > 0 else FAILS if max(decided) < 0 else DEPENDS


def values_in_words(values: Mapping[int, float]) -> str:
    """``0.64 [0.31, 0.83]``, ``all 5 seeds 1.00``, or without interval under three seeds."""
    numbers = list(values.values())
    interval = mean_interval(numbers)
    if len(numbers) < FEWEST:
        return f"{interval.estimate:.2f} ({len(numbers)} seeds)"
    if np.ptp(numbers) <= ROUNDING:
        return f"all {len(numbers)} seeds {interval.estimate:.2f}"
    return f"{interval.estimate:.2f} [{interval.low:.2f}, {interval.high:.2f}]"


def _said(differences: Mapping[str, Difference | None]) -> tuple[list[Difference], str]:
    """Those that were made, and what came of them in words."""
    made = {name: difference for name, difference in differences.items() if difference is not None}
    adjusted = dict(zip(made, holm([difference.p for difference in made.values()]), strict=True))
    tested = {name: p for name, p in adjusted.items() if not np.isnan(p)}
    parts = [f"{name} {made[name].mean:+.2f} (p {p:.2g})" for name, p in tested.items()]
    untested = len(made) - len(tested)
    if untested:
        parts.append(f"{untested} not tested: all runs have the same value, or there are under three")
    if len(made) < len(differences):
        parts.append(f"{len(differences) - len(made)} not tested: a scheme did not learn the task")
    return list(made.values()), "; ".join(parts) + "."


def _order_learnt(t: Trained) -> Iterator[Verdict]:
    none, best = (t.row("precedence", "encoder", label) for label in ("none", "sinusoidal"))
    difference = Difference(t.by_seed(best, WITHIN), t.by_seed(none, WITHIN))
    chance = float(t.curves(none)["chance"].mean())
    text = f"Exact match within: none {values_in_words(difference.second)}, sinusoidal "
    text += f"{values_in_words(difference.first)}; guessing gives {chance:.2f}."
    verdict = weigh([difference])
    if verdict == HOLDS and (t.learnt(none) or not t.learnt(best)):
        verdict = DEPENDS
    claim = "A trained encoder needs positions to know what comes first"
    yield Verdict(claim, "precedence, encoder", text, verdict, "claims-fixed-or-learned")


def _relative(t: Trained) -> Iterator[Verdict]:
    claim, tested = "Relative positions are easily learnt", "lag (the symbol three back), decoder, sinusoidal"
    if not t.has("lag", "decoder", "sinusoidal"):
        yield Verdict(claim, tested, f"No runs of lag in these CSVs yet: {SWEEP}.", ABSENT, "")
        return
    row = t.row("lag", "decoder", "sinusoidal")
    within, twice = t.by_seed(row, WITHIN), t.by_seed(row, TWICE)
    text = f"Exact match within: {values_in_words(within)}; at 2x: {values_in_words(twice)}."
    learnt, kept = t.learnt(row), _kept(twice)
    verdict = FAILS if not learnt else {True: HOLDS, False: DEPENDS, None: UNSUPPORTED}[kept]
    yield Verdict(claim, tested, text, verdict, "")


def _kept(values: Mapping[int, float], tests: int = 1) -> bool | None:
    """Whether the mean is 0.9 or more (True), less (False), or neither can be said; Bonferroni over tests."""
    if len(values) < FEWEST:
        return None
    numbers = list(values.values())
    if tests * mean_below_p(numbers, SOLVED) <= ALPHA:
        return False
    return True if tests * mean_above_p(numbers, SOLVED) <= ALPHA else None


def added_or_concatenated(t: Trained, width: int = 0) -> dict[str, Difference | None]:
    """Added minus put beside the token, within and past training.

    Args:
        t: the study.
        width: of the concatenated model; 0: that of the added one, so that tokens have half of the columns.
    """
    return {
        f"{label}, {task}, {WORDS[metric]}": t.difference(
            t.row(task, model, label), t.row(task, model, f"{label}(combine=concat)", width), metric
        )
        for task, model in TASKS
        for label in COMBINED
        for metric in (WITHIN, PAST)
        if t.has(task, model, f"{label}(combine=concat)", width)
    }


def _combined(t: Trained) -> Iterator[Verdict]:
    for claim, width, how in (
        ("Add, do not concatenate (a larger vector)", 2 * t.width, "beside them, the vector twice as wide"),
        ("Add, do not concatenate (a vector as large)", 0, "in half of the columns of a vector as wide"),
    ):
        differences = added_or_concatenated(t, width)
        tested = f"Positions added to the tokens minus put {how}"
        if not differences:
            yield Verdict(claim, tested, f"No such runs in these CSVs yet: {SWEEP}.", ABSENT, "")
            continue
        made, text = _said(differences)
        yield Verdict(claim, tested, text, weigh(made), "" if width else "claims-add-or-concat")


def _room(t: Trained) -> Iterator[Verdict]:
    differences: dict[str, Difference | None] = {}
    said = []
    for task, model in TASKS:
        widths = t.widths(task, model)
        rows = {d: t.row(task, model, "sinusoidal", d) for d in widths}
        shown = ", ".join(
            f"d={d} {np.mean(list(t.by_seed(row, WITHIN).values())):.2f}" for d, row in rows.items()
        )
        said.append(f"{task} within: {shown}")
        for metric in (WITHIN, PAST):
            name = f"{task}, {WORDS[metric]}, d={widths[-1]} minus d={widths[0]}"
            differences[name] = t.difference(rows[widths[-1]], rows[widths[0]], metric)
    made, text = _said(differences)
    tested = "sinusoidal at several d_model; the whole model grows with it"
    claim = "A larger d_model gives the encoding more room"
    yield Verdict(claim, tested, f"{'; '.join(said)}. {text}", weigh(made), "claims-width")


def _fixed_or_learned(t: Trained) -> Iterator[Verdict]:
    figure = "claims-fixed-or-learned"
    for label, claim, wanted in (
        ("sinusoidal", "Fixed sinusoids generalise to lengths not seen", True),
        ("learned", "Learned positions adapt, but not beyond their length", False),
    ):
        rows = {task: t.row(task, model, label) for task, model in TASKS}
        twice = {task: t.by_seed(row, TWICE) for task, row in rows.items()}
        kept = [_kept(values, len(rows)) for values in twice.values()]
        found = [
            None if k is None else (k is wanted and t.learnt(row))
            for k, row in zip(kept, rows.values(), strict=True)
        ]
        said = [
            f"{task} {values_in_words(t.by_seed(row, WITHIN))} within, {values_in_words(twice[task])} at 2x"
            for task, row in rows.items()
        ]
        tested = "Trained short, read at twice the length: is the mean exact match 0.9?"
        yield Verdict(claim, tested, f"{'; '.join(said)}.", _of_several(found), figure)
    for first, second, claim in (
        ("sinusoidal", "learned", "Fixed sinusoids reach further than learned positions"),
        ("learned_sinusoidal", "learned", "A learned table should start from sinusoids"),
        ("sinusoidal", "none", "Sinusoids reach further than no positions"),
    ):
        made, text = _said(
            {
                f"{k}, {WORDS[metric]}": t.difference(t.row(k, m, first), t.row(k, m, second), metric)
                for k, m in TASKS
                for metric in (TWICE, PAST)
            }
        )
        yield Verdict(claim, f"Exact match of {first} minus that of {second}", text, weigh(made), figure)


def _of_several(found: Sequence[bool | None]) -> str:
    """Of a claim that was tested on several tasks: as claimed, not so, or not decided on each."""
    if True in found and False in found:
        return DEPENDS
    return FAILS if False in found else HOLDS if all(found) else UNSUPPORTED


def _extended(t: Trained) -> Iterator[Verdict]:
    row = t.row("copy", "decoder", "rope")
    longest = int(row["max_length"])
    trained = {metric: by_seed(t.extended("rope"), longest, metric) for metric in (TWICE, PAST)}
    differences: dict[str, Difference | None] = {
        name: Difference(by_seed(t.extended(name), longest, PAST), trained[PAST]) for name in EXTENSIONS
    }
    made, text = _said(differences)
    twice = {name: by_seed(t.extended(name), longest, TWICE) for name in EXTENSIONS}
    kept = [_kept(values, len(twice)) for values in twice.values()]
    linear = t.extended("rope_linear")
    first = int(linear.loc[linear["content_length"] > longest, "content_length"].min())
    here = linear[linear["content_length"] == first]
    near = dict(zip(here["seed"], here["exact_match"], strict=True))
    said = ", ".join(f"{name} {values_in_words(values)}" for name, values in twice.items())
    shown = (
        f"At {2 * longest} digits: {said}. rope_linear at {first}: {values_in_words(near)}, which assumes "
    )
    shown += f"the final length known before the answer begins. Past training, minus as trained: {text}"
    better = weigh(made)
    verdict = HOLDS if True in kept else FAILS if better != HOLDS and False in kept else better
    if verdict == HOLDS and True not in kept:
        verdict = DEPENDS  # better than as trained, and still not carried to twice the length
    tested = f"RoPE trained to {longest} digits (copy), frequencies rescaled when it is read"
    claim = "Rescaled frequencies carry RoPE to longer inputs without training"
    yield Verdict(claim, tested, shown, verdict, "claims-extension")
