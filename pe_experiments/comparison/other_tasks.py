"""What runs score on tasks they were not trained on: evaluations made with `scripts/evaluate.py task=...`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from pe_experiments.comparison.presentation import Phrase, ShownTable
from pe_experiments.comparison.report import Report
from pe_experiments.comparison.runs_table import Runs
from pe_experiments.errors import UserError
from pe_experiments.runs import RunDirectory, run_directory
from pe_experiments.tracking import read_curve

COLUMNS = (
    "name",
    "label",
    "seed",
    "task",
    "model",
    "protocol",
    "evaluated_on",
    "decoding",
    "length",
    "content_length",
    "examples",
    "exact_match",
    "token_accuracy",
)


def load_other_tasks(runs: Runs, results_dir: Path) -> pd.DataFrame:
    """One row per run, other task and length, with the columns above.

    An evaluation of a run under another scheme than the one it was trained with is not a run's, and left out;
    what is damaged is named in ``runs.left_out``. Of one run, task and length evaluated twice, the row with
    more examples is kept.
    """
    rows = []
    for run in runs.runs.to_dict("records"):
        directory = run_directory(results_dir, run["name"])
        for path in sorted(directory.path.glob("evaluations/*/")):
            try:
                rows += _rows_of(RunDirectory(path), directory, run)
            except (UserError, OSError, ValueError, KeyError, TypeError) as error:
                runs.left_out[f"{run['name']}/evaluations/{path.name}"] = str(error)
    table = pd.DataFrame(rows, columns=list(COLUMNS)).sort_values("examples", kind="stable")
    key = ["name", "evaluated_on", "decoding", "content_length"]
    return table.drop_duplicates(key, keep="last").sort_values(["protocol", "label", "seed", *key])


def _rows_of(directory: RunDirectory, trained: RunDirectory, run: dict) -> list[dict]:
    result, main = directory.read_result(), trained.read_result()
    if not result or not main or "evaluated_on" not in result:
        return []
    if result["evaluation"]["pe"] != main["evaluation"]["pe"]:
        return []
    said = {
        "evaluated_on": str(result["evaluated_on"]),
        "decoding": result["evaluation"].get("decoding", "teacher_forcing"),
    }
    return [{key: {**point, **run, **said}[key] for key in COLUMNS} for point in read_curve(directory.curve)]


def with_other_tasks(report: Report, table: pd.DataFrame) -> Report:
    """The report with, per section and other task, a table of exact match by scheme and length."""
    sections = []
    for part in report.sections:
        here = table[table["protocol"] == part.section.protocol]
        shown = [_shown(str(on), rows) for on, rows in here.groupby("evaluated_on")]
        sections.append(replace(part, tables=[*part.tables, *shown]))
    return replace(report, sections=sections)


def _shown(on: str, rows: pd.DataFrame) -> ShownTable:
    """Mean over seeds, and how many; exact match does not depend on the decoding."""
    per_seed = rows.drop_duplicates(["label", "seed", "content_length"])
    lengths = sorted(int(length) for length in per_seed["content_length"].unique())
    body: list[Sequence[Phrase]] = []
    for label, own in per_seed.groupby("label"):
        scores = {n: own.loc[own["content_length"] == n, "exact_match"] for n in lengths}
        cells = [f"{here.mean():.2f} ({len(here)})" if len(here) else "" for here in scores.values()]
        body.append([[str(label)], *([cell] for cell in cells)])
    caption = f"Also evaluated on {on}: exact match by length, mean over seeds (number of seeds)"
    return ShownTable(caption, ["scheme", *map(str, lengths)], body)
