"""Claims of tutorials that need trained models: one verdict per claim, by rules fixed beforehand.

The metric is exact match: on these tasks token accuracy past training lies at or below the bag ceiling, and
for one-token answers both are the same. Each claim is its own family for Holm's adjustment.
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

MODELS = {"copy": "decoder", "precedence": "encoder"}
IN_DISTRIBUTION, TWICE, PAST = "exact_match_in_distribution", "exact_match_at_2x", "exact_match_extrapolation"
WORDS = {IN_DISTRIBUTION: "in distribution", TWICE: "at 2x", PAST: "past training"}
EXTENSIONS = ("rope_linear", "rope_ntk", "rope_dynamic_ntk", "rope_yarn")
ABSENT = "not tested"  # the study has no such runs yet
SWEEP = "python scripts/train.py sweep=tutorial_claims"


class Trained:
    """The runs of the study by task, scheme and width.

    Args:
        runs: of the study.
        extension: columns ``seed, scheme, length, exact_match, token_accuracy``: RoPE models evaluated with
            frequencies as trained (``rope``) and rescaled.
    """

    def __init__(self, runs: Runs, extension: pd.DataFrame):
        table = with_settings(runs, width="model.d_model")
        if not (table["label"] == "rope").any():
            raise UserError(f"tutorial_claims has no runs of rope; finish {SWEEP}")
        self.longest = int(table["max_length"].iloc[0])
        # Schemes are compared at the width of the RoPE runs; other widths have sinusoidal only.
        self.width = int(table.loc[table["label"] == "rope", "width"].iloc[0])
        self.groups: dict[Any, pd.DataFrame] = {
            key: rows.set_index("seed") for key, rows in table.groupby(["task", "label", "width"])
        }
        self.curves = runs.curves[runs.curves["in_summary"].eq(True)]
        self.read_as = dict(list(extension.rename(columns={"length": "content_length"}).groupby("scheme")))
        for scheme in EXTENSIONS:
            curves: Any = self.read_as[scheme].groupby("seed")
            rows = {seed: summarise(points.to_dict("records"), self.longest) for seed, points in curves}
            self.groups["copy", scheme, self.width] = pd.DataFrame.from_dict(rows, orient="index")

    def of(self, task: str, scheme: str, width: int = 0) -> pd.DataFrame:
        """A row per seed; ``width`` 0 means `self.width`.

        Raises:
            UserError: there is none, or more than one protocol.
        """
        found = self.groups.get((task, scheme, width or self.width))
        if found is None or not found.index.is_unique:
            what = "no runs" if found is None else "more than one protocol"
            raise UserError(
                f"tutorial_claims has {what} of {task}, {scheme} at d_model={width or self.width}; finish "
                f"{SWEEP}"
            )
        return found

    def learnt(self, task: str, scheme: str, width: int = 0) -> bool:
        """Whether at least half of the runs solved the training lengths."""
        return bool(self.of(task, scheme, width)["solved_in_distribution"].eq(True).mean() >= 0.5)

    def widths(self, task: str) -> list[int]:
        """The widths sinusoidal was trained at."""
        return sorted(width for of, scheme, width in self.groups if (of, scheme) == (task, "sinusoidal"))

    def points(self, task: str, scheme: str) -> pd.DataFrame:
        """A row per run and length."""
        return self.curves[self.curves["name"].isin(self.of(task, scheme)["name"])]


@dataclass(frozen=True)
class Difference:
    """Two sets of runs, a value per seed; the claim says that the first is better."""

    first: pd.Series
    second: pd.Series

    @property
    def mean(self) -> float:
        return float(self.first.mean() - self.second.mean())

    @property
    def p(self) -> float:
        """Of the permutation test; NaN where all runs have the same value, so that nothing can be tested."""
        same = np.ptp([*self.first, *self.second]) <= ROUNDING
        return float("nan") if same else permutation_p(list(self.first), list(self.second))


Differences = Mapping[str, Difference | None]  # by name; None where a scheme did not learn the task


def difference(
    t: Trained, task: str, metric: str, first: str, second: str, widths: tuple[int, int] = (0, 0)
) -> Difference | None:
    """First scheme against second; None past training where one did not learn the task."""
    sides = tuple(zip((first, second), widths, strict=True))
    if metric != IN_DISTRIBUTION and not all(t.learnt(task, *side) for side in sides):
        return None
    return Difference(*(t.of(task, *side)[metric] for side in sides))


def weigh(differences: Sequence[Difference]) -> str:
    """Holds or fails by the tests after Holm, depends where they disagree, else not supported."""
    adjusted = holm([difference.p for difference in differences])
    decided = [d.mean for d, p in zip(differences, adjusted, strict=True) if p <= ALPHA]
    if not decided:
        return UNSUPPORTED
    return HOLDS if min(decided) > 0 else FAILS if max(decided) < 0 else DEPENDS


def weighed(differences: Differences) -> tuple[str, str]:
    """These differences in words, and the verdict."""
    made = {name: difference for name, difference in differences.items() if difference is not None}
    adjusted = holm([difference.p for difference in made.values()])
    tested = {name: p for name, p in zip(made, adjusted, strict=True) if not np.isnan(p)}
    parts = [f"{name} {round(made[name].mean, 2) + 0.0:+.2f} (p {p:.2g})" for name, p in tested.items()]
    if untested := len(made) - len(tested):
        parts.append(f"{untested} not tested: all runs have the same value, or there are fewer than three")
    if unlearnt := len(differences) - len(made):
        parts.append(f"{unlearnt} not tested: a scheme did not learn the task")
    return "; ".join(parts) + ".", weigh(list(made.values()))


def kept(values: pd.Series, tests: int = 1) -> bool | None:
    """Whether the mean is 0.9 or more (True), less (False), or undecided (None); Bonferroni over tests."""
    if len(values) < FEWEST:
        return None
    if tests * mean_below_p(list(values), SOLVED) <= ALPHA:
        return False
    return True if tests * mean_above_p(list(values), SOLVED) <= ALPHA else None


def of_training(t: Trained) -> list[Verdict]:
    """The verdicts that rest on trained models."""
    return [verdict for part in (order, offset, combined, room, reach, extended) for verdict in part(t)]


def order(t: Trained) -> Iterator[Verdict]:
    none, sinusoidal = (t.of("precedence", scheme)[IN_DISTRIBUTION] for scheme in ("none", "sinusoidal"))
    guessing = t.points("precedence", "none")["chance"].mean()
    measured = f"Exact match in distribution: none {mean_in_words(none)}, sinusoidal "
    measured += f"{mean_in_words(sinusoidal)}; guessing gives {guessing:.2f}."
    verdict = weigh([Difference(sinusoidal, none)])
    if verdict == HOLDS and (t.learnt("precedence", "none") or not t.learnt("precedence", "sinusoidal")):
        verdict = DEPENDS
    claim = "A trained encoder needs positions to know what comes first"
    document = "self-attention is permutation-invariant"
    yield Verdict(document, claim, "precedence, encoder", measured, verdict, "claims-fixed-or-learned")


def offset(t: Trained) -> Iterator[Verdict]:
    about = ("hence relative positions are easy to learn", "Relative positions are easily learnt",
             "lag (the symbol three back), decoder, sinusoidal")  # fmt: skip
    if ("lag", "sinusoidal", t.width) not in t.groups:
        yield Verdict(*about, f"Pending: no runs of lag yet ({SWEEP}).", ABSENT)
        return
    runs = t.of("lag", "sinusoidal")
    within, twice = mean_in_words(runs[IN_DISTRIBUTION]), mean_in_words(runs[TWICE])
    measured = f"Exact match in distribution: {within}; at 2x: {twice}."
    verdict = {True: HOLDS, False: DEPENDS, None: UNSUPPORTED}[kept(runs[TWICE])]
    yield Verdict(*about, measured, verdict if t.learnt("lag", "sinusoidal") else FAILS)


def added_or_concatenated(t: Trained, width: int) -> Differences:
    """Added minus put beside the token in a model of that width, in distribution and past training."""
    return {
        f"{scheme}, {task}, {WORDS[metric]}": difference(t, task, metric, scheme, beside, (0, width))
        for task in MODELS
        for scheme, beside in ((scheme, f"{scheme}(combine=concat)") for scheme in ("sinusoidal", "learned"))
        for metric in (IN_DISTRIBUTION, PAST)
        if (task, beside, width) in t.groups
    }


def combined(t: Trained) -> Iterator[Verdict]:
    for size, width, how, figure in (
        ("a larger vector", 2 * t.width, "concatenated (twice as many columns)", ""),
        (
            "a vector as large",
            t.width,
            "concatenated (in half of the same number of columns)",
            "claims-add-or-concat",
        ),
    ):
        differences = added_or_concatenated(t, width)
        found = weighed(differences) if differences else (f"Pending: no such runs yet ({SWEEP}).", ABSENT)
        claim, tested = f"Add, do not concatenate ({size})", f"Positions added, minus positions {how}"
        yield Verdict("add, do not concatenate", claim, tested, *found, figure if differences else "")


def room(t: Trained) -> Iterator[Verdict]:
    differences, shown = {}, []
    for task in MODELS:
        widths = t.widths(task)
        means = ", ".join(f"d={d} {t.of(task, 'sinusoidal', d)[IN_DISTRIBUTION].mean():.2f}" for d in widths)
        shown.append(f"{task} in distribution: {means}")
        ends = (widths[-1], widths[0])
        for metric in (IN_DISTRIBUTION, PAST):
            name = f"{task}, {WORDS[metric]}, d={ends[0]} minus d={ends[1]}"
            differences[name] = difference(t, task, metric, "sinusoidal", "sinusoidal", ends)
    text, verdict = weighed(differences)
    document, claim = (
        "larger d_model gives the encoding more room",
        "A larger d_model gives the encoding more room",
    )
    tested = "sinusoidal at several d_model; the whole model grows with it"
    yield Verdict(document, claim, tested, f"{'; '.join(shown)}. {text}", verdict, "claims-width")


def reach(t: Trained) -> Iterator[Verdict]:
    figure = "claims-fixed-or-learned"
    tested = "Trained on short inputs, evaluated at twice the length: is the mean exact match 0.9 or more?"
    for scheme, document, claim, wanted in (
        ("sinusoidal", "it “generalises to lengths not seen”",
         "Fixed sinusoids generalise to lengths not seen", True),
        ("learned", "learned adapts but not beyond its length",
         "Learned positions adapt, but not beyond their length", False),
    ):  # fmt: skip
        found, shown = [], []
        for task in MODELS:
            runs = t.of(task, scheme)
            carried = kept(runs[TWICE], len(MODELS))
            found.append(None if carried is None else carried is wanted and t.learnt(task, scheme))
            within, twice = mean_in_words(runs[IN_DISTRIBUTION]), mean_in_words(runs[TWICE])
            shown.append(f"{task} {within} in distribution, {twice} at 2x")
        decided = DEPENDS if True in found else FAILS
        verdict = decided if False in found else HOLDS if all(found) else UNSUPPORTED
        yield Verdict(document, claim, tested, f"{'; '.join(shown)}.", verdict, figure)
    for first, second, document, claim in (
        ("sinusoidal", "learned", "fixed generalises, learned adapts but not beyond its length",
         "Fixed sinusoids reach further than learned positions"),
        ("learned_sinusoidal", "learned", OURS, "A learned table should start from sinusoids"),
        ("sinusoidal", "none", OURS, "Sinusoids reach further than no positions"),
    ):  # fmt: skip
        differences = {
            f"{task}, {WORDS[metric]}": difference(t, task, metric, first, second)
            for task in MODELS
            for metric in (TWICE, PAST)
        }
        minus = f"Exact match of {first} minus that of {second}"
        yield Verdict(document, claim, minus, *weighed(differences), figure)


def extended(t: Trained) -> Iterator[Verdict]:
    text, better = weighed({name: difference(t, "copy", PAST, name, "rope") for name in EXTENSIONS})
    twice = {name: t.of("copy", name)[TWICE] for name in EXTENSIONS}
    carried = [kept(values, len(twice)) for values in twice.values()]
    linear = t.read_as["rope_linear"].set_index("content_length")["exact_match"]
    first = min(length for length in linear.index if length > t.longest)
    shown = ", ".join(f"{name} {mean_in_words(values)}" for name, values in twice.items())
    measured = (
        f"At {2 * t.longest} digits: {shown}. rope_linear at {first} digits: {mean_in_words(linear[first])} "
    )
    measured += "(the final length must be known beforehand). Change past training, against RoPE as trained: "
    if True in carried:
        verdict = HOLDS
    elif better == HOLDS:
        verdict = DEPENDS  # better than as trained, but not solved at twice the length
    else:
        verdict = FAILS if False in carried else better
    tested = f"RoPE trained on up to {t.longest} digits (copy), frequencies rescaled at evaluation"
    claim = "Rescaled frequencies carry RoPE to longer inputs without training"
    yield Verdict(OURS, claim, tested, measured + text, verdict, "claims-extension")
