"""One run: load or build a model, train it on short sequences, evaluate it on long ones, keep the results."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from pytorch_lightning.loggers import Logger

from pe_experiments.configuration.compose import composed
from pe_experiments.configuration.experiment import Experiment, resolve
from pe_experiments.configuration.schema import Config, check
from pe_experiments.evaluation.evaluate import Curve, Tables, describe_model, evaluate_model
from pe_experiments.models import Backbone
from pe_experiments.store.csv_files import read_curve, validation_loss
from pe_experiments.store.directory import COMPLETED, RunDirectory
from pe_experiments.store.environment import code_changes
from pe_experiments.store.finished import finished_run, load_weights, read_checkpoint, trained_model
from pe_experiments.store.identity import UNTRACKED
from pe_experiments.store.names import leaves
from pe_experiments.store.plan import Plan, plan
from pe_experiments.store.record import Record, list_run, recorded
from pe_experiments.terminal import console
from pe_experiments.terminal.errors import Diverged
from pe_experiments.training.device import use_device
from pe_experiments.training.preflight import preflight
from pe_experiments.training.ranks import Ranks


@dataclass(frozen=True)
class RunResult:
    """The outcome of one call."""

    experiment: Experiment  # what was asked for
    directory: RunDirectory  # where the curve lies: the run's, or that of one of its evaluations
    result: dict[str, Any]  # the content of ``result.json``
    done: str  # ``trained``, ``resumed``, ``evaluated`` or ``found`` (it was finished already)
    curve: Curve  # the rows of ``extrapolation.csv``; none where the run is not completed

    @property
    def status(self) -> str:
        return self.result["status"]

    @property
    def validation_loss(self) -> float:
        """The last loss on fresh examples of the training lengths; infinite where the run diverged."""
        return validation_loss(self.directory)


def run_experiment(
    config: DictConfig | dict[str, Any] | Config | Experiment, display: console.Display | None = None
) -> RunResult:
    """Train and evaluate what a configuration describes, or return the finished run.

    Args:
        config: composed by Hydra, a `Config`, an `Experiment`, or a mapping of the command line's keys
            (`compose.composed`), such as ``{"pe": "rope", "training.steps": 100}``.
        display: shows the progress; None shows nothing.

    Raises:
        UserError: the configuration cannot be carried out; no new directory is left, and no earlier
            result is lost.
        KeyboardInterrupt: interrupted; the same call resumes.
    """
    if isinstance(config, dict | DictConfig):
        config = check(composed("config", config) if isinstance(config, dict) else config)
    experiment = resolve(config) if isinstance(config, Config) else config
    display = display or console.Display()
    try:
        with use_device(experiment.config) as device, _ranks(experiment, device) as ranks:
            planned = plan(experiment)
            if planned.trained:
                return _evaluate_finished(planned, ranks, display)
            for remark in preflight(experiment):
                console.say(remark)
            if other := planned.not_the_run():
                display.say(f"This is a new run, {other}.")
            for path, digest in leaves(planned.identity.hashed["classes"]):
                if digest == UNTRACKED:
                    console.say(f"{path[-1]}: Python has no text of this class, so an edit makes no new run")
            with planned.run.held(experiment.config.rerun):
                planned = plan(experiment)  # another process may have trained it since
                if not planned.trained:
                    return _train_and_evaluate(planned, ranks, display)
            return _evaluate_finished(planned, ranks, display)
    finally:
        display.stop()


def try_out(experiment: Experiment) -> None:
    """Check all that can be checked without writing anything (``dry_run=true``)."""
    with use_device(experiment.config):
        preflight(experiment)


def evaluate_run(
    path: Path, changes: dict[str, Any], display: console.Display | None = None, trust: bool = False
) -> RunResult:
    """Evaluate a finished run with other settings, without training; ``trust`` as in `load_model`.

    Args:
        path: the run's directory.
        changes: sections of the saved configuration to replace: ``evaluation``, ``pe``, ``trainer`` or
            ``logger``; and ``task``, to evaluate on that one instead.

    Raises:
        UserError: as `load_model`, or the weights do not fit the changed encoding.
    """
    finished = finished_run(RunDirectory(path), changes, trust)
    display = display or console.Display()
    try:
        with use_device(finished.experiment.config) as device, _ranks(finished.experiment, device) as ranks:
            return _evaluate_finished(finished, ranks, display)
    finally:
        display.stop()


@contextmanager
def _ranks(experiment: Experiment, device: str) -> Iterator[Ranks]:
    ranks = Ranks(experiment.config.trainer, device)
    with ranks.assembled():
        yield ranks


def _train_and_evaluate(planned: Plan, ranks: Ranks, display: console.Display) -> RunResult:
    """Load or build the model, train it, evaluate it, keep what came out."""
    experiment, run = planned.experiment, planned.run
    checkpoint = read_checkpoint(run.checkpoint)
    from_step = checkpoint["global_step"] if checkpoint else 0
    if from_step:
        console.say(f"{run.name}: resuming at step {from_step} of {experiment.config.training.steps}")
    with recorded(planned, from_step, ranks.device) as record:
        model = _model_to_train(experiment, checkpoint, run.checkpoint)

        def keep(row: dict[str, Any]) -> None:
            record.metrics(row)
            display.row(row)

        with ranks.all_doing(_train_along, experiment.config, run.checkpoint):
            begun = (model, checkpoint, run.checkpoint)
            loggers = record.loggers.loggers.values()
            curve, tables = _train(experiment, *begun, ranks, record.result, keep, display, loggers)
        record.result |= describe_model(model, experiment.source)
        record.curve(curve, tables)
    return _outcome(planned, "resumed" if from_step else "trained")


def _model_to_train(experiment: Experiment, checkpoint: dict[str, Any] | None, path: Path) -> Backbone:
    model = experiment.untrained_model()
    if checkpoint:
        another = f"{path} holds the weights of another model; delete it to train this run"
        load_weights(model, checkpoint, f"{another} from the start, or add rerun=true")
    return model


def _train(
    experiment: Experiment,
    model: Backbone,
    checkpoint: dict[str, Any] | None,
    path: Path,
    ranks: Ranks,
    result: dict[str, Any],
    keep: Callable[[dict[str, Any]], None],
    display: console.Display,
    loggers: Iterable[Logger] = (),
) -> tuple[Curve, Tables]:
    """Train and evaluate, on every rank; ``result`` gets the last step and the time each took."""
    from pe_experiments.training.loop import train_model

    first = checkpoint["global_step"] if checkpoint else 0
    result["finished_step"] = first
    if not (checkpoint and checkpoint["finished"]):
        display.start("training", experiment.config.training.steps, first)
        started = time.monotonic()
        device, step = ranks.device, display.step
        last = train_model(model, experiment, device, path, first, keep, step, ranks, loggers)
        display.stop()
        seconds = (time.monotonic() - started) / max(1, last - first)
        result |= {"finished_step": last, "seconds_per_step": round(seconds, 5)}
    return evaluate_model(experiment, model.to(ranks.device), result["finished_step"], display)


def _train_along(ranks: Ranks, config: Config, path: Path) -> None:
    """Train and evaluate on a rank other than 0, which keeps nothing."""
    experiment, checkpoint = resolve(config), read_checkpoint(path)
    model = _model_to_train(experiment, checkpoint, path)
    with use_device(config), suppress(Diverged):  # rank 0 says so
        _train(experiment, model, checkpoint, path, ranks, {}, lambda row: None, console.Display())


def _evaluate_along(
    ranks: Ranks, config: Config, other_task: dict[str, Any] | None, path: Path, steps: int
) -> None:
    """Evaluate a finished run on a rank other than 0."""
    experiment = resolve(config, other_task)
    model = _model_to_train(experiment, read_checkpoint(path), path)
    with use_device(config):
        evaluate_model(experiment, model.to(ranks.device), steps, console.Display())


def _evaluate_finished(planned: Plan, ranks: Ranks, display: console.Display) -> RunResult:
    """A finished run: as it is, or measured otherwise without training."""
    list_run(planned)
    if planned.state != "to evaluate":
        for remark in code_changes(planned.experiment, planned.run.read_environment()):
            display.say(f"{planned.run.name}: {remark}")
        return _outcome(planned, "found")
    return _outcome(planned, _evaluate_otherwise(planned, ranks, display))


def _evaluate_otherwise(planned: Plan, ranks: Ranks, display: console.Display) -> str:
    """Other lengths, another encoding, decoding or task: into ``evaluations/<hash8>``."""
    experiment, directory, result = planned.experiment, planned.directory, planned.result or {}
    label, model = planned.identity.label, trained_model(planned)
    if planned.evaluation["pe"] != result["evaluation"]["pe"]:
        label = f"{label} evaluated as {experiment.components['pe'].label}"
    kept = {key: result[key] for key in ("status", "name", "task", "model", "seed", "steps")}
    if experiment.other_task:
        kept["evaluated_on"] = experiment.other_task.label
    with directory.opened() as created:
        try:
            record = Record(planned, directory, kept | {"label": label, "evaluation": planned.evaluation})
            with closing(record):
                steps = result.get("finished_step", experiment.config.training.steps)
                task = experiment.other_task.section if experiment.other_task else None
                with ranks.all_doing(_evaluate_along, experiment.config, task, planned.run.checkpoint, steps):
                    measured = evaluate_model(experiment, model.to(ranks.device), steps, display)
                record.curve(*measured)
        except BaseException:
            if created:
                directory.remove()
            raise
        directory.write_result(record.result)
    return "evaluated"


def _outcome(planned: Plan, done: str) -> RunResult:
    result = (directory := planned.directory).read_result() or {}
    curve = read_curve(directory.curve) if result.get("status") == COMPLETED else []
    return RunResult(planned.experiment, directory, result, done, curve)
