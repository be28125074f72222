"""The table: one row per section and scheme, with every value that a report states about a scheme."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from pe_experiments.comparison.protocols import Section
from pe_experiments.comparison.runs_table import ACCURACIES
from pe_experiments.comparison.statistics import detectable_difference, mean_interval, share_interval
from pe_experiments.errors import UserError, nearest
from pe_experiments.evaluation import FARTHEST, SOLVED, chance_of
from pe_experiments.runs import DIVERGED

SPANS = ("in_distribution", "at_2x", "extrapolation")
METRICS = tuple(f"{accuracy}_{span}" for accuracy in ACCURACIES for span in SPANS)
BOUNDS = ("chance", "bag_ceiling")

Row = dict[str, Any]


def scheme_table(sections: Sequence[Section], metric: str, order: Sequence[str] = ()) -> pd.DataFrame:
    """One row per section and scheme.

    A diverged run counts as unsolved, with accuracy 0. For a mean over seeds ``X``, as ``exact_match@20`` (at
    length 20), ``X_low`` and ``X_high`` are the ends of Gaffke's 95 % interval, ``X_min`` and ``X_max`` the
    extremes of the seeds. ``reached@20`` is the number of seeds with exact match at least 0.9 at length 20,
    with the ends of the Clopper-Pearson interval of its share; ``solved`` is the same for the training
    lengths. Intervals are empty below three seeds. ``compared`` tells whether the scheme is tested against
    others: past training only if at least half of its runs solved the training lengths.
    ``detectable_difference`` belongs to all compared schemes of the section.

    Args:
        sections: from `sections_of`.
        metric: column that schemes are compared in, one of ``METRICS``.
        order: schemes to list first, in this order; the others follow, the best past training first.

    Raises:
        UserError: an unknown metric, or an unknown scheme in ``order``.
    """
    if metric not in METRICS:
        raise UserError(f"metric={metric} is not a metric of a run.{nearest(metric, METRICS)}")
    labels = sorted({label for section in sections for label in section.runs["label"]})
    for label in order:
        if label not in labels:
            raise UserError(f"order: no run is called {label}.{nearest(label, labels)}")
    rows = []
    for section in sections:
        groups = {str(label): group for label, group in section.runs.groupby("label")}
        made = [_scheme_row(section, label, group, metric) for label, group in groups.items()]
        made.sort(key=lambda row: _rank(row, order))
        compared = [groups[row["scheme"]][metric].to_numpy(float) for row in made if row["compared"]]
        smallest = detectable_difference(compared)
        rows += [row | {"detectable_difference": smallest} for row in made]
    table = pd.DataFrame(rows).fillna(math.nan)  # None, too
    per_length = [str(column) for column in table if "@" in str(column)]
    per_length.sort(key=lambda column: (int(column.partition("@")[2].partition("_")[0]), column))
    return table[[column for column in table if column not in per_length] + per_length]


def _rank(row: Row, order: Sequence[str]) -> tuple[int, float, str]:
    ranked = list(order).index(row["scheme"]) if row["scheme"] in order else len(order)
    best = row["exact_match_extrapolation"]
    return ranked, math.inf if math.isnan(best) else -best, row["scheme"]


def _scheme_row(section: Section, label: str, group: pd.DataFrame, metric: str) -> Row:
    solved = group["solved_in_distribution"].eq(True)
    known = bool(group["exact_match_in_distribution"].notna().any())
    row: Row = {
        "section": section.slug,
        "task": section.task,
        "model": section.model,
        "protocol": section.protocol,
        "max_length": section.max_length,
        **_unseen_lengths(section),
        "scheme": label,
        "seeds": len(group),
        "diverged": int(group["status"].eq(DIVERGED).sum()),
        **_count("solved", int(solved.sum()), len(group)),
        "solved_in_distribution": float(solved.mean()),
        "metric": metric,
        "compared": not known or metric.endswith("in_distribution") or bool(solved.mean() >= 0.5),
    }
    for name in METRICS:
        row |= _mean(name, group[name].to_numpy(float), lowest_score(section, name))
    for accuracy in ACCURACIES:
        past = group.loc[solved, f"{accuracy}_extrapolation"].to_numpy(float)
        row[f"{accuracy}_extrapolation_solved"] = mean_interval(past).estimate
    horizons = group["horizon"].astype(float)
    return {
        **row,
        "horizon": float(horizons.mean()),
        "horizon_min": float(horizons.min()),
        "horizon_max": float(horizons.max()),
        "horizon_censored": int(group["horizon_censored"].eq(True).sum()),
        "parameters": group["parameters"].astype(float).mean(),
        "encoding_parameters": group["encoding_parameters"].astype(float).mean(),
        **_by_length(section, section.curves[section.curves["label"] == label]),
        "lengths_left_out": " ".join(map(str, section.lengths_left_out)) or None,
        "settings": "; ".join(f"{key}={value}" for key, value in section.settings.items()),
    }


def _mean(name: str, values: np.ndarray, lowest: float = 0.0) -> Row:
    """The cells of a mean over seeds."""
    made = mean_interval(values, lowest)
    cells = {"": made.estimate, "_low": made.low, "_high": made.high}
    cells |= {"_min": float(values.min()), "_max": float(values.max())}
    return {f"{name}{ending}": value for ending, value in cells.items()}


def _count(name: str, successes: int, seeds: int) -> Row:
    """The cells of ``k of n`` seeds."""
    made = share_interval(successes, seeds)
    return {name: successes, f"{name}_low": made.low, f"{name}_high": made.high}


def _by_length(section: Section, curves: pd.DataFrame) -> Row:
    """Means, counts and bounds at the lengths all runs share."""
    row: Row = {}
    shared = curves[curves["in_summary"]]
    bounds = section_bounds(section)
    for length, points in shared.groupby("content_length"):
        for accuracy in ACCURACIES:
            row |= _mean(f"{accuracy}@{length}", points[accuracy].to_numpy(float))
        reached = int((points["exact_match"] >= SOLVED).sum())
        row |= _count(f"reached@{length}", reached, len(points))
        row |= {f"{bound}@{length}": float(bounds[bound].to_dict()[length]) for bound in BOUNDS}
    return row


def lowest_score(section: Section, metric: str) -> float:
    """The smallest value a metric can take: past training an accuracy of 0 lies below what guessing gives."""
    if not metric.endswith("extrapolation"):
        return 0.0
    accuracy = metric.removesuffix("_extrapolation")
    rows: list[Any] = section.curves.to_dict("records")
    chances = [chance_of(row, accuracy) for row in rows if row["content_length"] > section.max_length]
    return min((-chance / (1 - chance) for chance in chances if chance < 1), default=0.0)


def _unseen_lengths(section: Section) -> Row:
    """The ends of what is summarised past training: at most 8x; NaN where no shared length lies there."""
    past = [length for length in section.lengths if length > section.max_length]
    ends = (past[0], min(past[-1], FARTHEST * section.max_length)) if past else (math.nan, math.nan)
    return {"area_from": float(ends[0]), "area_to": float(ends[1])}


def section_bounds(section: Section) -> pd.DataFrame:
    """Chance and bag ceiling by length; NaN where unknown."""
    columns = section.curves.reindex(columns=["content_length", *BOUNDS])
    return columns.astype(float).groupby("content_length").mean()


def finite(value: Any) -> bool:
    """Whether a cell of the table holds a number."""
    return isinstance(value, int | float | np.number) and math.isfinite(value)
