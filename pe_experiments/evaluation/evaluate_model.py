"""Evaluate a trained model on a text or on a task with answers."""

from typing import Any

import torch

from pe_experiments.configuration.experiment import Experiment
from pe_experiments.data.batches import seen_in_training
from pe_experiments.evaluation.curve import Row, extrapolation_curve
from pe_experiments.evaluation.metrics import all_metrics, user_metrics
from pe_experiments.evaluation.tables import Details, indexed_lengths
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
    evaluation = experiment.config.evaluation
    source = experiment.evaluation_source
    lengths = [source.task.nearest_length(length) or length for length in experiment.evaluation_lengths]
    seen_by_length: dict[int, int] = {}
    if not experiment.other_task:
        trained_batches = steps * experiment.config.trainer.accumulate_grad_batches
        seen_by_length = seen_in_training(
            experiment.batches, trained_batches, source, lengths, evaluation.examples
        )
    indexed = indexed_lengths(lengths, experiment.max_length)
    details = Details(source, user_metrics(experiment.metrics), evaluation.save, indexed)
    curve, text_rows = _curve(experiment, model, evaluation.examples, display, details)
    tables: Tables = dict(details.tables)
    if isinstance(source.task, Text):
        tables = {"text": text_rows, "corpus": source.task.listing()}
    for row in curve:
        row["seen"] = seen_by_length.get(row["content_length"])
        if experiment.other_task:  # short lengths of another task are not in distribution
            row["split"] = "other_task"
    display.stop()
    return curve, tables


def evaluate_at_step(experiment: Experiment, model: Backbone, step: int) -> Curve:
    """Return the rows of ``by_step.csv`` of one step: the curve on ``evaluation.every_examples`` examples.

    Neither the state of the random generators nor the mode of the model changes.
    """
    details = Details(experiment.evaluation_source, user_metrics(experiment.metrics))
    examples = experiment.config.evaluation.every_examples
    was_training = model.training
    try:
        with torch.random.fork_rng():
            curve, _ = _curve(experiment, model, examples, Display(), details)
    finally:
        model.train(was_training)
    columns = by_step_columns(experiment)
    return [{column: row.get(column) for column in columns} | {"step": step} for row in curve]


def by_step_columns(experiment: Experiment) -> list[str]:
    names = [metric.name for metric in all_metrics(experiment.metrics)]
    return ["step", "length", "content_length", "split", "examples", *names]


def _curve(
    experiment: Experiment, model: Backbone, examples: int, display: Display, details: Details
) -> tuple[Curve, Curve]:
    """Return the rows of the curve, and those of ``text.csv`` for a language model."""
    source = experiment.evaluation_source
    lengths, longest = experiment.evaluation_lengths, experiment.max_length
    window = experiment.config.evaluation.window
    if isinstance(source.task, Text):
        return evaluate_text(model, source, lengths, examples, longest, display, window)
    decoding = experiment.decoding
    rows = extrapolation_curve(model, source, lengths, examples, longest, decoding, display, details, window)
    return list(rows), []


def describe_model(model: Backbone) -> dict[str, Any]:
    modules = {"parameters": model, "encoding_parameters": model.encodings}
    return {
        name: sum(parameter.numel() for parameter in module.parameters()) for name, module in modules.items()
    }
