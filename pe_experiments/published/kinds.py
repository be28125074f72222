"""A kind of run of a published study: a scheme under a protocol, with the run that stands for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from pe_experiments.comparison.runs import Runs
from pe_experiments.published.archive import EVALUATED
from pe_experiments.published.replay import MACHINE, Outcome, Request, code_of
from pe_experiments.store.code import Digests
from pe_experiments.store.directory import COMPLETED
from pe_experiments.store.identity import CODE_OF
from pe_experiments.store.known import Half, known, states

STEADY = 0.99  # of all answers
BEYOND = 10  # steps after the first recorded one: the warm-up is over and the schedule begins
RECORDED = ("loss", "exact_match", "token_accuracy")
# Columns of a curve that depend on the weights, or on how many examples are looked at.
OF_WEIGHTS = (*RECORDED, "exact_match_low", "exact_match_high")
OF_EXAMPLES = ("examples", "seen", "largest_position", "untrained_positions")


@dataclass(frozen=True)
class Kind:
    """A scheme under a protocol, and the published run that stands for it.

    Attributes:
        run, label, task: of the run.
        command, trained: what made it.
        published: its recorded ``rows`` and its ``curve``.
        witnessed: the same of its beginning in double precision; None where nobody has replayed it yet.
        machine: that made it.
        seconds: of one of its steps.
        steady: whether with every seed it gets nearly all answers right at the lengths trained on, so that
            another rounding will, too.
        code: today's, by part.
        states: of the code that made it and evaluated it, as published.
    """

    run: str
    label: str
    task: str
    command: list[str]
    trained: dict[str, Any]
    published: Outcome
    witnessed: Outcome | None
    machine: dict[str, Any]
    seconds: float
    steady: bool
    code: Digests
    states: Mapping[Half, Digests]

    @property
    def unknown(self) -> set[str]:
        """Parts whose code is not known to give the published numbers."""
        return {
            part
            for part, digest in self.code.items()
            if not self._holds(part, states({part: digest}, _half(part)))
        }

    def names(self, part: str) -> bool:
        """Whether the state that is published for a part is the one by which known code of it counts."""
        listed = known()["parts"].get(part)
        return listed is not None and self._holds(part, listed[_half(part)])

    def _holds(self, part: str, state: Digests) -> bool:
        published = self.states[_half(part)]
        return not published or state.items() <= published.items()

    @property
    def last_step(self) -> int:
        return int(max(row["step"] for row in self.published["rows"]))

    def beginning(self, steps: int | None = None, nudge: float = 0.0) -> Request:
        """Asks for so many steps in double precision; None: for all that is witnessed."""
        first = int(min(row["step"] for row in self.published["rows"]))
        return Request(self.run, self.command, self.trained, steps or first + BEYOND, nudge)

    def whole(self) -> Request:
        return Request(self.run, self.command, self.trained, None)


def _half(part: str) -> Half:
    return "evaluated" if part == "evaluation" else "trained"


def kinds_of(runs: Runs, witnessed: pd.DataFrame) -> list[Kind]:
    """One run for every scheme and protocol of a study, the longest first.

    Raises:
        UserError: today's package has no such scheme, task or model.
    """
    rows = runs.runs[(runs.runs["status"] == COMPLETED) & runs.runs["name"].isin(runs.training["name"])]
    rows = rows.sort_values("seed", kind="stable").drop_duplicates(["protocol", "scheme"])
    return sorted(
        (kind_of_run(runs, row, witnessed) for row in rows.to_dict("records")),
        key=lambda kind: -kind.seconds,
    )


def kind_of_run(runs: Runs, row: Mapping[Any, Any], witnessed: pd.DataFrame) -> Kind:
    """The kind that a row of `Runs.runs` stands for; ``witnessed`` as `archive.read_witness` reads it."""
    name = str(row["name"])
    recorded = runs.training[runs.training["name"] == name].sort_values("step")
    curve = runs.curves[runs.curves["name"] == name].to_dict("records")
    environment, identity = runs.environments[name], runs.saved[name]["identity"]
    trained, made = identity["trained"], identity["sources"]
    own = witnessed[witnessed["name"] == name]
    return Kind(
        name,
        str(row["label"]),
        str(row["task"]),
        [str(word) for word in environment["command"]],
        trained,
        {"rows": recorded[["step", *RECORDED]].to_dict("records"), "curve": curve},
        _beginning(own, curve) if len(own) else None,
        {key: environment.get(key) for key in MACHINE},
        float(row["seconds_per_step"]),
        _steady(runs, row),
        code_of(trained),
        {
            "trained": {part: state for group in CODE_OF for part, state in made.get(group, {}).items()},
            "evaluated": runs.saved[name].get(EVALUATED, {}),
        },
    )


def _steady(runs: Runs, row: Mapping[Any, Any]) -> bool:
    rows, curves = runs.runs, runs.curves
    seeds = rows.loc[(rows["protocol"] == row["protocol"]) & (rows["scheme"] == row["scheme"]), "name"]
    points = curves[curves["name"].isin(seeds) & (curves["split"] == "in_distribution")]
    return bool((points["exact_match"] >= STEADY).all())


def _beginning(witnessed: pd.DataFrame, curve: Sequence[Mapping[Any, Any]]) -> Outcome:
    """Witnessed numbers, beside the columns of the published curve that depend on no weights."""
    steps, lengths = witnessed[witnessed["length"].isna()], witnessed[witnessed["length"].notna()]
    measured = {one["length"]: {key: one[key] for key in RECORDED} for one in lengths.to_dict("records")}
    points = [
        {key: value for key, value in point.items() if key not in (*OF_WEIGHTS, *OF_EXAMPLES)}
        | measured.get(point["content_length"], {})
        for point in curve
    ]
    return {"rows": steps[["step", *RECORDED]].to_dict("records"), "curve": points}


def crossing(kinds: Sequence[Kind]) -> list[Kind]:
    """Few of the kinds, the shortest first, among which every scheme and every task occurs."""
    met, chosen = set[str](), []
    for kind in reversed(kinds):
        names = {kind.label, str(kind.trained["task"])}
        if not names <= met:
            chosen.append(kind)
            met |= names
    return chosen
