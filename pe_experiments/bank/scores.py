"""Compute scores over paired configurations, each with a separate seed and shared by all encodings.

Per task and configuration the run with the lower loss on fresh examples of the training lengths counts. Its
score is the area under exact match over log2 length from 1x to 8x the training length, where every point is
taken above a floor: ``(x - floor) / (1 - floor)``, at least 0. The task is learned if exact match reaches 0.9
within the training lengths, and at the longest of these is at least halfway from the floor to 1.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from pe_experiments.comparison.runs import Runs
from pe_experiments.evaluation.summary import FARTHEST
from pe_experiments.published.blocks import with_settings
from pe_experiments.terminal.errors import UserError

RATE = "training.learning_rate"
FLOORS = "floors.csv"  # by task, configuration and length: accuracy without order or by a known shortcut
SCORE = "score"
LEFT = 0.5  # share of the way from floor to 1; on `flip_flop` a shortcut alone may exceed 0.9
SECTIONS = ("task", "model", "training")  # that make up a configuration of the bank


def score_table(runs: Runs, floors: pd.DataFrame | None, metrics: Sequence[str] = (SCORE,)) -> pd.DataFrame:
    """Return one row per task, encoding and configuration in which all encodings have run at all rates.

    Columns: ``task, label, setting, name, rate, learned`` and the metrics: ``score``, or exact match at a
    multiple of the training length, ``exact_match_at_4x``.
    """
    table = _runs_that_count(runs)
    columns = ["task", "label", "setting", "name", "rate", "learned", *metrics]
    if table.empty:
        return table.reindex(columns=columns)
    points = _points_above_floors(runs, table, floors)
    counts = points["times"].value_counts()
    everywhere = sorted(counts[counts == len(table)].index)
    known = {f"exact_match_at_{n:g}x": n for n in everywhere if n % 1 == 0}
    for metric in metrics:
        if metric == SCORE:
            measured = points.groupby("name")[[*points]].apply(_area)
        elif metric in known:
            measured = points[points["times"] == known[metric]].set_index("name")["exact_match"]
        else:
            names = ", ".join([SCORE, *known])
            raise UserError(f"hydra.callbacks.report.metric={metric}: not measured; allowed: {names}")
        table[metric] = table["name"].map(measured)
    longest = points[points["times"] == 1].set_index("name")["above"]
    table["learned"] = table["solved_in_distribution"].eq(True) & ~(table["name"].map(longest) < LEFT)
    return table[columns].sort_values(["task", "label", "setting"], ignore_index=True)


def _runs_that_count(runs: Runs) -> pd.DataFrame:
    """Return the runs at the better rate in configurations that all encodings have run at all rates."""
    table = with_settings(runs, rate=RATE).rename(columns={"seed": "setting"})
    counts = table.groupby(["task", "setting"])["name"].transform("size")
    table = table[counts == table["label"].nunique() * table["rate"].nunique()]
    table = table.sort_values(["loss_in_distribution", "rate"], kind="stable")
    return table.drop_duplicates(["task", "label", "setting"])


def _points_above_floors(runs: Runs, table: pd.DataFrame, floors: pd.DataFrame | None) -> pd.DataFrame:
    """Return the curves of the runs, with columns ``times`` (training lengths) and ``above`` (the floor).

    Lengths that only some runs of a configuration were evaluated at are left out.
    """
    points = runs.curves[runs.curves["name"].isin(table["name"])].rename(columns={"seed": "setting"})
    if floors is None:
        points["floor"] = 0.0
    else:
        points = points.merge(floors, on=["task", "setting", "content_length"], how="left", validate="m:1")
    by_length = points.groupby(["task", "setting", "content_length"])["name"].transform("nunique")
    points = points[by_length == points.groupby(["task", "setting"])["name"].transform("nunique")]
    points = points.merge(table[["name", "max_length"]], on="name")
    points["times"] = points["content_length"] / points["max_length"]
    points["above"] = ((points["exact_match"] - points["floor"]) / (1 - points["floor"])).clip(lower=0)
    return points


def _area(points: pd.DataFrame) -> float:
    """Return the area under ``above`` over log2 ``times``, from the training length to 8x, at most 1."""
    past = points[points["times"].between(1, FARTHEST)].sort_values("times")
    x = np.log2(past["times"])
    return float(np.trapezoid(past["above"], x) / (x.iloc[-1] - x.iloc[0]))


def factors_by_task(runs: Runs) -> dict[str, pd.DataFrame]:
    """Return the two-valued factors by task, [configurations, factors], named by the keys that covary."""
    rows: dict[str, dict[int, dict[str, str]]] = {}
    for name, task, setting in runs.runs[["name", "task", "seed"]].itertuples(index=False):
        trained = runs.saved[name]["identity"]["trained"]
        config = {f"{part}.{key}": str(trained[part][key]) for part in SECTIONS for key in trained[part]}
        rows.setdefault(task, {})[setting] = config | {RATE: ""}
    factors = {}
    for task, by_setting in rows.items():
        table = pd.DataFrame.from_dict(by_setting, orient="index")
        table = table.loc[:, table.nunique() == 2]
        splits: dict[tuple[int, ...], list[str]] = {}
        for key in table:
            splits.setdefault(tuple(pd.factorize(table[key])[0]), []).append(str(key))
        factors[task] = pd.DataFrame({", ".join(keys): table[keys[0]] for keys in splits.values()})
    return factors


def scores_by_setting(rows: pd.DataFrame, metric: str = SCORE, unlearned: float = np.nan) -> pd.DataFrame:
    """Return scores [configurations, encodings] of one task, with ``unlearned`` where it was not learned."""
    values = rows.assign(value=rows[metric].where(rows["learned"], unlearned))
    return values.pivot(index="setting", columns="label", values="value")
