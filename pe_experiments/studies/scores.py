"""Compute the scores of encodings in configurations that all of them share, each with a separate seed.

Each encoding is trained in each configuration with several learning rates, and the run with the lowest loss
on fresh examples of the training lengths counts. Its score is the area under exact match over log2 length
from 1x to 8x the training length, where an exact match ``x`` counts as ``max(0, (x - floor) / (1 - floor))``.
The task is learned if exact match reaches 0.9 within the training lengths and, at the longest of them, is at
least halfway from the floor to 1.
"""

from collections.abc import Sequence
from functools import cache

import numpy as np
import pandas as pd
import torch

from pe_experiments.comparison.runs import Runs
from pe_experiments.evaluation.metrics import FARTHEST
from pe_experiments.studies.archive import select_runs
from pe_experiments.studies.blocks import with_options
from pe_experiments.tasks.state import FlipFlop
from pe_experiments.terminal.errors import UserError

RATE = "training.learning_rate"
SCORE = "score"
AT_2X, AT_4X = "exact_match_at_2x", "exact_match_at_4x"
SAMPLES = 20_000  # sequences per estimated floor
LEARNED_ABOVE_FLOOR = 0.5  # share of the way from floor to 1; on `flip_flop` a shortcut can exceed 0.9


def score_table(runs: Runs, metrics: Sequence[str] = (SCORE,)) -> pd.DataFrame:
    """Return one row per task, encoding and configuration, with the score of the run that counts.

    Configurations of a task in which not all of its encodings have run at all learning rates are left out. A
    metric is ``score``, or exact match at a multiple of the training length, as ``exact_match_at_4x``. The
    columns are ``task, label, configuration, name, rate, loss, learned`` and one for each metric; ``loss`` is
    that on fresh examples of the training lengths.

    Raises:
        UserError: a metric was not measured in all runs.
    """
    table = with_options(runs, rate=RATE)
    by_task = table.groupby("task")
    complete = by_task["label"].transform("nunique") * by_task["rate"].transform("nunique")
    is_complete = table.groupby(["task", "seed"])["name"].transform("size") == complete
    return at_counted_rates(score_runs(select_runs(runs, is_complete), metrics))


def at_counted_rates(scores: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of `score_runs` with the lowest loss of each task, encoding and configuration."""
    scores = scores.sort_values(["loss", "rate"], kind="stable")
    scores = scores.drop_duplicates(["task", "label", "configuration"])
    return scores.sort_values(["task", "label", "configuration"], ignore_index=True)


def score_runs(runs: Runs, metrics: Sequence[str] = (SCORE,)) -> pd.DataFrame:
    """Return one row per run with its score; arguments, columns and errors are those of `score_table`."""
    table = with_options(runs, rate=RATE).rename(
        columns={"seed": "configuration", "loss_in_distribution": "loss"}
    )
    columns = ["task", "label", "configuration", "name", "rate", "loss", "learned", *metrics]
    if table.empty:
        return table.reindex(columns=columns)
    points = _points_above_floors(runs, table)
    counts = points["times"].value_counts()
    shared_times = sorted(counts[counts == len(table)].index)  # multiples at which all runs were evaluated
    times_of_metric = {f"exact_match_at_{times:g}x": times for times in shared_times if times % 1 == 0}
    for metric in metrics:
        if metric == SCORE:
            value_by_run = _areas(points)
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
    return table[columns].sort_values(["task", "label", "configuration"], ignore_index=True)


def _points_above_floors(runs: Runs, table: pd.DataFrame) -> pd.DataFrame:
    """Return the curves of the runs with the columns ``times`` and ``above``.

    ``times`` is the length as a multiple of the training length, and ``above`` is exact match relative to the
    floor: ``max(0, (x - floor) / (1 - floor))``. Lengths at which only some runs of a configuration were
    evaluated are left out.
    """
    points = runs.curves[runs.curves["name"].isin(table["name"])].rename(columns={"seed": "configuration"})
    ignored = with_options(runs, ignore="task.ignore").set_index("name")["ignore"]
    points["ignore"] = points["name"].map(ignored)
    has_ceiling = points["answer_tokens"].eq(1) & points["bag_ceiling"].lt(1)  # a control needs no order
    points["floor"] = points["bag_ceiling"].where(has_ceiling, 0.0)
    has_bits = points["task"] == "flip_flop"
    cases = points.loc[has_bits, ["ignore", "content_length"]].itertuples(index=False)
    points.loc[has_bits, "floor"] = [majority_of_bits(*case) for case in cases]
    runs_at_length = points.groupby(["task", "configuration", "content_length"])["name"].transform("nunique")
    runs_in_configuration = points.groupby(["task", "configuration"])["name"].transform("nunique")
    points = points[runs_at_length == runs_in_configuration]
    points = points.merge(table[["name", "max_length"]], on="name")
    points["times"] = points["content_length"] / points["max_length"]
    points["above"] = ((points["exact_match"] - points["floor"]) / (1 - points["floor"])).clip(lower=0)
    return points


@cache
def majority_of_bits(ignore: float, length: int) -> float:
    """Estimate the exact match of answering every read with the bit written more often; ties are guessed."""
    task = FlipFlop(ignore)
    generator = torch.Generator().manual_seed(0)
    inputs, targets = (x.view(SAMPLES, -1, 2) for x in task.sample(length, SAMPLES, generator))
    written = inputs[..., 0] == task.write
    reads = targets[..., 0] >= 0
    lead = ((2 * inputs[..., 1] - 1) * written).cumsum(dim=1)  # ones minus zeros
    p_correct = torch.where(lead == 0, 0.5, ((lead > 0) == (targets[..., 0] == 1)).double())
    return float(torch.where(reads, p_correct, 1.0).prod(dim=1).mean())


def _areas(points: pd.DataFrame) -> pd.Series:
    """Return the mean of ``above`` over log2 ``times`` from 1x to 8x, by the trapezoidal rule, by run."""
    points = points[points["times"].between(1, FARTHEST)].sort_values(["name", "times"])
    points["x"] = np.log2(points["times"])
    by_run = points.groupby("name")
    strips = by_run["x"].diff() * (points["above"] + by_run["above"].shift()) / 2
    return strips.groupby(points["name"]).sum() / (by_run["x"].last() - by_run["x"].first())


def scores_by_configuration(rows: pd.DataFrame, metric: str = SCORE) -> pd.DataFrame:
    """Return scores [configurations, encodings] of one task, NaN where the task was not learned."""
    values = rows.assign(value=rows[metric].where(rows["learned"]))
    return values.pivot(index="configuration", columns="label", values="value")
