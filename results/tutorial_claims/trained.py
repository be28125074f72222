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

from pe_experiments.comparison import Runs
from pe_experiments.comparison.statistics import (
    ALPHA,
    FEWEST,
    ROUNDING,
    holm,
    mean_above_p,
    mean_below_p,
    permutation_p,
)
from pe_experiments.errors import UserError
from pe_experiments.evaluation import SOLVED, summarise
from pe_experiments.publishing import mean_in_words, with_settings

from .untrained import DEPENDS, FAILS, HOLDS, OURS, UNSUPPORTED, Verdict

MODELS = {"copy": "decoder", "precedence": "encoder", "lag": "decoder"}
TASKS = ("copy", "precedence")
INSIDE, TWICE, PAST = "exact_match_in_distribution", "exact_match_at_2x", "exact_match_extrapolation"
WORDS = {INSIDE: "in distribution", TWICE: "at 2x", PAST: "past training"}
EXTENSIONS = ("rope_linear", "rope_ntk", "rope_dynamic_ntk", "rope_yarn")
ABSENT = "not tested"  # the study has no such runs yet
SWEEP = "python scripts/train.py sweep=tutorial_claims"

BySeed = Mapping[int, float]


@dataclass(frozen=True)
class Difference:
    """Two sets of runs, by seed; the claim says that the first is better."""

    first: BySeed
    second: BySeed

    @property
    def mean(self) -> float:
        return float(np.mean(list(self.first.values())) - np.mean(list(self.second.values())))

    @property
    def p(self) -> float:
        """Of the permutation test; NaN where all runs have one value, so that there is nothing to test."""
        first, second = list(self.first.values()), list(self.second.values())
        return permutation_p(first, second) if np.ptp([*first, *second]) > ROUNDING else float("nan")


Differences = Mapping[str, Difference | None]  # by name; None where a scheme did not learn the task


class Trained:
    """The runs of the study, asked for by task, scheme and width.

    Args:
        runs: of the study.
        extension: columns ``seed, scheme, length, exact_match, token_accuracy``: RoPE models read with their
            frequencies as trained (``rope``) and rescaled.
    """

    def __init__(self, runs: Runs, extension: pd.DataFrame):
        self.table = with_settings(runs, width="model.d_model")
        self.curves = runs.curves[runs.curves["in_summary"].eq(True)]
        self.extension = extension.rename(columns={"length": "content_length"})
        # The width that schemes are compared at is the one at which there is more than sinusoidal.
        self.width = int(self.of("copy", "rope", None)["width"].iloc[0])
        self.longest = int(self.table["max_length"].iloc[0])

    def has(self, task: str, scheme: str, width: int | None = 0) -> bool:
        """Whether the study has run that."""
        return len(self._found(task, scheme, width)) > 0

    def of(self, task: str, scheme: str, width: int | None = 0) -> pd.DataFrame:
        """The runs of a scheme, one per seed; ``width`` 0 is the common one, None any.

        Raises:
            UserError: there are none, or those of more than one protocol.
        """
        found = self._found(task, scheme, width)
        if (protocols := found["protocol"].nunique()) != 1:
            at = f"at d_model={width or self.width}" if width is not None else "at any width"
            raise UserError(
                f"tutorial_claims: {protocols} protocols of {task}, {MODELS[task]}, {scheme} {at}, not one; "
                f"finish {SWEEP}"
            )
        return found

    def _found(self, task: str, scheme: str, width: int | None) -> pd.DataFrame:
        table = self.table
        here = (table["task"] == task) & (table["model"] == MODELS[task]) & (table["label"] == scheme)
        found = table[here]
        return found if width is None else found[found["width"] == (width or self.width)]

    def widths(self, task: str) -> list[int]:
        """The widths sinusoidal was trained at."""
        return sorted(self._found(task, "sinusoidal", None)["width"].unique())

    def by_seed(self, task: str, scheme: str, metric: str, width: int = 0) -> BySeed:
        """A metric of every run."""
        found = self.of(task, scheme, width)
        return dict(zip(found["seed"], found[metric], strict=True))

    def learnt(self, task: str, scheme: str, width: int = 0) -> bool:
        """Whether at least half of the runs solved the training lengths."""
        return bool(self.of(task, scheme, width)["solved_in_distribution"].eq(True).mean() >= 0.5)

    def difference(
        self, task: str, metric: str, first: tuple[str, int], second: tuple[str, int]
    ) -> Difference | None:
        """First scheme and width against second; None past training where one did not learn the task."""
        if metric != INSIDE and not (self.learnt(task, *first) and self.learnt(task, *second)):
            return None
        return Difference(*(self.by_seed(task, name, metric, width) for name, width in (first, second)))

    def points(self, task: str, scheme: str) -> pd.DataFrame:
        """A row per run and length."""
        return self.curves[self.curves["name"].isin(self.of(task, scheme)["name"])]

    def read_as(self, scheme: str) -> pd.DataFrame:
        """A row per RoPE model and length, read with ``scheme``."""
        return self.extension[self.extension["scheme"] == scheme]

    def extended(self, scheme: str, metric: str) -> BySeed:
        """A metric of every RoPE model read with ``scheme``."""
        groups: Any = self.read_as(scheme).groupby("seed")
        return {seed: summarise(points.to_dict("records"), self.longest)[metric] for seed, points in groups}


