"""The numbers that a study's page states: looked up in its tables by name, never typed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from pe_experiments.comparison.runs_table import Runs
from pe_experiments.comparison.statistics import Interval, mean_interval, paired_difference
from pe_experiments.errors import UserError

TEMPLATES = Path(__file__).parent / "templates"
MEASURE = "measure it with: python scripts/benchmark.py out=results/benchmark"
METRICS = {
    "inside": "exact_match_in_distribution",
    "at_2x": "exact_match_at_2x",
    "beyond": "exact_match_extrapolation",
    "tokens_inside": "token_accuracy_in_distribution",
    "tokens_at_2x": "token_accuracy_at_2x",
}


@dataclass(frozen=True)
class Figures:
    """A study's runs, asked for by task, model and scheme.

    Attributes:
        runs: of the study.
        only: settings that a run must have where the study holds several protocols of one task and model, as
            ``{"precision": "float32"}`` of the training section.
    """

    runs: Runs
    only: tuple[tuple[str, Any], ...] = ()

    @cached_property
    def _training(self) -> dict[str, dict[str, Any]]:
        return {name: saved["identity"]["trained"]["training"] for name, saved in self.runs.saved.items()}

    def rows(self, task: str, model: str, scheme: str) -> pd.DataFrame:
        """The runs of one scheme, by seed."""
        table = self.runs.runs
        found = table[(table["task"] == task) & (table["model"] == model) & (table["label"] == scheme)]
        kept = [all(self._training[name][key] == value for key, value in self.only) for name in found["name"]]
        if not any(kept):
            raise UserError(
                f"the study has no runs of {scheme} on {task} with the {model}; run all of its sweep"
            )
        found = found[kept].set_index("seed").sort_index()
        if not found.index.is_unique:
            raise UserError(f"the study has several protocols of {scheme} on {task} with the {model}")
        return found

    def values(self, task: str, model: str, scheme: str, metric: str) -> dict[int, float]:
        """One figure by seed."""
        column = METRICS.get(metric, metric)
        return {int(str(seed)): float(x) for seed, x in self.rows(task, model, scheme)[column].items()}

    def at(self, task: str, model: str, scheme: str, length: int, column: str = "exact_match") -> Interval:
        """A figure at one length over the seeds."""
        names = set(self.rows(task, model, scheme)["name"])
        curves = self.runs.curves
        points = curves[curves["name"].isin(names) & (curves["content_length"] == length)]
        return mean_interval(points[column].to_numpy(float))

    def mean(self, task: str, model: str, scheme: str, metric: str) -> Interval:
        """A figure over the seeds, with Student's t interval."""
        return mean_interval(list(self.values(task, model, scheme, metric).values()))

    def difference(self, task: str, model: str, scheme: str, baseline: str, metric: str) -> Interval:
        """Scheme minus baseline, paired by seed."""
        return paired_difference(
            self.values(task, model, scheme, metric), self.values(task, model, baseline, metric)
        ).difference

    def solved(self, task: str, model: str, scheme: str) -> str:
        """How many seeds solved the training lengths, as ``5 of 5``."""
        rows = self.rows(task, model, scheme)
        return f"{int(rows['solved_in_distribution'].eq(True).sum())} of {len(rows)}"


@dataclass(frozen=True)
class Timed:
    """The table of the benchmark, asked for by part and case.

    Attributes:
        rows: ``table.csv``.
        machine: ``machine.json``.
    """

    rows: pd.DataFrame
    machine: dict[str, Any]

    @classmethod
    def read(cls, folder: Path) -> Timed:
        """The benchmark's table in ``results/benchmark``."""
        if not (folder / "table.csv").exists():
            raise UserError(f"{folder} has no table.csv; {MEASURE}")
        rows = pd.read_csv(folder / "table.csv", keep_default_na=False, na_values=[""])
        return cls(rows, json.loads((folder / "machine.json").read_text()))

    def row(self, part: str, case: str, setting: str) -> pd.Series:
        """One line; ``setting`` may be the beginning of its setting."""
        rows = self.rows
        found = rows[
            (rows["part"] == part) & (rows["case"] == case) & rows["setting"].str.startswith(setting)
        ]
        if len(found) != 1:
            raise UserError(f"results/benchmark/table.csv has no {part}, {case}, {setting}; {MEASURE}")
        return found.iloc[0]

    def ratio(self, part: str, case: str, setting: str) -> str:
        """How many times as long as what it is compared with, as ``0.51``."""
        return f"{self.row(part, case, setting)['ratio']:.2f}"


def shown(value: Interval) -> str:
    """``.98 (.97-.99)``: the mean with its 95 % interval, kept to what an accuracy can be.

    The same in all seeds is shown without one.
    """
    if value.low != value.low or round(value.high - value.low, 3) == 0:
        return number(value.estimate)
    low, high = max(value.low, 0.0), min(value.high, 1.0)
    return f"{number(value.estimate)} ({number(low)} to {number(high)})"


def shown_difference(value: Interval) -> str:
    """``+.05 (-.10 to +.20)``: a difference of accuracies with its interval, both signs shown."""
    if value.low != value.low or round(value.high - value.low, 3) == 0:
        return _signed(value.estimate)
    return f"{_signed(value.estimate)} ({_signed(value.low)} to {_signed(value.high)})"


def _signed(value: float) -> str:
    return ("" if round(value, 2) <= 0 else "+") + number(value)


def number(value: float) -> str:
    """Two digits, three near the ends where these differ: ``.99`` but ``.998``; no zero before the point."""
    digits = 3 if 0.99 < abs(value) < 0.9995 else 2
    text = f"{value:.{digits}f}"
    if float(text) == 0:
        return "0.00"
    return text.replace("0.", ".", 1) if text.lstrip("-").startswith("0.") else text


def markdown_table(heading: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table as Markdown."""
    names = list(heading)
    lines = [names, ["---"] * len(names), *(list(row) for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def render(template: str, **content: Any) -> str:
    """A page from its template; a name the template uses and nobody gives is an error."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
    )
    environment.filters |= {"shown": shown, "number": number}
    return environment.get_template(template).render(**content)
