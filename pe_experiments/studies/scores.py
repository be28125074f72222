"""Compute the scores of encodings in configurations that all of them share, each with a separate seed.

Each encoding is trained in each configuration with several learning rates, and the run with the lowest loss
on fresh examples of the training lengths counts. Its score is the area under exact match over log2 length
from 1x to 8x the training length, where an exact match ``x`` counts as ``max(0, (x - floor) / (1 - floor))``.
The task is learned if exact match reaches 0.9 within the training lengths and, at the longest of them, is at
least halfway from the floor to 1.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from pe_experiments.comparison.runs import Runs
from pe_experiments.evaluation.summary import FARTHEST
from pe_experiments.studies.blocks import with_settings
from pe_experiments.terminal.errors import UserError

RATE = "training.learning_rate"
FLOORS = "floors.csv"  # accuracy of predictors without order or with a shortcut, by task, setting and length
SCORE = "score"
LEARNED_ABOVE_FLOOR = 0.5  # share of the way from floor to 1; on `flip_flop` a shortcut can exceed 0.9


def score_table(runs: Runs, floors: pd.DataFrame | None, metrics: Sequence[str] = (SCORE,)) -> pd.DataFrame:
    """Return one row per task, encoding and configuration, with the score of the run that counts.

    Configurations in which not all encodings have run at all learning rates are left out.

    Args:
        runs: the runs of all encodings.
        floors: the content of `FLOORS`; None sets all floors to 0.
        metrics: ``score``, or exact match at a multiple of the training length, as ``exact_match_at_4x``.

    Returns:
        A table with the columns ``task, label, setting, name, rate, learned`` and one for each metric.

    Raises:
        UserError: a metric was not measured in all runs.
    """
    table = _best_runs(runs)
    columns = ["task", "label", "setting", "name", "rate", "learned", *metrics]
    if table.empty:
        return table.reindex(columns=columns)
    points = _points_above_floors(runs, table, floors)
    counts = points["times"].value_counts()
    shared_times = sorted(counts[counts == len(table)].index)  # multiples at which all runs were evaluated
    times_of_metric = {f"exact_match_at_{times:g}x": times for times in shared_times if times % 1 == 0}
    for metric in metrics:
        if metric == SCORE:
            value_by_run = points.groupby("name")[[*points]].apply(_area)
        elif metric in times_of_metric:
            at_times = points[points["times"] == times_of_metric[metric]]
            value_by_run = at_times.set_index("name")["exact_match"]
        else:
            names = ", ".join([SCORE, *times_of_metric])
            raise UserError(f"hydra.callbacks.report.metric={metric}: not measured; allowed: {names}")
        table[metric] = table["name"].map(value_by_run)
    above_by_run = points[points["times"] == 1].set_index("name")["above"]
    is_near_floor = table["name"].map(above_by_run) < LEARNED_ABOVE_FLOOR
    table["learned"] = table["solved_in_distribution"].eq(True) & ~is_near_floor
    return table[columns].sort_values(["task", "label", "setting"], ignore_index=True)


def _best_runs(runs: Runs) -> pd.DataFrame:
    """Return the run at the best rate of each task, encoding and configuration; see `score_table`."""
    table = with_settings(runs, rate=RATE).rename(columns={"seed": "setting"})
    counts = table.groupby(["task", "setting"])["name"].transform("size")
    table = table[counts == table["label"].nunique() * table["rate"].nunique()]
    table = table.sort_values(["loss_in_distribution", "rate"], kind="stable")
    return table.drop_duplicates(["task", "label", "setting"])


def _points_above_floors(runs: Runs, table: pd.DataFrame, floors: pd.DataFrame | None) -> pd.DataFrame:
    """Return the curves of the runs with the columns ``times`` and ``above``.

    ``times`` is the length as a multiple of the training length, and ``above`` is exact match relative to the
    floor: ``max(0, (x - floor) / (1 - floor))``. Lengths at which only some runs of a configuration were
    evaluated are left out.
    """
    points = runs.curves[runs.curves["name"].isin(table["name"])].rename(columns={"seed": "setting"})
    if floors is None:
        points["floor"] = 0.0
    else:
        points = points.merge(floors, on=["task", "setting", "content_length"], how="left", validate="m:1")
    runs_at_length = points.groupby(["task", "setting", "content_length"])["name"].transform("nunique")
    runs_in_setting = points.groupby(["task", "setting"])["name"].transform("nunique")
    points = points[runs_at_length == runs_in_setting]
    points = points.merge(table[["name", "max_length"]], on="name")
    points["times"] = points["content_length"] / points["max_length"]
    points["above"] = ((points["exact_match"] - points["floor"]) / (1 - points["floor"])).clip(lower=0)
    return points


def _area(points: pd.DataFrame) -> float:
    """Return the mean of ``above`` over log2 ``times`` from 1x to 8x, by the trapezoidal rule."""
    points = points[points["times"].between(1, FARTHEST)].sort_values("times")
    x = np.log2(points["times"])
    return float(np.trapezoid(points["above"], x) / (x.iloc[-1] - x.iloc[0]))


def scores_by_setting(rows: pd.DataFrame, metric: str = SCORE, unlearned: float = np.nan) -> pd.DataFrame:
    """Return scores [configurations, encodings] of one task, ``unlearned`` where the task was not learned."""
    values = rows.assign(value=rows[metric].where(rows["learned"], unlearned))
    return values.pivot(index="setting", columns="label", values="value")