def of_training(t: Trained) -> list[Verdict]:
    """The verdicts that rest on trained models."""
    return [verdict for part in (order, offset, combined, room, reach, extended) for verdict in part(t)]


def weigh(differences: Sequence[Difference]) -> str:
    """Holds or fails by the tests after Holm, depends where they disagree, else not supported."""
    adjusted = holm([difference.p for difference in differences])
    decided = [d.mean for d, p in zip(differences, adjusted, strict=True) if p <= ALPHA]
    if not decided:
        return UNSUPPORTED
    return HOLDS if min(decided) > 0 else FAILS if max(decided) < 0 else DEPENDS


def kept(values: BySeed, tests: int = 1) -> bool | None:
    """Whether the mean is 0.9 or more (True), less (False), or neither can be said; Bonferroni over tests."""
    numbers = list(values.values())
    if len(numbers) < FEWEST:
        return None
    if tests * mean_below_p(numbers, SOLVED) <= ALPHA:
        return False
    return True if tests * mean_above_p(numbers, SOLVED) <= ALPHA else None


def _weighed(differences: Differences) -> tuple[str, str]:
    """The verdict of these differences, and what came of them in words."""
    made = {name: difference for name, difference in differences.items() if difference is not None}
    adjusted = holm([difference.p for difference in made.values()])
    tested = {name: p for name, p in zip(made, adjusted, strict=True) if not np.isnan(p)}
    parts = [f"{name} {made[name].mean:+.2f} (p {p:.2g})" for name, p in tested.items()]
    if untested := len(made) - len(tested):
        parts.append(f"{untested} not tested: all runs have the same value, or there are under three")
    if unlearnt := len(differences) - len(made):
        parts.append(f"{unlearnt} not tested: a scheme did not learn the task")
    return weigh(list(made.values())), "; ".join(parts) + "."


def order(t: Trained) -> Iterator[Verdict]:
    none, sinusoidal = (t.by_seed("precedence", scheme, INSIDE) for scheme in ("none", "sinusoidal"))
    text = f"Exact match in distribution: none {mean_in_words(none.values())}, sinusoidal "
    text += f"{mean_in_words(sinusoidal.values())}; guessing gives "
    text += f"{t.points('precedence', 'none')['chance'].mean():.2f}."
    verdict = weigh([Difference(sinusoidal, none)])
    if verdict == HOLDS and (t.learnt("precedence", "none") or not t.learnt("precedence", "sinusoidal")):
        verdict = DEPENDS
    claim = "A trained encoder needs positions to know what comes first"
    document = "self-attention is permutation-invariant"
    yield Verdict(document, claim, "precedence, encoder", text, verdict, "claims-fixed-or-learned")


def offset(t: Trained) -> Iterator[Verdict]:
    about = ("hence relative positions are easy to learn", "Relative positions are easily learnt",
             "lag (the symbol three back), decoder, sinusoidal")  # fmt: skip
    if not t.has("lag", "sinusoidal"):
        yield Verdict(*about, f"No runs of lag in these CSVs yet: {SWEEP}.", ABSENT)
        return
    inside, twice = (t.by_seed("lag", "sinusoidal", metric) for metric in (INSIDE, TWICE))
    text = f"Exact match in distribution: {mean_in_words(inside.values())}; at 2x: "
    text += f"{mean_in_words(twice.values())}."
    verdict = {True: HOLDS, False: DEPENDS, None: UNSUPPORTED}[kept(twice)]
    yield Verdict(*about, text, verdict if t.learnt("lag", "sinusoidal") else FAILS)


def added_or_concatenated(t: Trained, width: int = 0) -> Differences:
    """Added minus put beside the token, in distribution and past training.

    Args:
        t: the study.
        width: of the concatenated model; 0: that of the added one, so that tokens have half of the columns.
    """
    return {
        f"{scheme}, {task}, {WORDS[metric]}": t.difference(
            task, metric, (scheme, 0), (f"{scheme}(combine=concat)", width)
        )
        for task in TASKS
        for scheme in ("sinusoidal", "learned")
        for metric in (INSIDE, PAST)
        if t.has(task, f"{scheme}(combine=concat)", width)
    }


