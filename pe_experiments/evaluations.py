"""Evaluation of trained runs: as configured, otherwise, on another task, or again after the code changed."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from pe_experiments import console
from pe_experiments.building import evaluation_source_of
from pe_experiments.config import Experiment
from pe_experiments.data import TrainingStream
from pe_experiments.environment import describe_environment, prepare_hardware
from pe_experiments.errors import UserError
from pe_experiments.evaluation import extrapolation_curve
from pe_experiments.files import write_atomically
from pe_experiments.identity import Identity, jsonable, short_hash
from pe_experiments.losses import summarise
from pe_experiments.models import Backbone
from pe_experiments.runs import COMPLETED, RunDirectory, evaluated, list_in_study, only_code_differs
from pe_experiments.seen import seen_in_training
from pe_experiments.tasks.text import NextSymbol, Text
from pe_experiments.text_evaluation import evaluate_text
from pe_experiments.tracking import Tables, Tracker, read_curve, write_curve
from pe_experiments.trained import FinishedRun, finished_run, model_of

Curve = list[dict[str, Any]]


@dataclass(frozen=True)
class RunResult:
    """What one call did.

    Attributes:
        experiment: what was asked for.
        directory: where the curve lies: the run's, or that of one of its evaluations.
        result: the content of ``result.json``.
        done: ``trained``, ``resumed``, ``evaluated`` or ``found`` (it was finished already).
    """

    experiment: Experiment
    directory: RunDirectory
    result: dict[str, Any]
    done: str
    curve: Curve = field(default_factory=list)

    @property
    def status(self) -> str:
        return self.result["status"]


def evaluate_run(path: Path, changes: dict[str, Any], display: console.Display | None = None) -> RunResult:
    """Evaluate a finished run with other settings, without training.

    Args:
        path: the run's directory.
        changes: sections of the saved configuration to replace: ``evaluation``, ``pe``, ``hardware`` or
            ``logger``; and ``task``, to evaluate on that one instead.
        display: shows the progress; None shows nothing.

    Raises:
        UserError: no such run, one that is not completed, one whose source has been edited since, or weights
            that do not fit the changed scheme.
    """
    finished = finished_run(RunDirectory(path), changes)
    device = prepare_hardware(finished.experiment.config.hardware)
    return found(finished, device, display or console.Display())


def evaluate_model(
    experiment: Experiment, model: Backbone, steps: int, display: console.Display
) -> tuple[Curve, Tables]:
    """The rows of ``extrapolation.csv`` of a model that was trained for that many steps.

    With them, of a language model, those of ``text.csv`` and of ``corpus.csv``, the files it read.
    """
    lengths, examples = experiment.evaluation_lengths, experiment.config.evaluation.examples
    training, source = experiment.config.training, evaluation_source_of(experiment)
    longest, seen = experiment.max_length, dict[int, int]()
    if not experiment.other_task:
        batches = TrainingStream(source, training.batch_size, training.batching)
        made = [source.task.nearest_length(length) or length for length in lengths]
        seen = seen_in_training(batches, steps, source, made, examples)
    display.start("evaluating examples", len(lengths) * examples)
    tables: Tables = {}
    if isinstance(source.task, NextSymbol):
        curve, tables["text"] = evaluate_text(model, source, lengths, examples, longest, display.step)
        if isinstance(source.task, Text):
            tables["corpus"] = source.task.listing()
    else:
        decoding, step = experiment.decoding, display.step
        curve = list(extrapolation_curve(model, source, lengths, examples, longest, decoding, step))
    for row in curve:
        row["seen"] = seen.get(row["content_length"])
        if experiment.other_task:  # its lengths within those of the training are not in distribution
            row["split"] = "other_task"
    display.stop()
    return curve, tables


def draw(experiment: Experiment, label: str, curve: Curve, path: Path) -> None:
    """The picture of one run's curve."""
    from pe_experiments.plots import run_figure  # matplotlib: a second a finished run need not wait

    task = experiment.other_task or experiment.components["task"]
    run_figure(curve, f"{label} on {task.label}", experiment.max_length, path)


