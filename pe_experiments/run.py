"""Train a model on short sequences, evaluate it on long ones and store the results."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from pytorch_lightning.loggers import Logger

from pe_experiments.configuration.compose import compose_config
from pe_experiments.configuration.experiment import Experiment, resolve
from pe_experiments.configuration.schema import Config, check, resolve_interpolations
from pe_experiments.evaluation.evaluate import Curve, describe_model, evaluate_model
from pe_experiments.models import Backbone
from pe_experiments.store.checkpoint import load_weights, read_checkpoint
from pe_experiments.store.csv_files import Row, read_curve, validation_loss
from pe_experiments.store.directory import COMPLETED, DIVERGED, RunDirectory
from pe_experiments.store.environment import code_changes
from pe_experiments.store.identity import UNTRACKED
from pe_experiments.store.names import leaves
from pe_experiments.store.parent import copy_parent_weights, dotted_keys, inherit_settings
from pe_experiments.store.status import RunStatus, run_status
from pe_experiments.store.trained_model import finished_status, trained_model
from pe_experiments.store.writer import RunWriter, list_run, training_failure
from pe_experiments.terminal import console
from pe_experiments.terminal.errors import Diverged
from pe_experiments.training.device import use_device
from pe_experiments.training.preflight import preflight
from pe_experiments.training.ranks import Ranks

SIZE = ("parameters", "encoding_parameters")  # entries that loggers show besides the summary


@dataclass(frozen=True)
class RunResult:
    """The outcome of `run_experiment` or `evaluate_run`."""

    experiment: Experiment  # the requested experiment
    run: RunDirectory
    directory: RunDirectory  # of the curve: the run's directory or that of one of its evaluations
    result: dict[str, Any]  # the content of ``result.json``
    done: str  # ``trained``, ``resumed``, ``evaluated`` or ``found`` (already finished)
    curve: Curve  # rows of ``extrapolation.csv``; empty if the run is not completed

    @property
    def status(self) -> str:
        return self.result["status"]

    @property
    def validation_loss(self) -> float:
        """Return the last loss on fresh examples of the training lengths; infinite if the run diverged.

        This loss is measured before a callback such as weight averaging changes the final weights.
        """
        return math.inf if self.status == DIVERGED else validation_loss(self.run)


def run_experiment(
    config: DictConfig | dict[str, Any] | Config | Experiment, display: console.Display | None = None
) -> RunResult:
    """Train and evaluate a configuration, or return its finished run.

    Args:
        config: a configuration composed by Hydra, a `Config`, an `Experiment`, or a mapping with the keys of
            the command line (`compose.compose_config`), such as ``{"pe": "rope", "training.steps": 100}``.
        display: shows the progress; None shows nothing.

    Raises:
        UserError: the configuration cannot be run; no new directory is left and no earlier result is lost.
        KeyboardInterrupt: the run was interrupted; the same call resumes it.
    """
    if isinstance(config, dict):
        config = check(inherit_settings(compose_config("config", config), dotted_keys(config)))
    elif isinstance(config, DictConfig):
        config = check(inherit_settings(resolve_interpolations(config)))
    experiment = resolve(config) if isinstance(config, Config) else config
    with _device_and_display(experiment, display) as (ranks, display):
        status = run_status(experiment)
        if not status.trained:
            _check_before_training(status, display)
            with status.run.lock_for_training(experiment.config.rerun):
                status = status.updated()  # another process may have trained it since
                if not status.trained:
                    return _train_and_evaluate(status, ranks, display)
        return _finished_run(status, ranks, display)


def evaluate_run(
    path: str | Path, changes: dict[str, Any], display: console.Display | None = None, trust: bool = False
) -> RunResult:
    """Evaluate a finished run with another configuration.

    Args:
        path: the run's directory.
        changes: sections of the saved configuration to replace: ``evaluation``, ``pe``, ``trainer``,
            ``logger``, or ``task`` to evaluate on another task.
        display: shows the progress; None shows nothing.
        trust: as in `load_model`.

    Raises:
        UserError: as in `load_model`, or the weights do not fit the changed encoding.
    """
    status = finished_status(RunDirectory(Path(path)), changes, trust)
    with _device_and_display(status.experiment, display) as (ranks, display):
        return _finished_run(status, ranks, display)


def try_out(experiment: Experiment) -> None:
    """Check an experiment without writing anything (``dry_run=true``)."""
    with use_device(experiment.config):
        preflight(experiment)


@contextmanager
def _device_and_display(
    experiment: Experiment, display: console.Display | None
) -> Iterator[tuple[Ranks, console.Display]]:
    """Use the configured device, and yield the ranks and the display, which is stopped at the end."""
    display = display or console.Display()
    try:
        with use_device(experiment.config) as device:
            ranks = Ranks(experiment.config.trainer, device)
            with ranks.assembled():
                yield ranks, display
    finally:
        display.stop()


def _check_before_training(status: RunStatus, display: console.Display) -> None:
    """Print remarks on a new run, or raise an error if it would fail."""
    for remark in preflight(status.experiment):
        console.say(remark)
    if difference := status.difference_to_cached_run():
        display.say(f"This is a new run, {difference}.")
    for path, digest in leaves(status.identity.hashed["classes"]):
        if digest == UNTRACKED:
            console.say(f"{path[-1]}: the source of this class is unknown, so edits do not start a new run")


def _train_and_evaluate(status: RunStatus, ranks: Ranks, display: console.Display) -> RunResult:
    """Load or build the model, train it, evaluate it and store the results."""
    experiment, run = status.experiment, status.run
    checkpoint = read_checkpoint(run.checkpoint)
    first_step = checkpoint["global_step"] if checkpoint else 0
    if first_step:
        console.say(f"{run.name}: resuming at step {first_step} of {experiment.config.training.steps}")
    with closing(RunWriter(status, run, first_step)) as writer:

        def record(row: Row) -> None:
            writer.metrics(row)
            display.row(row)

        summary = None
        try:
            writer.begin_training(ranks.device)
            model = _model_to_train(experiment, checkpoint, run.checkpoint, console.say)
            loggers = writer.loggers.loggers.values()
            with ranks.run_on_all(_train_on_other_rank, experiment.config, run.checkpoint):
                last_step, seconds = _train(
                    experiment, model, checkpoint, run.checkpoint, ranks, record, display, loggers
                )
                curve, tables = evaluate_model(experiment, model.to(ranks.device), last_step, display)
            model_size = describe_model(model)
            summary = writer.curve(status.identity.label, curve, tables)
            outcome = {"status": COMPLETED, "finished_step": last_step, **model_size, **summary}
            if last_step > first_step:
                outcome["seconds_per_step"] = round(seconds / (last_step - first_step), 5)
            summary |= {key: model_size[key] for key in SIZE}
        except Exception as error:
            outcome = training_failure(run, error)
        writer.finish({**_result_header(status), "resumed_from": first_step, **outcome}, summary)
    return _run_result(status, "resumed" if first_step else "trained")


def _result_header(status: RunStatus) -> dict[str, Any]:
    """Return the entries of the result that do not depend on the outcome."""
    experiment = status.experiment
    trained = status.identity.trained
    header = {
        "name": status.run.name,
        "label": status.identity.label,
        "task": experiment.components["task"].choice,
        "model": experiment.model_choice,
        "seed": trained["seed"],
        "steps": trained["training"]["steps"],
        "evaluation": status.evaluation,
    }
    if experiment.config.parent:
        header["parent"] = experiment.config.parent.name
    return header


def _model_to_train(
    experiment: Experiment,
    checkpoint: dict[str, Any] | None,
    path: Path,
    say: Callable[[str], None] = lambda line: None,
) -> Backbone:
    """Return a new model with the weights of the checkpoint or the parent run, or initial weights."""
    model = experiment.untrained_model()
    if checkpoint is None and experiment.config.init_from:
        say(copy_parent_weights(model, experiment.config))
    elif checkpoint:
        cure = "delete it to train this run from the start, or add rerun=true"
        load_weights(model, checkpoint, path, f"{path} contains the weights of another model; {cure}")
    return model


def _train(
    experiment: Experiment,
    model: Backbone,
    checkpoint: dict[str, Any] | None,
    path: Path,
    ranks: Ranks,
    record: Callable[[Row], None],
    display: console.Display,
    loggers: Iterable[Logger] = (),
) -> tuple[int, float]:
    """Train the model in place, from the checkpoint if there is one; return the last step and seconds."""
    from pe_experiments.training.loop import train_model

    first_step = checkpoint["global_step"] if checkpoint else 0
    if checkpoint and checkpoint["finished"]:
        return first_step, 0.0
    display.start("training", experiment.config.training.steps, first_step)
    start = time.monotonic()
    last_step = train_model(
        model, experiment, ranks.device, path, first_step, record, display.step, ranks, loggers
    )
    display.stop()
    return last_step, time.monotonic() - start


def _train_on_other_rank(ranks: Ranks, config: Config, path: Path) -> None:
    """Train and evaluate on a rank other than 0, without storing results."""
    experiment = resolve(config)
    checkpoint = read_checkpoint(path)
    display = console.Display()
    model = _model_to_train(experiment, checkpoint, path)
    with use_device(config), suppress(Diverged):  # rank 0 reports it
        last_step, _ = _train(experiment, model, checkpoint, path, ranks, lambda row: None, display)
        evaluate_model(experiment, model.to(ranks.device), last_step, display)


def _finished_run(status: RunStatus, ranks: Ranks, display: console.Display) -> RunResult:
    """Return the result of a finished run, evaluating it first if this evaluation is new."""
    list_run(status)
    if status.state == "to evaluate":
        _evaluate_again(status, ranks, display)
        return _run_result(status, "evaluated")
    for remark in code_changes(status.experiment, status.run.read_environment()):
        display.say(f"{status.run.name}: {remark}")
    return _run_result(status, "found")


def _evaluate_again(status: RunStatus, ranks: Ranks, display: console.Display) -> None:
    """Evaluate a finished run at other lengths, with another encoding or decoding, or on another task."""
    experiment, directory = status.experiment, status.directory
    assert status.result
    copied_entries = ("status", "name", "task", "model", "seed", "steps")
    result: dict[str, Any] = {key: status.result[key] for key in copied_entries}
    result |= {"label": status.identity.label, "evaluation": status.evaluation}
    if status.evaluation["pe"] != status.result["evaluation"]["pe"]:
        result["evaluated_encoding"] = experiment.components["pe"].label
        result["label"] += f" evaluated as {result['evaluated_encoding']}"
    if experiment.other_task:
        result["evaluated_on"] = experiment.other_task.label
    task = experiment.other_task.section if experiment.other_task else None
    steps = status.result.get("finished_step", experiment.config.training.steps)
    model = trained_model(status)
    with directory.create_and_lock() as created:
        try:
            with closing(RunWriter(status, directory)) as writer:
                with ranks.run_on_all(
                    _evaluate_on_other_rank, experiment.config, task, status.run.checkpoint, steps
                ):
                    curve, tables = evaluate_model(experiment, model.to(ranks.device), steps, display)
                summary = writer.curve(result["label"], curve, tables)
                sizes = {key: status.result[key] for key in SIZE if key in status.result}
                writer.finish(result | summary, summary | sizes)
        except BaseException:
            if created:
                directory.remove()
            raise


def _evaluate_on_other_rank(
    ranks: Ranks, config: Config, other_task: dict[str, Any] | None, path: Path, steps: int
) -> None:
    """Evaluate a finished run on a rank other than 0."""
    experiment = resolve(config, other_task)
    model = _model_to_train(experiment, read_checkpoint(path), path)
    with use_device(config):
        evaluate_model(experiment, model.to(ranks.device), steps, console.Display())


def _run_result(status: RunStatus, done: str) -> RunResult:
    """Return the result that is stored on disk; ``done`` is what this call did."""
    directory = status.directory
    result = directory.read_result() or {}
    curve = read_curve(directory.curve) if result.get("status") == COMPLETED else []
    return RunResult(status.experiment, status.run, directory, result, done, curve)