def combined(t: Trained) -> Iterator[Verdict]:
    for size, width, how in (
        ("a larger vector", 2 * t.width, "beside them, the vector twice as wide"),
        ("a vector as large", 0, "in half of the columns of a vector as wide"),
    ):
        differences = added_or_concatenated(t, width)
        about = ("add, do not concatenate", f"Add, do not concatenate ({size})",
                 f"Positions added to the tokens minus put {how}")  # fmt: skip
        if not differences:
            yield Verdict(*about, f"No such runs in these CSVs yet: {SWEEP}.", ABSENT)
            continue
        verdict, text = _weighed(differences)
        yield Verdict(*about, text, verdict, "" if width else "claims-add-or-concat")


def room(t: Trained) -> Iterator[Verdict]:
    differences: dict[str, Difference | None] = {}
    shown = []
    for task in TASKS:
        widths = t.widths(task)
        narrow, wide = ("sinusoidal", widths[0]), ("sinusoidal", widths[-1])
        means = [np.mean(list(t.by_seed(task, "sinusoidal", INSIDE, d).values())) for d in widths]
        by_width = ", ".join(f"d={d} {mean:.2f}" for d, mean in zip(widths, means, strict=True))
        shown.append(f"{task} in distribution: {by_width}")
        for metric in (INSIDE, PAST):
            name = f"{task}, {WORDS[metric]}, d={wide[1]} minus d={narrow[1]}"
            differences[name] = t.difference(task, metric, wide, narrow)
    verdict, text = _weighed(differences)
    yield Verdict(
        "larger d_model gives the encoding more room",
        "A larger d_model gives the encoding more room",
        "sinusoidal at several d_model; the whole model grows with it",
        f"{'; '.join(shown)}. {text}",
        verdict,
        "claims-width",
    )


def reach(t: Trained) -> Iterator[Verdict]:
    figure = "claims-fixed-or-learned"
    for scheme, document, claim, wanted in (
        ("sinusoidal", "it “generalises to lengths not seen”",
         "Fixed sinusoids generalise to lengths not seen", True),
        ("learned", "learned adapts but not beyond its length",
         "Learned positions adapt, but not beyond their length", False),
    ):  # fmt: skip
        found, shown = [], []
        for task in TASKS:
            inside, twice = (t.by_seed(task, scheme, metric) for metric in (INSIDE, TWICE))
            carried = kept(twice, len(TASKS))
            found.append(None if carried is None else carried is wanted and t.learnt(task, scheme))
            shown.append(f"{task} {mean_in_words(inside.values())} in distribution, ")
            shown[-1] += f"{mean_in_words(twice.values())} at 2x"
        tested = "Trained short, read at twice the length: is the mean exact match 0.9?"
        yield Verdict(document, claim, tested, f"{'; '.join(shown)}.", _of_several(found), figure)
    for first, second, document, claim in (
        ("sinusoidal", "learned", "fixed generalises, learned adapts but not beyond its length",
         "Fixed sinusoids reach further than learned positions"),
        ("learned_sinusoidal", "learned", OURS, "A learned table should start from sinusoids"),
        ("sinusoidal", "none", OURS, "Sinusoids reach further than no positions"),
    ):  # fmt: skip
        differences = {
            f"{task}, {WORDS[metric]}": t.difference(task, metric, (first, 0), (second, 0))
            for task in TASKS
            for metric in (TWICE, PAST)
        }
        verdict, text = _weighed(differences)
        yield Verdict(
            document, claim, f"Exact match of {first} minus that of {second}", text, verdict, figure
        )


def _of_several(found: Sequence[bool | None]) -> str:
    """Of a claim that was tested on several tasks: as claimed, not so, or not decided on each."""
    if True in found and False in found:
        return DEPENDS
    return FAILS if False in found else HOLDS if all(found) else UNSUPPORTED


def extended(t: Trained) -> Iterator[Verdict]:
    as_trained = t.extended("rope", PAST)
    better, text = _weighed({name: Difference(t.extended(name, PAST), as_trained) for name in EXTENSIONS})
    twice = {name: t.extended(name, TWICE) for name in EXTENSIONS}
    carried = [kept(values, len(twice)) for values in twice.values()]
    linear = t.read_as("rope_linear")
    first = int(linear.loc[linear["content_length"] > t.longest, "content_length"].min())
    near = linear.loc[linear["content_length"] == first, "exact_match"]
    shown = ", ".join(f"{name} {mean_in_words(values.values())}" for name, values in twice.items())
    finding = (
        f"At {2 * t.longest} digits: {shown}. rope_linear at {first}: {mean_in_words(near)}, which assumes "
    )
    finding += f"the final length known before the answer begins. Past training, minus as trained: {text}"
    verdict = HOLDS if True in carried else FAILS if better != HOLDS and False in carried else better
    if verdict == HOLDS and True not in carried:
        verdict = DEPENDS  # better than as trained, and still not carried to twice the length
    tested = f"RoPE trained to {t.longest} digits (copy), frequencies rescaled when it is read"
    claim = "Rescaled frequencies carry RoPE to longer inputs without training"
    yield Verdict(OURS, claim, tested, finding, verdict, "claims-extension")
