"""What the pages of studies share: settings as columns, values and tables as Markdown, the comparison."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from pe_experiments.comparison import Comparison, Options, Runs, write_comparison
from pe_experiments.comparison.statistics import FEWEST, ROUNDING, mean_interval
from pe_experiments.comparison.words import number
from pe_experiments.console import display_for


def compare_archived(folder: Path, runs: Runs, options: Options | None = None) -> Comparison:
    """Tables, figures and report of a study, in its folder."""
    title = f"Comparison: {folder.name}"
    return write_comparison(runs, title, folder, options or Options(), display=display_for())


def with_settings(runs: Runs, **keys: str) -> pd.DataFrame:
    """The runs with a column per setting, as ``with_settings(runs, width="model.d_model")``."""
    trained = [runs.saved[name]["identity"]["trained"] for name in runs.runs["name"]]
    columns = {column: key.split(".") for column, key in keys.items()}
    return runs.runs.assign(
        **{column: [one[group].get(key) for one in trained] for column, (group, key) in columns.items()}
    )


def mean_in_words(values: Iterable[float], lowest: float = 0.0) -> str:
    """``0.32 [0.08, 0.70]``; ``1.00 in all 5 seeds`` where they agree; no interval under three seeds.

    ``lowest`` is the smallest value there can be.
    """
    numbers = list(values)
    interval = mean_interval(numbers, lowest)
    estimate, low, high = map(number, (interval.estimate, interval.low, interval.high))
    if len(numbers) < FEWEST:
        return f"{estimate} ({len(numbers)} seed{'s' * (len(numbers) > 1)})"
    if np.ptp(numbers) <= ROUNDING:
        return f"{estimate} in all {len(numbers)} seeds"
    return f"{estimate} [{low}, {high}]"


def markdown_table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table as Markdown; a bar in a cell stays one."""
    lines = [heading, ["---"] * len(heading), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
