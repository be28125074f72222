"""Summarise a curve over all evaluated lengths in a few metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pe_experiments.terminal.console import Row

SOLVED = 0.9  # exact match that counts as solving a length (horizon) or the training lengths
FARTHEST = 8.0  # end of the area past training, in training lengths
LOSSES = ("loss_in_distribution", "loss_at_2x", "loss_extrapolation")


def summarise(rows: Sequence[Row], max_length: int) -> dict[str, Any]:
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

    Metrics based on exact match are None if it was not measured, as for language models. The rows have the
    columns of ``extrapolation.csv``; a missing ``seen``, ``chance`` or ``answer_tokens`` counts as 0.
    """
    by_length = {row["content_length"]: row for row in rows}  # requested lengths may coincide
    within = [row for length, row in by_length.items() if length <= max_length]
    unseen = [row for row in within if not _mostly_seen(row)] or within
    summary: dict[str, Any] = {}
    exact = not any(unknown(row["exact_match"]) for row in rows)
    if exact:
        summary |= _metric_summary(rows, unseen, "exact_match", max_length)
    else:
        summary |= _metric_summary((), (), "exact_match", max_length)
    summary |= _metric_summary(rows, unseen, "token_accuracy", max_length)
    in_distribution = summary["exact_match_in_distribution"]
    summary["solved_in_distribution"] = None if in_distribution is None else in_distribution >= SOLVED
    horizon, censored = _horizon(rows, max_length) if exact else (None, None)
    summary |= {"horizon": horizon, "horizon_censored": censored}
    summary["horizon_ratio"] = None if horizon is None else horizon / max_length
    return summary | _loss_summary(by_length, max_length)


def _mostly_seen(row: Row) -> bool:
    """Return whether at least half of the evaluated inputs occurred in training."""
    return 2 * (row.get("seen") or 0) >= row.get("examples", 1)


def _loss_summary(by_length: Mapping[int, Row], max_length: int) -> dict[str, Any]:
    """Return the loss metrics of the rows by length; a metric is None if one of its losses is unknown."""
    rows = {n: {**row, "chance": 0.0} for n, row in by_length.items() if not unknown(row.get("loss"))}
    within = [row for n, row in rows.items() if n <= max_length]
    losses = _metric_summary([*rows.values()], within, "loss", max_length)
    unmeasured = by_length.keys() - rows  # under greedy decoding, or where the loss is not finite
    if any(n <= max_length for n in unmeasured):
        losses["loss_in_distribution"] = None
    if unmeasured:
        losses["loss_extrapolation"] = None
    return losses


def _metric_summary(
    rows: Sequence[Row], within: Sequence[Row], metric: str, max_length: int
) -> dict[str, Any]:
    """Return the three summaries of a metric: its mean over rows ``within``, at 2x, and past training."""
    twice = [row[metric] for row in rows if row["content_length"] == 2 * max_length]
    return {
        f"{metric}_in_distribution": float(np.mean([row[metric] for row in within])) if within else None,
        f"{metric}_at_2x": twice[0] if twice else None,
        f"{metric}_extrapolation": _area_beyond(rows, metric, max_length),
    }


def lower_is_better(metric: str) -> bool:
    """Return whether a metric is a loss."""
    return metric.startswith("loss")


def unknown(value: Any) -> bool:
    """Return whether a value is None or NaN."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def guessing_loss(point: Row) -> float:
    """Return the loss of a uniform guess in nats; NaN if its accuracy is unknown."""
    chance = point.get("chance")
    return math.nan if unknown(chance) or not chance else -math.log(chance)


def chance_of(row: Row, metric: str) -> float:
    """Return the value of the metric for guessing, at the length of a row."""
    if metric == "token_accuracy" or row.get("answer_tokens") == 1:
        return row.get("chance") or 0.0
    return 0.0


def _area_beyond(rows: Sequence[Row], metric: str, max_length: int) -> float | None:
    """Return the area past training over log2 length, divided by its width; see `summarise`."""
    curve = {}  # by log2 length in training lengths
    for row in rows:
        chance = chance_of(row, metric)
        if row["content_length"] > max_length and chance != 1:  # at 1 there is only one possible answer
            curve[math.log2(row["content_length"] / max_length)] = (row[metric] - chance) / (1 - chance)
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
