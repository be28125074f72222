"""Write run directories with chosen results, in the format of real runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import yaml

from pe_experiments.configuration.choices import key_of
from pe_experiments.configuration.compose import compose_config
from pe_experiments.configuration.experiment import Experiment
from pe_experiments.configuration.schema import resolved
from pe_experiments.evaluation.curve import CURVE_COLUMNS
from pe_experiments.evaluation.metrics import summarise, wilson_interval
from pe_experiments.store.csv_files import TRAINING_COLUMNS, to_csv
from pe_experiments.store.directory import COMPLETED, RunDirectory
from pe_experiments.store.finished import finished_run
from pe_experiments.store.identity import Record
from pe_experiments.store.names import file_digest, jsonable
from pe_experiments.store.requested import Run

Accuracies = Callable[[int], tuple[float, float]]


def fading(start: float, slope: float, longest: int = 6) -> Accuracies:
    """Return accuracies that fall beyond the longest training length.

    Exact match is ``start`` up to ``longest`` and falls by ``slope`` per token beyond; token accuracy is
    halfway between exact match and 1.
    """

    def accuracies(length: int) -> tuple[float, float]:
        exact = max(0.0, min(1.0, start - slope * max(0, length - longest)))
        return exact, (1 + exact) / 2

    return accuracies


def write_run(
    experiment: Experiment,
    accuracies: Accuracies,
    status: str = COMPLETED,
    result: Mapping[str, Any] | None = None,
    losses: Callable[[int], float] | None = None,
) -> RunDirectory:
    """Write the directory of a run that nobody trained.

    Args:
        experiment: its evaluation lengths are those of the curve.
        accuracies: returns exact match and token accuracy at a length.
        status: of the result.
        result: entries of ``result.json`` that replace the regular ones.
        losses: returns the loss of a language model at a length; there is no exact match then.
    """
    planned = Run(experiment.config)
    run = planned.directory
    run.path.mkdir(parents=True)
    run.config.write_text(yaml.safe_dump(jsonable(planned.saved_config)))
    environment = {
        "python": "3",
        "commit": "a" * 40,
        "edited": False,
        "libraries": {"torch": "2"},
        "command": ["train.py", f"seed={experiment.config.seed}"],
    }
    run.environment.write_text(json.dumps(environment))
    run.metrics.write_text(
        to_csv(TRAINING_COLUMNS, [{"step": 6, "loss": 2.5}, {"step": 12, "loss": 1.5, "exact_match": 0.5}])
    )
    rows = [_row(experiment, length, *accuracies(length)) for length in experiment.evaluation_lengths]
    if losses:
        for row in rows:
            row |= dict.fromkeys(("exact_match", "exact_match_low", "exact_match_high"))
            row["loss"] = losses(row["content_length"])
    content: dict[str, Any] = {**planned.header, "status": status, "validation_loss": 1.5}
    if status == COMPLETED:
        run.curve.write_text(to_csv(CURVE_COLUMNS, rows))
        content |= {"parameters": 1000, "encoding_parameters": 10, "seconds_per_step": 0.002}
        content |= summarise(rows, experiment.max_length)
    run.result.write_text(json.dumps({**content, **(result or {})}))
    return run


def write_trained_run(experiment: Experiment, steps: int = 12) -> RunDirectory:
    """Write a finished run with a checkpoint that holds the initial weights."""
    run = write_run(experiment, fading(1, 0.02), result={"finished_step": steps})
    weights = experiment.untrained_model().state_dict()
    save_checkpoint(run, {f"model.{name}": value for name, value in weights.items()}, steps)
    return run


def save_checkpoint(run: RunDirectory, weights: object, steps: int = 12) -> None:
    """Save weights as the checkpoint of a finished run."""
    run.checkpoint.parent.mkdir()
    checkpoint = {"state_dict": weights, "global_step": steps, "finished": True}
    torch.save(checkpoint | {"run": Record.read(run).hash}, run.checkpoint)
    result = json.loads(run.result.read_text()) | {"checkpoint": file_digest(run.checkpoint)}
    run.result.write_text(json.dumps(result))


def opened(run: RunDirectory, *typed: str, trust: bool = False) -> Run:
    """Return a finished run as evaluate.py opens it with these overrides."""
    return finished_run(run, resolved(compose_config(typed, "evaluate")), [*map(key_of, typed)], trust)


def _row(experiment: Experiment, length: int, exact: float, tokens: float) -> dict[str, Any]:
    content = experiment.task.nearest_length(length)
    assert content
    low, high = wilson_interval(round(exact * 1000), 1000)
    return {
        "length": length,
        "content_length": content,
        "split": "in_distribution" if content <= experiment.max_length else "extrapolation",
        "examples": experiment.config.evaluation.examples,
        "seen": 0,
        "token_accuracy": tokens,
        "exact_match": exact,
        "exact_match_low": low,
        "exact_match_high": high,
        "loss": 1.0,
        "chance": experiment.task.chance(content),
        "bag_ceiling": experiment.task.bag_ceiling(content, prefix=experiment.format.prefix_is_known),
        "answer_tokens": experiment.task.target_length(content),
        "tokens": experiment.format.tokens(content, experiment.task.target_length(content)),
        "largest_position": 2 * content + 1,
        "untrained_positions": 0,
    }


def write_study(make: Callable[..., Experiment], *overrides: str, seeds: int = 5) -> Path:
    """Write runs of three different encodings with a small spread between seeds."""
    lengths = "evaluation.lengths=[3,6,9,12,24,48]"
    slopes = {"sinusoidal": 0.3, "learned": 0.3, "alibi": 0.02}
    for seed in range(seeds):
        for index, (encoding, slope) in enumerate(slopes.items()):
            noise = 0.003 * ((7 * seed + 3 * index) % 5)
            experiment = make(f"pe={encoding}", f"seed={seed}", lengths, *overrides)
            write_run(experiment, fading(1.0 - noise, slope + noise))
    return Path(experiment.config.results_dir)
