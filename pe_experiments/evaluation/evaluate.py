"""Evaluate a trained model on a text or on a task with answers."""

from __future__ import annotations

from typing import Any

from torch import nn

from pe_experiments.configuration.experiment import Experiment
from pe_experiments.data.seen import seen_in_training
from pe_experiments.evaluation.curve import COUNTED, Row, extrapolation_curve
from pe_experiments.evaluation.details import Details, indexed_lengths
from pe_experiments.evaluation.metrics import all_metrics
from pe_experiments.evaluation.text import evaluate_text
from pe_experiments.models import Backbone
from pe_experiments.tasks.text import Text
from pe_experiments.terminal.console import Display

Curve = list[Row]
Tables = dict[str, Curve]  # further measurements by the name of their CSV file


def evaluate_model(
    experiment: Experiment, model: Backbone, steps: int, display: Display
) -> tuple[Curve, Tables]:
    """Return the rows of ``extrapolation.csv`` and further tables by name (as ``text``, ``depth``).

    ``steps`` is the number of steps for which the model was trained.
    """
    lengths = experiment.evaluation_lengths
    examples = experiment.config.evaluation.examples
    window = experiment.config.evaluation.window
    source = experiment.evaluation_source
    longest = experiment.max_length
    seen_by_length: dict[int, int] = {}
    if not experiment.other_task:
        content_lengths = [source.task.nearest_length(length) or length for length in lengths]
        training_batches = steps * experiment.config.trainer.accumulate_grad_batches
        seen_by_length = seen_in_training(
            experiment.batches, training_batches, source, content_lengths, examples
        )
    tables: Tables = {}
    if isinstance(source.task, Text):
        curve, tables["text"] = evaluate_text(model, source, lengths, examples, longest, display, window)
        tables["corpus"] = source.task.listing()
    else:
        details = Details(
            source,
            [metric for metric in all_metrics(experiment.metrics) if metric not in COUNTED],
            experiment.config.evaluation.save,
            indexed_lengths([source.task.nearest_length(length) or length for length in lengths], longest),
        )
        curve = list(
            extrapolation_curve(
                model,
                source,
                lengths,
                examples,
                longest,
                experiment.decoding,
                display=display,
                details=details,
                window=window,
            )
        )
        tables |= details.tables
    for row in curve:
        row["seen"] = seen_by_length.get(row["content_length"])
        if experiment.other_task:  # short lengths of another task are not in distribution
            row["split"] = "other_task"
    display.stop()
    return curve, tables


def describe_model(model: Backbone) -> dict[str, Any]:
    """Return the number of parameters of the model and of its encoding."""
    return {"parameters": _size(model), "encoding_parameters": _size(model.encodings)}


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