def found(finished: FinishedRun, device: str, display: console.Display) -> RunResult:
    """A finished run: as it is, or measured otherwise into ``evaluations/<hash8>`` without training."""
    experiment, run, result = finished.experiment, finished.directory, finished.result
    config = experiment.config
    if config.study and run.path.parent.parent == Path(config.results_dir):
        list_in_study(Path(config.results_dir), config.study, run.name)
    evaluation = evaluated(experiment)
    if result["status"] != COMPLETED or evaluation == result["evaluation"]:
        return RunResult(experiment, run, result, "found", _stored_curve(run))
    if only_code_differs(result["evaluation"], evaluation):
        return _evaluate_again(finished, device, display)
    directory = run.evaluation(short_hash(evaluation))
    if there := directory.read_result():
        return RunResult(experiment, directory, there, "found", _stored_curve(directory))
    return _evaluate_otherwise(finished, directory, device, display)


def _evaluate_again(finished: FinishedRun, device: str, display: console.Display) -> RunResult:
    """The code that evaluates has changed: curve and summary are replaced, once the new ones are there."""
    experiment, run = finished.experiment, finished.directory
    console.say(f"{run.name}: the code that evaluates has changed; evaluating it again")
    try:
        model = model_of(finished)
    except UserError as error:
        console.say(f"{run.name}: shown as evaluated by the earlier code ({error})")
        return RunResult(experiment, run, finished.result, "found", _stored_curve(run))
    run.create()  # says where nothing can be written
    with run.lock():
        curve, tables = evaluate_model(experiment, model.to(device), _steps(finished), display)
        summary = summarise(curve, experiment.max_length)
        environment = describe_environment(device)
        write_curve(run, curve, tables)
        again = {"evaluation": evaluated(experiment), "evaluation_environment": environment}
        run.write_result({**finished.result, **summary, **again})
        draw(experiment, finished.identity.label, curve, run.figure)
    return RunResult(experiment, run, run.read_result() or {}, "evaluated", curve)


def _evaluate_otherwise(
    finished: FinishedRun, directory: RunDirectory, device: str, display: console.Display
) -> RunResult:
    """Other lengths, another scheme, decoding or task: into ``evaluations/<hash8>``."""
    experiment, run = finished.experiment, finished.directory
    evaluation, label = evaluated(experiment), finished.identity.label
    model = model_of(finished)
    if evaluation["pe"] != finished.result["evaluation"]["pe"]:
        label = f"{label} evaluated as {experiment.components['pe'].label}"
    kept = {key: finished.result[key] for key in ("status", "name", "task", "model", "seed", "steps")}
    if experiment.other_task:
        kept["evaluated_on"] = experiment.other_task.label
    created = directory.create()
    with directory.lock():
        tracker = None
        try:
            saved = saved_config(experiment, finished.identity, run.name)
            write_atomically(directory.config, OmegaConf.to_yaml(OmegaConf.create(saved)))
            name, logger = f"{run.name}-e{directory.name}", experiment.config.logger
            tracker = Tracker(directory, name, saved, logger, group=run.name, job_type="evaluation")
            curve, tables = evaluate_model(experiment, model.to(device), _steps(finished), display)
            tracker.curve(curve, tables)
            summary = summarise(curve, experiment.max_length)
            draw(experiment, label, curve, directory.figure)
        except BaseException:
            display.stop()
            if tracker:
                tracker.close()
            if created:
                directory.remove()
            raise
        upload = tracker.close(summary, directory.figure)
        directory.write_result(
            {**kept, "label": label, **summary, "evaluation": evaluation, "upload": upload}
        )
    return RunResult(experiment, directory, directory.read_result() or {}, "evaluated", curve)


def _steps(finished: FinishedRun) -> int:
    """Steps it was trained for; fewer than asked where it stopped early."""
    return finished.result.get("finished_step", finished.experiment.config.training.steps)


def saved_config(experiment: Experiment, identity: Identity, name: str) -> dict[str, Any]:
    """What ``config.yaml`` says: everything set, derived and identified; ``rerun`` was this call's alone."""
    config = jsonable(experiment.config.model_dump()) | {"rerun": False}
    return {**config, "derived": experiment.derived, "identity": identity.as_dict() | {"name": name}}


def _stored_curve(directory: RunDirectory) -> Curve:
    result = directory.read_result()
    return read_curve(directory.curve) if result and result["status"] == COMPLETED else []
