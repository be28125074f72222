"""Summarise a curve over all evaluated lengths in a few metrics."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pe_experiments.evaluation.metrics import EXACT_MATCH, LOSS, METRICS, TOKEN_ACCURACY, Metric, unknown
from pe_experiments.terminal.console import Row

SOLVED = 0.9  # exact match that counts as solving a length (horizon) or the training lengths
FARTHEST = 8.0  # end of the area past training, in training lengths
SPAN_WORDS = {  # the lengths over which a metric is summarised
    "in_distribution": "within the training lengths",
    "at_2x": "at twice the training length",
    "extrapolation": "past the training lengths",
}


def summarise(rows: Sequence[Row], max_length: int, metrics: Sequence[Metric] = METRICS) -> dict[str, Any]:
    """Return the metrics that summarise a curve; None if the evaluated lengths do not determine one.

    * ``exact_match_in_distribution``: mean over the lengths up to the longest training length. Lengths at
      which at least half of the inputs occurred in training (column ``seen``) are excluded, unless this
      excludes all of them.
    * ``exact_match_at_2x``: value at twice the longest training length, if evaluated there.
    * ``exact_match_extrapolation``: area under the curve over log2 length, from the first evaluated length
      past training to 8x the training length (or the longest evaluated), divided by the width, with linear
      interpolation; if there is only one such length, the value there. Each point is
      ``(x - chance) / (1 - chance)``, so guessing scores 0 and a perfect curve 1. Exact match has chance 0,
      except where the answer is one token. The area depends on the evaluated lengths, so only curves over
      the same lengths can be compared.
    * the same three for ``token_accuracy`` and for ``loss`` (nats per scored token). The loss has no chance
      level and excludes no length.
    * ``solved_in_distribution``: whether ``exact_match_in_distribution`` is at least 0.9.
    * ``horizon``: the length at which exact match first falls below 0.9, interpolated linearly over log
      length. If it is below at the first evaluated length, the horizon is 0, or None if that length is past
      training. If it never falls below, the horizon is the longest evaluated length and
      ``horizon_censored`` is true. ``horizon_ratio``: the horizon divided by the training length.

    Metrics based on exact match are None if it was not measured, as for language models. A summary is None if
    the metric is unknown at one of its lengths, such as the loss under greedy decoding. The rows have the
    columns of ``extrapolation.csv``; a missing ``seen``, ``chance`` or ``answer_tokens`` counts as 0. Metrics
    of the user have the same three summaries.
    """
    by_length = {row["content_length"]: row for row in rows}  # requested lengths may coincide
    within = [row for length, row in by_length.items() if length <= max_length]
    unseen = [row for row in within if not mostly_seen(row)] or within
    past = [row for length, row in by_length.items() if length > max_length]
    # The accuracies come first, as in the tables of published studies.
    summary = _spans(EXACT_MATCH, unseen, past, max_length) | _spans(TOKEN_ACCURACY, unseen, past, max_length)
    in_distribution = summary["exact_match_in_distribution"]
    summary["solved_in_distribution"] = None if in_distribution is None else in_distribution >= SOLVED
    exact = not any(unknown(row["exact_match"]) for row in rows)
    horizon, censored = _horizon(rows, max_length) if exact else (None, None)
    summary |= {"horizon": horizon, "horizon_censored": censored}
    summary["horizon_ratio"] = None if horizon is None else horizon / max_length
    for metric in metrics:
        summary |= _spans(metric, within if metric == LOSS else unseen, past, max_length)
    return summary


def mostly_seen(row: Row) -> bool:
    """Return whether at least half of the evaluated inputs occurred in training."""
    return 2 * (row.get("seen") or 0) >= row.get("examples", 1)


def _spans(metric: Metric, within: Sequence[Row], past: Sequence[Row], max_length: int) -> dict[str, Any]:
    """Return the three summaries of a metric: its mean over rows ``within``, at 2x, and past training."""
    summary: dict[str, Any] = {}
    twice = [row for row in past if row["content_length"] == 2 * max_length]
    for span, rows in zip(SPAN_WORDS, (within, twice, past), strict=True):
        values: list[Any] = [row.get(metric.name) for row in rows]
        value = None
        if values and not any(map(unknown, values)):
            value = _area_beyond(past, metric, max_length) if rows is past else float(np.mean(values))
        summary[f"{metric.name}_{span}"] = value
    return summary


@dataclass(frozen=True)
class Summary:
    """A metric over some of the lengths: a column of ``runs.csv``, in which encodings are compared."""

    metric: Metric
    span: str  # a key of `SPAN_WORDS`

    @property
    def column(self) -> str:
        return f"{self.metric.name}_{self.span}"

    @property
    def lower_is_better(self) -> bool:
        return not self.metric.higher_is_better

    @property
    def words(self) -> str:
        """Return what it is, such as ``exact match past the training lengths``."""
        return f"{self.metric.label_with_unit} {SPAN_WORDS[self.span]}"


def summaries_of(metrics: Sequence[Metric]) -> dict[str, Summary]:
    """Return the summaries of metrics by column."""
    summaries = [Summary(metric, span) for metric in metrics for span in SPAN_WORDS]
    return {summary.column: summary for summary in summaries}


def _area_beyond(past: Sequence[Row], metric: Metric, max_length: int) -> float | None:
    """Return the area past training over log2 length, divided by its width; see `summarise`."""
    curve = {}  # by log2 length in training lengths
    for row in past:
        value = metric.above_guess(row)
        if value is not None:
            curve[math.log2(row["content_length"] / max_length)] = value
    x = np.array(sorted(curve))
    y = np.array([curve[key] for key in sorted(curve)])
    if not curve or x[0] > math.log2(FARTHEST):
        return None
    end = min(math.log2(FARTHEST), x[-1])
    if end == x[0]:
        return float(y[0])
    grid = np.append(x[x < end], end)
    return float(np.trapezoid(np.interp(grid, x, y), grid) / (end - x[0]))


def _horizon(rows: Sequence[Row], max_length: int) -> tuple[float, bool] | tuple[None, None]:
    """Return the horizon and whether it is censored; see `summarise`."""
    last: Row | None = None
    for row in sorted(rows, key=lambda row: row["content_length"]):
        if row["exact_match"] < SOLVED:
            if last is None:
                return (0.0, False) if row["content_length"] <= max_length else (None, None)
            share = (last["exact_match"] - SOLVED) / (last["exact_match"] - row["exact_match"])
            step = math.log(row["content_length"] / last["content_length"])
            return last["content_length"] * math.exp(share * step), False
        last = row
    return float(last["content_length"]) if last else 0.0, True
