"""Compare encodings added to the bank later with its first twelve in the same configurations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.figure import Figure

from pe_experiments.comparison.words import number
from pe_experiments.drawing import save
from pe_experiments.studies import read_archive, table, verdicts
from pe_experiments.studies.archive import select_runs
from pe_experiments.studies.pages import load_study
from pe_experiments.studies.scores import FLOORS, SCORE, score_table, scores_by_setting

BANK = Path(__file__).parents[1] / "v2"
bank = load_study(BANK)
TASKS = ["copy", "lag", "induction", "flip_flop"]
RUNS = len(TASKS) * bank.SETTINGS * 2  # per encoding, at two learning rates
RECOMMENDED = ["fox", "kerple_log"]
MEAN = "mean"  # over the tasks, unlearned configurations as 0
SHADES = 25  # published images have a small palette


def load(folder: Path) -> tuple[pd.DataFrame, list[str]]:
    """Return the scores of all encodings, and the names of the new ones.

    Encodings with missing runs are left out.
    """
    floors = pd.read_csv(BANK / FLOORS)
    tables = []
    for archive in (read_archive(BANK), read_archive(folder)):
        counts = archive.runs[archive.runs["task"].isin(TASKS)].groupby("label").size()
        complete = archive.runs["label"].isin(counts[counts == RUNS].index)
        chosen = select_runs(archive, complete & archive.runs["task"].isin(TASKS))
        tables.append(score_table(chosen, floors, (SCORE, bank.AT_2X, bank.AT_4X)))
    return pd.concat(tables, ignore_index=True), sorted(set(tables[1]["label"]))


def matrices(scores: pd.DataFrame, unlearned: float = np.nan) -> dict[str, pd.DataFrame]:
    """Return the scores [configurations, encodings] by task; ``unlearned`` replaces unlearned ones."""
    return {task: scores_by_setting(scores[scores["task"] == task], SCORE, unlearned) for task in TASKS}


def mean_over_tasks(scores: pd.DataFrame) -> pd.DataFrame:
    """Return the mean scores [configurations, encodings] over the tasks, unlearned configurations as 0."""
    total: Any = sum(matrices(scores, unlearned=0.0).values())
    return total / len(TASKS)


def summary(scores: pd.DataFrame) -> pd.DataFrame:
    """Return mean scores [encodings, mean and tasks] sorted by the mean, unlearned configurations as 0."""
    means = {MEAN: mean_over_tasks(scores).mean()}
    means |= {task: matrix.mean() for task, matrix in matrices(scores, unlearned=0.0).items()}
    return pd.DataFrame(means).sort_values(MEAN, ascending=False)


def against_recommended(scores: pd.DataFrame, new: Iterable[str]) -> pd.DataFrame:
    """Return the tests of each new against each recommended encoding, in the mean over the tasks."""
    matrix = mean_over_tasks(scores)
    rows = []
    for label in new:
        rows += difference_rows(matrix[[label, *RECOMMENDED]], label, MEAN)
    return pd.DataFrame(rows)


def by_task(scores: pd.DataFrame, new: Iterable[str]) -> pd.DataFrame:
    """Return the tests of each new against each earlier encoding, by task, where both learned the task."""
    rows = []
    for label in new:
        others = [name for name in scores["label"].unique() if name not in new]
        for task, matrix in matrices(scores).items():
            rows += difference_rows(matrix[[label, *others]], label, task)
    return pd.DataFrame(rows)


def difference_rows(matrix: pd.DataFrame, label: str, task: str) -> list[dict[str, Any]]:
    """Return the tests of an encoding against all others of a matrix [configurations, encodings]."""
    return [
        {"encoding": label, "task": task, "other": other, **difference.columns}
        for other, difference in verdicts.verdicts_on(matrix, label).items()
    ]


def pages(folder: Path) -> None:
    """Draw the mean scores of all encodings and write ``scores.csv`` and ``verdicts.csv``."""
    scores, new = load(folder)
    scores[scores["label"].isin(new)].to_csv(folder / "scores.csv", index=False)
    tests = pd.concat([against_recommended(scores, new), by_task(scores, new)])
    tests.to_csv(folder / "verdicts.csv", index=False)
    means = summary(scores)
    figure = Figure(figsize=(7.2, 0.8 + 0.2 * len(means)), layout="constrained")
    axes = figure.subplots()
    draw_matrix(axes, means, "Blues", 0, 1)
    write_values(axes, means)
    for tick_label, label in zip(axes.get_yticklabels(), means.index, strict=True):
        tick_label.set_fontweight("bold" if label in new else "normal")
    save(figure, folder / "figures", "answer")


def draw_matrix(axes: Any, values: pd.DataFrame, colours: str, low: float, high: float) -> None:
    """Draw values as colours; missing values are grey."""
    axes.set_facecolor("0.75")
    axes.imshow(values, cmap=colormaps[colours].resampled(SHADES), vmin=low, vmax=high, aspect="auto")
    axes.set_xticks(range(len(values.columns)), values.columns)
    axes.set_yticks(range(len(values)), values.index)


def write_values(axes: Any, values: pd.DataFrame) -> None:
    """Write the numbers into the cells of `draw_matrix`, in white on dark cells."""
    for (row, column), value in np.ndenumerate(values.to_numpy()):
        colour = "white" if value > 0.55 else "black"
        axes.text(
            column, row, number(value), color=colour, fontsize=7, ha="center", va="center", linespacing=0.9
        )


def blocks(folder: Path) -> dict[str, Any]:
    """Return the tables and the numbers of the page."""
    scores, new = load(folder)
    means = summary(scores)
    values: dict[str, Any] = {}
    for task, column in means.items():
        values |= {f"{label}/{task}": value for label, value in column.items()}
    order = [label for label in means.index if label in new]
    return values | {
        "count": len(new),
        "recommendation": recommendation_table(against_recommended(scores, order)),
        "verdicts": verdict_table(by_task(scores, order)),
        "views": view_table(scores, order),
    }


def recommendation_table(rows: pd.DataFrame) -> str:
    """Return a table of the difference of each new encoding from the recommended ones."""
    cells: dict[str, dict[str, str]] = {}
    for row in rows.to_dict("records"):
        change = f"{row['difference']:+.2f} [{row['low']:+.2f}, {row['high']:+.2f}], p = {row['p']:.3f}"
        cells.setdefault(f"`{row['encoding']}`", {})[f"minus `{row['other']}`"] = change
    return table(pd.DataFrame([{"encoding": label, **row} for label, row in cells.items()]))


def verdict_table(rows: pd.DataFrame) -> str:
    """Return a table of the bank's encodings by verdict, for each new encoding and task."""
    lines = []
    for (label, task), group in rows.groupby(["encoding", "task"], sort=False):
        others, verdict = group["other"], group["verdict"]
        lines.append(
            {
                "encoding": f"`{label}`",
                "task": task,
                "higher than": bank.listed(others[verdict == verdicts.BETTER]),
                "tied with": bank.listed(others[verdict == verdicts.NOT_SEPARATED]),
                "lower than": bank.listed(others[verdict == verdicts.WORSE]),
                "not compared with": bank.listed(others[~verdict.isin(verdicts.TESTED)]),
            }
        )
    return table(pd.DataFrame(lines))


def view_table(scores: pd.DataFrame, new: Sequence[str]) -> str:
    """Return a table of mean scores, with unlearned configurations as 0 and without them."""
    by_task = {task: matrix[[*new]] for task, matrix in matrices(scores).items()}
    means = pd.DataFrame({task: matrix.mean() for task, matrix in by_task.items()})
    counts = pd.DataFrame({task: matrix.count() for task, matrix in by_task.items()})
    return bank.encoding_table("0 / left out", bank.view_cells(summary(scores).loc[[*new]], means, counts))
