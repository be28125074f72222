"""The summary of a run: that of its accuracies (`evaluation.summarise`), and the same of its loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pe_experiments import evaluation
from pe_experiments.evaluation import Row, _area_beyond

LOSSES = ("loss_in_distribution", "loss_at_2x", "loss_extrapolation")


def lower_is_better(metric: str) -> bool:
    """Whether a metric is a loss."""
    return metric.startswith("loss")


def unknown(value: Any) -> bool:
    """Whether a cell is empty."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def guessing_loss(point: Row) -> float:
    """Loss of a uniform guess, in nats; NaN where its accuracy is unknown."""
    chance = point.get("chance")
    return math.nan if unknown(chance) or not chance else -math.log(chance)


def summarise(rows: Sequence[Row], max_length: int) -> dict[str, Any]:
    """The metrics that summarise a curve; None where the evaluated lengths do not determine one.

    Those of `evaluation.summarise`, and in nats per scored token ``loss_in_distribution`` (mean over the
    lengths up to the longest training length), ``loss_at_2x`` and ``loss_extrapolation`` (mean over log2
    length past training, as for accuracies but without a chance level). Where exact match was not measured,
    as for language models, so is nothing that follows from it.

    Args:
        rows: of ``extrapolation.csv``.
        max_length: longest input length of the training.
    """
    exact = not any(unknown(row["exact_match"]) for row in rows)
    known = rows if exact else [{**row, "exact_match": 0.0} for row in rows]
    summary = evaluation.summarise(known, max_length)
    if not exact:
        summary |= {key: None for key in summary if not key.startswith("token_accuracy")}
    losses = {row["content_length"]: row.get("loss") for row in rows}
    known_losses = {length: loss for length, loss in losses.items() if loss is not None and not unknown(loss)}
    if len(known_losses) < len(losses):  # greedy decoding has none
        return summary | dict.fromkeys(LOSSES)
    within = [loss for length, loss in known_losses.items() if length <= max_length]
    points = [{"content_length": length, "loss": loss} for length, loss in known_losses.items()]
    values = (np.mean(within) if within else None, known_losses.get(2 * max_length))
    area = _area_beyond(points, "loss", max_length)
    return summary | {
        key: None if value is None else float(value)
        for key, value in zip(LOSSES, (*values, area), strict=True)
    }
