"""Outcomes over paired settings: every scheme met the same settings, each with a seed of its own.

Per task and setting the run counts whose learning rate has the lower loss on fresh examples of the training
lengths. Its score is the area under exact match over log2 length from 1x to 8x the training length, of every
point what it is above a floor, ``(x - floor) / (1 - floor)`` and at least 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from pe_experiments.comparison.runs import Runs
from pe_experiments.comparison.statistics import ALPHA, Interval, holm, paired_interval, paired_p
from pe_experiments.evaluation.summary import FARTHEST
from pe_experiments.published.pages import with_settings
from pe_experiments.published.verdicts import BETTER, NOT_SEPARATED, WORSE

RATE = "training.learning_rate"
FLOORS = "floors.csv"  # by task, setting and length: what a predictor without order, or a shortcut, reaches
ENOUGH = 0.75  # of the settings: in so many a scheme must have learned a task to be compared
NOT_LEARNED = "not learned"


def outcomes(runs: Runs, floors: pd.DataFrame) -> pd.DataFrame:
    """One row per task, scheme and setting, of settings in which all schemes have run at all rates.

    Columns: ``task, label, setting, name, rate, learned, score, at_2x, at_4x``.
    """
    table = with_settings(runs, rate=RATE).rename(columns={"seed": "setting"})
    counts = table.groupby(["task", "setting"])["name"].transform("size")
    table = table[counts == table["label"].nunique() * table["rate"].nunique()]
    table = table.sort_values(["loss_in_distribution", "rate"], kind="stable")
    table = table.drop_duplicates(["task", "label", "setting"])
    points = runs.curves[runs.curves["name"].isin(table["name"])].rename(columns={"seed": "setting"})
    points = points.merge(floors, on=["task", "setting", "content_length"], how="left", validate="m:1")
    points = points.merge(table[["name", "max_length"]], on="name")
    points["times"] = points["content_length"] / points["max_length"]
    points["above"] = ((points["exact_match"] - points["floor"]) / (1 - points["floor"])).clip(lower=0)
    found = pd.DataFrame({name: _summary(own) for name, own in points.groupby("name")}).T
    table = table.join(found, on="name").assign(learned=table["solved_in_distribution"].eq(True))
    columns = ["task", "label", "setting", "name", "rate", "learned", "score", "at_2x", "at_4x"]
    return table[columns].sort_values(["task", "label", "setting"], ignore_index=True)


def _summary(points: pd.DataFrame) -> dict[str, float]:
    past = points[points["times"].between(1, FARTHEST)].sort_values("times")
    x, exact = np.log2(past["times"].to_numpy()), past.set_index("times")["exact_match"]
    area = float(np.trapezoid(past["above"], x) / (x[-1] - x[0]))
    return {"score": area, "at_2x": exact.get(2.0, math.nan), "at_4x": exact.get(4.0, math.nan)}


@dataclass(frozen=True)
class Difference:
    """One scheme less another on a task, over the settings in which both learned it."""

    verdict: str
    settings: int
    interval: Interval  # at the level of its test, so that the two agree
    p: float


def compared(mine: pd.DataFrame, others: Mapping[str, pd.DataFrame]) -> dict[str, Difference]:
    """A scheme against others on one task, from their rows of `outcomes`; Holm's method over those tested."""
    own = mine[mine["learned"]].set_index("setting")["score"]
    apart = dict[str, np.ndarray | None]()
    for name, other in others.items():
        both = own.sub(other[other["learned"]].set_index("setting")["score"]).dropna().to_numpy(float)
        learned = min(mine["learned"].mean(), other["learned"].mean()) >= ENOUGH
        apart[name] = both if learned and len(both) else None
    ps = {name: math.nan if d is None else paired_p(d) for name, d in apart.items()}
    adjusted = dict(zip(ps, holm(list(ps.values())), strict=True))
    made, left = {}, sum(d is not None for d in apart.values())
    for name in sorted(ps, key=lambda one: (math.isnan(ps[one]), ps[one])):
        if (d := apart[name]) is None:
            made[name] = Difference(NOT_LEARNED, 0, Interval(math.nan), math.nan)
            continue
        separated = adjusted[name] <= ALPHA
        word = (BETTER if d.mean() > 0 else WORSE) if separated else NOT_SEPARATED
        made[name] = Difference(word, len(d), paired_interval(d, ALPHA / max(1, left)), adjusted[name])
        left -= separated  # the level of the first that is not separated holds for all that follow
    return {name: made[name] for name in others}


def best(table: pd.DataFrame) -> tuple[str, dict[str, Difference]]:
    """Of one task's rows the scheme with the highest mean score, and its difference from every other.

    Means are over the settings in which a scheme learned the task; it must have in enough of them. Without
    such a scheme the name is empty.
    """
    rows = {str(label): own for label, own in table.groupby("label")}
    learned = {label: own for label, own in rows.items() if own["learned"].mean() >= ENOUGH}
    means = {label: float(own.loc[own["learned"], "score"].mean()) for label, own in learned.items()}
    if not means:
        return "", {}
    first = max(means, key=means.__getitem__)
    return first, compared(rows.pop(first), rows)
