"""One run: load or build a model, train it on short sequences, evaluate it on long ones, keep the results."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from pe_experiments.configuration.compose import composed
from pe_experiments.configuration.experiment import Experiment, resolve
from pe_experiments.configuration.schema import Config, check
from pe_experiments.evaluation.evaluate import Curve, describe_model, evaluate_model
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
from pe_experiments.training.device import use_device
from pe_experiments.training.preflight import preflight


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
        with use_device(experiment.config) as device:
            planned = plan(experiment)
            if planned.trained:
                return _evaluate_finished(planned, device, display)
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
                    return _train_and_evaluate(planned, device, display)
            return _evaluate_finished(planned, device, display)
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
        UserError: as `load_model`, or the weights do not fit the changed scheme.
    """
    finished = finished_run(RunDirectory(path), changes, trust)
    display = display or console.Display()
    try:
        with use_device(finished.experiment.config) as device:
            return _evaluate_finished(finished, device, display)
    finally:
        display.stop()


def _train_and_evaluate(planned: Plan, device: str, display: console.Display) -> RunResult:
    """Load or build the model, train it, evaluate it, keep what came out."""
    experiment, run = planned.experiment, planned.run
    checkpoint = read_checkpoint(run.checkpoint)
    from_step = checkpoint["global_step"] if checkpoint else 0
    if from_step:
        console.say(f"{run.name}: resuming at step {from_step} of {experiment.config.training.steps}")
    with recorded(planned, from_step, device) as record:
        model = experiment.untrained_model()
        if checkpoint:
            another = f"{run.checkpoint} holds the weights of another model; delete it to train this run"
            load_weights(model, checkpoint, f"{another} from the start, or add rerun=true")
        if checkpoint and checkpoint["finished"]:
            record.result["finished_step"] = from_step
        else:
            record.result |= _train(record, model, device, from_step, display)
        curve, tables = evaluate_model(experiment, model.to(device), record.result["finished_step"], display)
        record.result |= describe_model(model, experiment.source)
        record.curve(curve, tables)
    return _outcome(planned, "resumed" if from_step else "trained")


def _train(
    record: Record, model: Backbone, device: str, from_step: int, display: console.Display
) -> dict[str, Any]:
    from pe_experiments.training.loop import train_model

    experiment = record.plan.experiment

    def show(row: dict[str, Any]) -> None:
        record.metrics(row)
        display.row(row)

    display.start("training", experiment.config.training.steps, from_step)
    started, checkpoint = time.monotonic(), record.directory.checkpoint
    last = train_model(model, experiment, device, checkpoint, from_step, show, display.step)
    display.stop()
    seconds = (time.monotonic() - started) / max(1, last - from_step)
    return {"finished_step": last, "seconds_per_step": round(seconds, 5)}


def _evaluate_finished(planned: Plan, device: str, display: console.Display) -> RunResult:
    """A finished run: as it is, or measured otherwise without training."""
    list_run(planned)
    if planned.state != "to evaluate":
        for remark in code_changes(planned.experiment, planned.run.read_environment()):
            display.say(f"{planned.run.name}: {remark}")
        return _outcome(planned, "found")
    return _outcome(planned, _evaluate_otherwise(planned, device, display))


def _evaluate_otherwise(planned: Plan, device: str, display: console.Display) -> str:
    """Other lengths, another scheme, decoding or task: into ``evaluations/<hash8>``."""
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
                record.curve(*evaluate_model(experiment, model.to(device), steps, display))
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
