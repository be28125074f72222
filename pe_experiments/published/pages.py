"""What the pages of studies share: settings as columns, values and tables as Markdown, the comparison."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pe_experiments.comparison import Comparison, Runs, compared, write_comparison
from pe_experiments.comparison.statistics import FEWEST, ROUNDING, mean_interval
from pe_experiments.comparison.words import number
from pe_experiments.drawing import markdown_table
from pe_experiments.evaluation.summary import SOLVED
from pe_experiments.published.archive import FILES, read_archive
from pe_experiments.terminal.console import display_for


def compare_archived(folder: Path, metric: str | None = None) -> Comparison:
    """Tables, figures and report of a published study, in its folder; its CSVs stay as they are."""
    runs, facts = read_archive(folder), {folder / name: (folder / name).read_bytes() for name in FILES}
    title = f"Comparison: {folder.name}"
    made = write_comparison(compared(runs, metric), title, folder, display_for())
    for path, content in facts.items():
        path.write_bytes(content)
    return made


def with_settings(runs: Runs, **keys: str) -> pd.DataFrame:
    """The runs with a column per setting, as ``with_settings(runs, width="model.d_model")``."""
    trained = [runs.saved[name]["identity"]["trained"] for name in runs.runs["name"]]
    columns = {column: key.split(".") for column, key in keys.items()}
    return runs.runs.assign(
        **{column: [one[group].get(key) for one in trained] for column, (group, key) in columns.items()}
    )


def titled(runs: Runs) -> pd.DataFrame:
    """The runs with a column ``title``: the task, of copying with its number of symbols."""
    table = with_settings(runs, symbols="task.vocab_size")
    pairs = zip(table["task"], table["symbols"], strict=True)
    return table.assign(title=[f"copy, {n:g} symbols" if task == "copy" else task for task, n in pairs])


def rate_in_words(choice: Mapping[str, Any]) -> str:
    """The learning rate chosen; an asterisk where it is the edge of those tried."""
    tried, chosen = sorted(map(float, choice["tried"])), float(choice["chosen"])
    return f"{chosen:g}" + "*" * (chosen in (tried[0], tried[-1]))


def mean_in_words(values: Iterable[float]) -> str:
    """``0.32 [0.08, 0.70]``; ``1.00 in all 5 seeds`` where they agree; no interval under three seeds."""
    numbers = list(values)
    interval = mean_interval(numbers)
    estimate, low, high = map(number, (interval.estimate, interval.low, interval.high))
    if len(numbers) < FEWEST:
        return f"{estimate} ({len(numbers)} seed{'s' * (len(numbers) > 1)})"
    if np.ptp(numbers) <= ROUNDING:
        return f"{estimate} in all {len(numbers)} seeds"
    return f"{estimate} [{low}, {high}]"


def outcome_table(runs: pd.DataFrame, rows: str, schemes: Sequence[str]) -> str:
    """Exact match at twice the training length by a column of the runs and by scheme, as Markdown.

    ``3 of 5`` seeds reach 0.9, if all others are at most 0.1; otherwise the mean. *Not learned*: fewer than
    half reach 0.9 in distribution. Of several protocols a cell shows the worst.
    """
    cells: dict[Any, tuple[float, str]] = {}
    for (row, scheme, _), own in runs.groupby([rows, "label", "protocol"]):
        cells[row, scheme] = min(_outcome(own), cells.get((row, scheme), (math.inf, "")))
    lines = [[row, *(cells.get((row, s), (0, "–"))[1] for s in schemes)] for row in dict.fromkeys(runs[rows])]
    return markdown_table(["exact match at 2x", *schemes], lines)


def _outcome(runs: pd.DataFrame) -> tuple[float, str]:
    """How good it is, and in words."""
    values = runs["exact_match_at_2x"].astype(float)
    if (solved := runs["solved_in_distribution"].eq(True).sum()) < len(runs) / 2:
        return solved - len(runs), f"not learned ({solved} of {len(runs)})"
    if all(min(value, 1 - value) <= 1 - SOLVED + 1e-9 for value in values):
        return values.mean(), f"{(values >= SOLVED).sum()} of {len(runs)}"
    return values.mean(), mean_in_words(values)
