"""The numbers that a study's page states: looked up in its tables by name, never typed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from pe_experiments.comparison.compare import Options, tables
from pe_experiments.comparison.protocols import sections_of
from pe_experiments.comparison.runs_table import Runs
from pe_experiments.comparison.statistics import FEWEST
from pe_experiments.comparison.words import count, mean
from pe_experiments.errors import UserError

TEMPLATES = Path(__file__).parent / "templates"
MEASURE = "measure it with: python scripts/benchmark.py out=results/benchmark"
METRICS = {
    "within": "exact_match_in_distribution",
    "at_2x": "exact_match_at_2x",
    "past": "exact_match_extrapolation",
}


class Figures:
    """A study's tables, asked for by task, model and scheme.

    Args:
        runs: of the study.
        only: settings that a run must have where the study holds several protocols of one task and model, as
            ``training.precision=float32``.
    """

    def __init__(self, runs: Runs, only: str = ""):
        self.runs = runs
        self.table, self.pairs = tables(sections_of(runs), Options())
        kept = self.table["settings"].str.split("; ").map(lambda settings: not only or only in settings)
        self._wanted = kept.to_numpy(bool)

    def cells(self, task: str, model: str, scheme: str) -> dict[Any, Any]:
        """The row of one scheme.

        Raises:
            UserError: there is none, or more than one.
        """
        table = self.table
        here = (table["task"] == task) & (table["model"] == model) & (table["scheme"] == scheme)
        found = [place for place, kept in enumerate(here.to_numpy(bool) & self._wanted) if kept]
        if len(found) != 1:
            raise UserError(
                f"the study has {len(found)} protocols with runs of {scheme} on {task} with the {model}, not "
                "one; run all of its sweep"
            )
        return table.iloc[found[0]].to_dict()

    def values(self, task: str, model: str, scheme: str, metric: str) -> dict[int, float]:
        """A metric by seed."""
        protocol = self.cells(task, model, scheme)["protocol"]
        rows = self.runs.runs[(self.runs.runs["protocol"] == protocol) & (self.runs.runs["label"] == scheme)]
        values = zip(rows["seed"], rows[METRICS.get(metric, metric)], strict=True)
        return {int(seed): float(value) for seed, value in sorted(values)}

    def mean(self, task: str, model: str, scheme: str, metric: str) -> str:
        """A metric over the seeds: mean and interval, ``all 5 seeds 1.00`` where they agree."""
        return mean(self.cells(task, model, scheme), METRICS.get(metric, metric))

    def at(self, task: str, model: str, scheme: str, length: int, column: str = "exact_match") -> str:
        """The same at one length."""
        return self.mean(task, model, scheme, f"{column}@{length}")

    def reached(self, task: str, model: str, scheme: str, length: int) -> str:
        """How many seeds reach 0.9 at a length, as ``3 of 5``."""
        return count(self.cells(task, model, scheme), f"reached@{length}")

    def solved(self, task: str, model: str, scheme: str) -> str:
        """How many seeds solved the training lengths, as ``5 of 5``."""
        return count(self.cells(task, model, scheme), "solved")

    @property
    def seeds(self) -> str:
        """``5``, or ``3 to 5``."""
        counts = sorted({int(count) for count in self.table["seeds"]})
        return f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"

    @property
    def intervals(self) -> bool:
        """Whether there are seeds enough for intervals."""
        return bool((self.table["seeds"] >= FEWEST).any())


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
    return environment.get_template(template).render(**content)
