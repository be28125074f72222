"""The table: one row per section and scheme, with every value that a report states about a scheme."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from pe_experiments.comparison.protocols import Section
from pe_experiments.comparison.run_rows import ACCURACIES, Row
from pe_experiments.comparison.statistics import (
    Interval,
    detectable_difference,
    mean_interval,
    share_interval,
    t_interval,
)
from pe_experiments.errors import UserError, nearest
from pe_experiments.evaluation import FARTHEST, SOLVED, chance_of
from pe_experiments.losses import LOSSES, lower_is_better
from pe_experiments.runs import DIVERGED

SPANS = ("in_distribution", "at_2x", "extrapolation")
METRICS = tuple(f"{accuracy}_{span}" for accuracy in ACCURACIES for span in SPANS)
BOUNDS = ("chance", "bag_ceiling")


def scheme_table(sections: Sequence[Section], metric: str, order: Sequence[str] = ()) -> pd.DataFrame:
    """One row per section and scheme.

    A diverged run counts as unsolved, with accuracy 0. For a mean over seeds ``X``, as ``exact_match@20`` (at
    length 20), ``X_low`` and ``X_high`` are the ends of Gaffke's 95 % interval (of a loss, of Student's),
    ``X_min`` and ``X_max`` the extremes of the seeds. ``reached@20`` is the number of seeds with exact match
    at least 0.9 at length 20, with the ends of the Clopper-Pearson interval of its share; ``solved`` is the
    same for the training lengths. Intervals are empty below three seeds. ``compared`` tells whether the
    scheme is tested against others: past training only if at least half of its runs solved the training
    lengths. ``detectable_difference`` belongs to all compared schemes of the section. Losses have columns
    where schemes are compared in one, and where exact match was not measured.

    Args:
        metric: column that schemes are compared in, one of ``METRICS`` or ``LOSSES``.
        order: schemes to list first, in this order; the others follow, the best past training first.

    Raises:
        UserError: an unknown metric, or an unknown scheme in ``order``.
    """
    if metric not in (known := (*METRICS, *LOSSES)):
        raise UserError(f"metric={metric} is not a metric of a run.{nearest(metric, known)}")
    labels = sorted({label for section in sections for label in section.runs["label"]})
    for label in order:
        if label not in labels:
            raise UserError(f"order: no run is called {label}.{nearest(label, labels)}")
    rows = []
    for section in sections:
        made = sorted(_section_rows(section, metric), key=lambda row: _rank(row, order))
        compared = [row["scheme"] for row in made if row["compared"]]
        values = [
            section.runs.loc[section.runs["label"] == label, metric].to_numpy(float) for label in compared
        ]
        smallest = detectable_difference(values)
        rows += [row | {"detectable_difference": smallest} for row in made]
    table = pd.DataFrame(rows).fillna(math.nan)  # None, too
    per_length = [str(column) for column in table if "@" in str(column)]
    per_length.sort(key=lambda column: (int(column.partition("@")[2].partition("_")[0]), column))
    return table[[column for column in table if column not in per_length] + per_length]


def _rank(row: Row, order: Sequence[str]) -> tuple[int, float, str]:
    ranked = list(order).index(row["scheme"]) if row["scheme"] in order else len(order)
    best = -row["exact_match_extrapolation"]
    if math.isnan(best) or lower_is_better(row["metric"]):
        best = row.get("loss_extrapolation", math.nan)
    return ranked, math.inf if math.isnan(best) else best, row["scheme"]


def _section_rows(section: Section, metric: str) -> Iterator[Row]:
    past = [length for length in section.lengths if length > section.max_length]
    first, last = (past[0], min(past[-1], FARTHEST * section.max_length)) if past else (math.nan, math.nan)
    head = {
        "section": section.slug,
        "task": section.task,
        "model": section.model,
        "protocol": section.protocol,
        "max_length": section.max_length,
        "area_from": float(first),
        "area_to": float(last),
    }
    tail = {
        "lengths_left_out": " ".join(map(str, section.lengths_left_out)) or None,
        "settings": "; ".join(f"{key}={value}" for key, value in section.settings.items()),
    }
    lowest = {name: lowest_score(section, name) for name in METRICS}
    known = section.curves.reindex(columns=["content_length", *BOUNDS]).astype(float)
    bounds: dict[Any, Any] = known.groupby("content_length").mean().to_dict()  # NaN where unknown
    curves = dict(list(section.curves[section.curves["in_summary"]].groupby("label")))
    for label, runs in section.runs.groupby("label"):
        points = curves.get(label, section.curves.iloc[:0])
        row = _scheme_row(str(label), runs, metric, lowest) | _by_length(points, bounds)
        if not section.exact:  # then nothing can be said of solving a length
            row |= {key: math.nan for key in row if key.startswith(("solved", "reached"))}
        if not section.exact or lower_is_better(metric):
            row |= _of_loss(runs, points)
        yield head | row | tail


def _scheme_row(label: str, runs: pd.DataFrame, metric: str, lowest: Mapping[str, float]) -> Row:
    solved = runs["solved_in_distribution"].eq(True)
    known = bool(runs["exact_match_in_distribution"].notna().any())
    row: Row = {
        "scheme": label,
        "seeds": len(runs),
        "diverged": int(runs["status"].eq(DIVERGED).sum()),
        **_count("solved", int(solved.sum()), len(runs)),
        "solved_in_distribution": float(solved.mean()),
        "metric": metric,
        "compared": not known or metric.endswith("in_distribution") or bool(solved.mean() >= 0.5),
    }
    for name in METRICS:
        values = runs[name].to_numpy(float)
        row |= _cells(name, mean_interval(values, lowest[name]), values)
    for accuracy in ACCURACIES:
        past = runs.loc[solved, f"{accuracy}_extrapolation"].to_numpy(float)
        row[f"{accuracy}_extrapolation_solved"] = mean_interval(past).estimate
    horizons = runs["horizon"].astype(float)
    return {
        **row,
        "horizon": float(horizons.mean()),
        "horizon_min": float(horizons.min()),
        "horizon_max": float(horizons.max()),
        "horizon_censored": int(runs["horizon_censored"].eq(True).sum()),
        "parameters": runs["parameters"].astype(float).mean(),
        "encoding_parameters": runs["encoding_parameters"].astype(float).mean(),
    }


def _of_loss(runs: pd.DataFrame, points: pd.DataFrame) -> Row:
    """The cells of the loss: its summaries, and its means by length."""
    values = {name: runs[name].to_numpy(float) for name in LOSSES}
    values |= {f"loss@{n}": at["loss"].to_numpy(float) for n, at in points.groupby("content_length")}
    row: Row = {}
    for name, one in values.items():
        row |= _cells(name, t_interval(one), one)
    return row


def _cells(name: str, made: Interval, values: np.ndarray) -> Row:
    """The cells of a mean over seeds."""
    cells = {"": made.estimate, "_low": made.low, "_high": made.high}
    cells |= {"_min": float(values.min()), "_max": float(values.max())}
    return {f"{name}{ending}": value for ending, value in cells.items()}


def _count(name: str, successes: int, seeds: int) -> Row:
    """The cells of ``k of n`` seeds."""
    made = share_interval(successes, seeds)
    return {name: successes, f"{name}_low": made.low, f"{name}_high": made.high}


def _by_length(curves: pd.DataFrame, bounds: Mapping[str, Mapping[Any, float]]) -> Row:
    """Means, counts and bounds at the lengths all runs share."""
    row: Row = {}
    for length, points in curves.groupby("content_length")[list(ACCURACIES)]:
        values = points.to_numpy(float)
        for accuracy, column in zip(ACCURACIES, values.T, strict=True):
            row |= _cells(f"{accuracy}@{length}", mean_interval(column), column)
        row |= _count(f"reached@{length}", int((values[:, 0] >= SOLVED).sum()), len(values))
        row |= {f"{bound}@{length}": float(bounds[bound][length]) for bound in BOUNDS}
    return row


def lowest_score(section: Section, metric: str) -> float:
    """The smallest value a metric can take: past training an accuracy of 0 lies below what guessing gives."""
    if not metric.endswith("extrapolation"):
        return 0.0
    accuracy = metric.removesuffix("_extrapolation")
    past = section.curves[section.curves["content_length"] > section.max_length]
    rows: list[Any] = past.reindex(columns=["chance", "answer_tokens"]).drop_duplicates().to_dict("records")
    chances = [chance_of(row, accuracy) for row in rows]
    return min((-chance / (1 - chance) for chance in chances if chance < 1), default=0.0)


def finite(value: Any) -> bool:
    """Whether a cell of the table holds a number."""
    return isinstance(value, int | float | np.number) and math.isfinite(value)
