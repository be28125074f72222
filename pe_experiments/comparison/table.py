"""The table: one row per protocol and scheme, with every value that a report states about a scheme."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from pe_experiments.comparison.protocols import Protocol
from pe_experiments.comparison.runs import ACCURACIES, Row
from pe_experiments.comparison.statistics import (
    Interval,
    detectable_difference,
    mean_interval,
    share_interval,
    t_interval,
)
from pe_experiments.evaluation.summary import LOSSES, SOLVED, chance_of, lower_is_better
from pe_experiments.store.directory import DIVERGED
from pe_experiments.terminal.errors import UserError, nearest

SPANS = ("in_distribution", "at_2x", "extrapolation")
METRICS = tuple(f"{accuracy}_{span}" for accuracy in ACCURACIES for span in SPANS)
BOUNDS = ("chance", "bag_ceiling")


def scheme_table(protocols: Sequence[Protocol], metric: str) -> pd.DataFrame:
    """One row per protocol and scheme, the best past training first.

    A diverged run counts as unsolved, with accuracy 0. For a mean over seeds ``X``, as ``exact_match@20`` (at
    length 20), ``X_low`` and ``X_high`` are the ends of Gaffke's 95 % interval (of a loss, of Student's).
    ``reached@20`` is the number of seeds with exact match at least 0.9 at length 20, with the ends of the
    Clopper-Pearson interval of its share; ``solved`` is the same for the training lengths. Intervals are
    empty below three seeds. ``compared`` tells whether the scheme is tested against others: past training
    only if at least half of its runs solved the training lengths. ``detectable_difference`` belongs to all
    compared schemes of the protocol. Losses have columns where schemes are compared in one, and where exact
    match was not measured.

    Args:
        metric: column that schemes are compared in, one of ``METRICS`` or ``LOSSES``.

    Raises:
        UserError: an unknown metric.
    """
    if metric not in (known := (*METRICS, *LOSSES)):
        raise UserError(f"metric={metric} is not a metric of a run.{nearest(metric, known)}")
    rows = []
    for protocol in protocols:
        made = sorted(_protocol_rows(protocol, metric), key=_rank)
        values = dict(list(protocol.runs.groupby("label")[metric]))
        compared = [values[row["scheme"]].to_numpy(float) for row in made if row["compared"]]
        rows += [row | {"detectable_difference": detectable_difference(compared)} for row in made]
    table = pd.DataFrame(rows).fillna(math.nan)  # None, too
    by_length = [str(column) for column in table if "@" in str(column)]
    by_length.sort(key=lambda column: (int(column.partition("@")[2].partition("_")[0]), column))
    return table[[column for column in table if column not in by_length] + by_length]


def _rank(row: Row) -> tuple[float, str]:
    best = -row["exact_match_extrapolation"]
    if math.isnan(best) or lower_is_better(row["metric"]):
        best = row.get("loss_extrapolation", math.nan)
    return math.inf if math.isnan(best) else best, row["scheme"]


def _protocol_rows(protocol: Protocol, metric: str) -> Iterator[Row]:
    """The rows of a protocol, in no order."""
    lowest = {name: lowest_score(protocol, name) for name in METRICS}
    known = protocol.curves.reindex(columns=["content_length", *BOUNDS]).astype(float)
    bounds = known.groupby("content_length").mean()  # NaN where unknown
    shared = protocol.curves[protocol.curves["in_summary"]]
    for label, runs in protocol.runs.groupby("label"):
        solved = runs["solved_in_distribution"].eq(True)
        unmeasured = bool(runs["exact_match_in_distribution"].isna().all())
        row: Row = {
            "section": protocol.slug,
            "task": protocol.task,
            "model": protocol.model,
            "protocol": protocol.hash,
            "max_length": protocol.max_length,
            "scheme": str(label),
            "seeds": len(runs),
            "diverged": int(runs["status"].eq(DIVERGED).sum()),
            **_count("solved", solved),
            "metric": metric,
            "compared": unmeasured or metric.endswith("in_distribution") or bool(solved.mean() >= 0.5),
            "horizon": runs["horizon"].astype(float).mean(),
            "horizon_censored": int(runs["horizon_censored"].eq(True).sum()),
            **{key: runs[key].astype(float).mean() for key in ("parameters", "encoding_parameters")},
            "seconds_per_step": runs["seconds_per_step"].astype(float).median(),
        }
        for name in METRICS:
            row |= _cells(name, mean_interval(runs[name].to_numpy(float), lowest[name]))
        loss = not protocol.exact or lower_is_better(metric)
        for name in LOSSES if loss else ():
            row |= _cells(name, t_interval(runs[name].to_numpy(float)))
        for length, points in shared[shared["label"] == label].groupby("content_length"):
            for accuracy in ACCURACIES:
                row |= _cells(f"{accuracy}@{length}", mean_interval(points[accuracy].to_numpy(float)))
            if loss:
                row |= _cells(f"loss@{length}", t_interval(points["loss"].to_numpy(float)))
            row |= _count(f"reached@{length}", points["exact_match"].astype(float) >= SOLVED)
            row |= {f"{bound}@{length}": bounds.at[length, bound] for bound in BOUNDS}
        if not protocol.exact:  # then nothing can be said of solving a length
            row |= {key: math.nan for key in row if key.startswith(("solved", "reached"))}
        yield row


def _cells(name: str, made: Interval) -> Row:
    """The cells of a mean over seeds."""
    return {name: made.estimate, f"{name}_low": made.low, f"{name}_high": made.high}


def _count(name: str, held: pd.Series) -> Row:
    """The cells of ``k of n`` seeds."""
    share = share_interval(int(held.sum()), len(held))
    return {name: int(held.sum()), f"{name}_low": share.low, f"{name}_high": share.high}


def lowest_score(protocol: Protocol, metric: str) -> float:
    """The smallest value a metric can take: past training an accuracy of 0 lies below what guessing gives."""
    if not metric.endswith("extrapolation"):
        return 0.0
    accuracy = metric.removesuffix("_extrapolation")
    past = protocol.curves[protocol.curves["content_length"] > protocol.max_length]
    rows: list[Any] = past.reindex(columns=["chance", "answer_tokens"]).drop_duplicates().to_dict("records")
    chances = [chance_of(row, accuracy) for row in rows]
    return min((-chance / (1 - chance) for chance in chances if chance < 1), default=0.0)


def finite(value: Any) -> bool:
    """Whether a cell of the table holds a number."""
    return isinstance(value, int | float | np.number) and math.isfinite(value)
