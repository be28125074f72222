"""Evaluate a trained model with the measurements for its kind of task."""

from __future__ import annotations

from typing import Any

from pe_experiments.configuration.experiment import Experiment
from pe_experiments.data.seen import seen_in_training
from pe_experiments.evaluation.curve import Row, extrapolation_curve
from pe_experiments.evaluation.text import evaluate_text
from pe_experiments.models import Backbone
from pe_experiments.tasks.text import Text
from pe_experiments.terminal.console import Display

Curve = list[Row]
Tables = dict[str, Curve]  # further measurements by the name of their CSV file


def evaluate_model(
    experiment: Experiment, model: Backbone, steps: int, display: Display
) -> tuple[Curve, Tables]:
    """Return the rows of ``extrapolation.csv`` and further tables for this kind of task."""
    lengths = experiment.evaluation_lengths
    examples = experiment.config.evaluation.examples
    source = experiment.evaluation_source
    longest = experiment.max_length
    seen: dict[int, int] = {}
    if not experiment.other_task:
        content_lengths = [source.task.nearest_length(length) or length for length in lengths]
        trained = steps * experiment.config.trainer.accumulate_grad_batches
        seen = seen_in_training(experiment.batches, trained, source, content_lengths, examples)
    display.start("evaluating examples", len(lengths) * examples)
    tables: Tables = {}
    if isinstance(source.task, Text):
        curve, tables["text"] = evaluate_text(model, source, lengths, examples, longest, display.step)
        tables["corpus"] = source.task.listing()
    else:
        decoding = experiment.decoding
        step = display.step
        depths: list[Row] = []
        measured = extrapolation_curve(
            model, source, lengths, examples, longest, decoding, step, depths.extend
        )
        curve = list(measured)
        if depths:
            tables["depth"] = depths
    for row in curve:
        row["seen"] = seen.get(row["content_length"])
        if experiment.other_task:  # short lengths of another task are not in distribution
            row["split"] = "other_task"
    display.stop()
    return curve, tables


def describe_model(model: Backbone) -> dict[str, Any]:
    """Return the number of parameters of the model and of its encoding."""
    sizes = {"parameters": model, "encoding_parameters": model.encodings}
    return {name: sum(p.numel() for p in part.parameters()) for name, part in sizes.items()}
