"""One run from top to bottom: train a model on short sequences, evaluate it on long ones, store results.

A composed configuration becomes a `Config` (checked), then a `Run` (components built once, identity,
directory and its state), then a `Result`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml  # type: ignore[import-untyped]
from omegaconf import DictConfig

from pe_experiments.configuration.choices import keys_of, shipped
from pe_experiments.configuration.compose import config_from_python
from pe_experiments.configuration.experiment import Experiment
from pe_experiments.configuration.schema import Config, resolved, used_loggers, validated
from pe_experiments.encodings.absolute import AbsoluteEncoding
from pe_experiments.encodings.base import remarks_of
from pe_experiments.evaluation.evaluate_model import Curve, describe_model, evaluate_model
from pe_experiments.models import Backbone
from pe_experiments.store.csv_files import read_run_curve
from pe_experiments.store.directory import COMPLETED, TRAINED, RunDirectory, State, validation_loss
from pe_experiments.store.environment import code_versions, environment_changes
from pe_experiments.store.finished import finished_run, load_weights, read_checkpoint, trained_model
from pe_experiments.store.identity import untracked
from pe_experiments.store.names import file_digest, jsonable
from pe_experiments.store.parent import copy_parent_weights, inherited
from pe_experiments.store.requested import Run
from pe_experiments.store.tracking import require_installed
from pe_experiments.store.writer import RunWriter, list_run, training_failure
from pe_experiments.tasks.text import Text
from pe_experiments.terminal import process
from pe_experiments.terminal.console import Display, say
from pe_experiments.terminal.errors import Diverged, UserError, few, user_errors
from pe_experiments.terminal.files import CATALOGUE, LOADER
from pe_experiments.training import cpu
from pe_experiments.training.device import check_process_group, use_device


@dataclass(frozen=True)
class Result:
    """The outcome of `run_experiment` or `evaluate_run`."""

    experiment: Experiment = field(repr=False)
    directory: RunDirectory  # of the curve: the run's directory or that of one of its evaluations
    run: RunDirectory
    result: dict[str, Any] = field(repr=False)  # the content of ``result.json``
    done: str  # ``trained``, ``resumed``, ``evaluated`` or ``found`` (already finished)
    curve: Curve = field(repr=False)  # rows of ``extrapolation.csv``; empty if the run is not completed

    @property
    def status(self) -> str:
        return self.result["status"]

    @property
    def validation_loss(self) -> float:
        return validation_loss(self.result)


def run_experiment(
    config: DictConfig | Mapping[str, Any] | Config, display: Display | None = None, wait: bool = False
) -> Result:
    """Train and evaluate a configuration, or return its finished run.

    Args:
        config: a configuration composed by Hydra, a `Config`, or a mapping with the keys of the command line
            (`configuration.compose.config_from_python`), such as ``{"pe": "rope", "training.steps": 100}``.
        display: of the progress; None shows nothing.
        wait: for another process that has the run, instead of raising an error.

    Raises:
        UserError: the configuration cannot be run; no new directory is left and no earlier result is lost.
        KeyboardInterrupt: the run was interrupted; the same call resumes it.
    """
    run = Run(config if isinstance(config, Config) else _checked(config))
    with use_device(run.config) as device, display or Display() as display:
        if run.state not in TRAINED:
            check_process_group(run.config)
            model = _untrained_model(run)
            if is_other_rank(run.config):
                process.end_with_parent()
                with suppress(Diverged):  # rank 0 reports it
                    _train(run, model, device, None)
                process.end()
            _say_remarks(run, model, display)
            with run.directory.locked(wait=-1 if wait else 0.2):
                if run.state not in TRAINED:  # another process may have trained it since
                    return _train_and_evaluate(run, model, device, display)
        return _finished(run, device, display, wait)


def evaluate_run(
    path: str | Path, changes: dict[str, Any], display: Display | None = None, trust: bool = False
) -> Result:
    """Evaluate a finished run with another configuration.

    Args:
        path: the run's directory.
        changes: to the saved configuration, by key of the command line (``evaluation.lengths``) or section:
            ``evaluation``, ``pe``, ``trainer``, ``logger``, or ``task`` to evaluate on another task. A choice
            may be given by name. A section is merged into the saved one, or replaces it if it has a
            ``_target_``. Another encoding keeps the run's `PositionalEncoding.trained_arguments` that are
            not given.
        display: of the progress; None shows nothing.
        trust: as in `load_model`.

    Raises:
        UserError: as in `load_model`, or the weights do not fit the changed encoding.
    """
    config = config_from_python(changes, "evaluate")
    keys = _keys_of_python(changes)
    sections = {key.lstrip("+"): value for key, value in changes.items() if isinstance(value, Mapping)}
    keys += [key for key, section in sections.items() if "_target_" in section]  # replaced as a whole
    return evaluate(finished_run(RunDirectory(Path(path)), resolved(config), keys, trust), display)


def evaluate(run: Run, display: Display | None = None) -> Result:
    """Evaluate a finished run that `store.finished.finished_run` opened."""
    with use_device(run.config) as device, display or Display() as display:
        return _finished(run, device, display)


def try_out(run: Run) -> None:
    """Build and check what training would use, without writing anything (``dry_run=true``)."""
    require_installed(run.config.logger)
    with use_device(run.config):
        _untrained_model(run)


def _checked(config: DictConfig | Mapping[str, Any]) -> Config:
    """Return a checked configuration, with the settings of the run that it continues."""
    if not isinstance(config, Mapping):
        raise UserError(f"{config!r}: expected a mapping such as {{'pe': 'rope', 'training.steps': 100}}")
    if isinstance(config, DictConfig):
        return validated(Config, inherited(config))
    return validated(Config, inherited(config_from_python(config), _keys_of_python(config)))


def _keys_of_python(config: Mapping[str, Any]) -> list[str]:
    return [key.lstrip("+") for key in keys_of(config)]


def _untrained_model(run: Run) -> Backbone:
    """Return the model with initial weights, after checking classes from outside the package."""
    with _explained_failures():
        optimizer = run.experiment.components["optimizer"].choice
        has_user_code = run.identity.classes or run.experiment.metrics
        if has_user_code or optimizer not in shipped("optimizer"):  # the tests hold shipped classes
            from pe_experiments.checking.own_classes import check_own_classes  # most runs need no checker

            check_own_classes(run.experiment)
        model = run.experiment.untrained_model()
    ids_1P = run.experiment.longest_ids_1P
    with user_errors("pe", "fails at the longest evaluation"), torch.no_grad():
        for encoding in model.encodings.modules():  # which would be found only after the training
            if isinstance(encoding, AbsoluteEncoding) and ids_1P is not None:
                encoding.vectors(ids_1P)
    return model


@contextmanager
def _explained_failures() -> Iterator[None]:
    """Explain PyTorch's error for too little memory, and turn an exit of a part into an error."""
    try:
        yield
    except SystemExit as error:
        raise RuntimeError(f"a part ends the program with {error!r}") from error
    except (RuntimeError, MemoryError, UserError) as error:  # on a CPU it has no class of its own
        on_cpu = "not enough memory" in str(error) or "allocate memory" in str(error)
        if on_cpu or isinstance(error, torch.OutOfMemoryError | MemoryError):
            lower = "model.d_model, model.num_layers, training.batch_size, training.max_length"
            problem = "this machine has too little memory for this run"
            raise UserError(f"{problem}; lower {lower} or evaluation.lengths") from error
        raise


def _say_remarks(run: Run, model: Backbone, display: Display) -> None:
    task = run.experiment.components["task"].choice
    catalogue = yaml.load(CATALOGUE.read_text(), Loader=LOADER)
    tier = catalogue["tasks"].get(task, {}).get("tier", "quick")
    if tier != "quick" and not isinstance(run.experiment.task, Text):
        first = catalogue["try_first"].get(task, "copy")
        cost = {"hour": "an hour of one core or more", "gpu": "hours of a GPU"}[tier]
        more = f"more steps than training.steps={run.config.training.steps} here"
        display.say(f"{task} takes {cost} until an encoding learns it; try task={first} first, and {more}")
    for remark in remarks_of(model.encodings):
        say(remark)
    if names := untracked(run.identity.classes):
        why = "its code is not, or not only, what its file says, so this run will not be found again"
        say(f"{few(names)}: {why}; load it by its path, as in pe=my_module.MyEncoding")
    elif type(display) is not Display and run.state is State.NEW and not run.config.rerun:
        difference = run.difference_to_cached_run()  # reads all similar runs, which a mute display need not
        if difference:
            display.say(f"This is a new run, {difference}.")


def _train_and_evaluate(run: Run, model: Backbone, device: str, display: Display) -> Result:
    """Train the model, from its checkpoint if there is one, evaluate it and store the results."""
    directory = run.directory
    curve: Curve = []
    with RunWriter(run, directory, display) as writer:
        try:
            with _explained_failures():
                last_step = _train(run, model, device, writer)
                seconds = time.monotonic() - writer.started
                curve, tables = evaluate_model(run.experiment, model.to(device), last_step, display)
            model_size = describe_model(model)
            summary = writer.curve(run.experiment.label, curve, tables)
            outcome = {
                "status": COMPLETED,
                "finished_step": last_step,
                "checkpoint": file_digest(directory.checkpoint),
                "files": writer.files,
                **model_size,
                **summary,
            }
            if not math.isnan(writer.validation_loss):  # unknown if metrics.csv was lost
                outcome["validation_loss"] = writer.validation_loss
            if last_step > writer.first_step:
                outcome["seconds_per_step"] = round(seconds / (last_step - writer.first_step), 5)
            writer.log_summary(summary | model_size)
        except Exception as error:
            outcome = training_failure(directory, error)
    result = {**run.header, "resumed_from": writer.first_step, **outcome}
    directory.write_result(result)
    if run.config.rerun and run.state in TRAINED:
        run.final_directory.replace_by(directory)
        directory = run.directory = run.final_directory
    done = "resumed" if writer.first_step else "trained"
    return Result(run.experiment, directory, directory, result, done, curve)


def _train(run: Run, model: Backbone, device: str, writer: RunWriter | None) -> int:
    """Train the model in place and return the last step.

    Its weights are those of the run's checkpoint, of the parent run, or the initial ones. A process beside
    rank 0 has no writer, and prints nothing.
    """
    from pytorch_lightning.loggers.logger import DummyLogger  # Lightning takes seconds to import

    from pe_experiments.training.loop import fit

    remark = say if writer else Display().say
    path = run.directory.checkpoint
    checkpoint = read_checkpoint(path, run.identity.hash) if path.exists() else None
    first_step = checkpoint["global_step"] if checkpoint else 0
    if device == "cpu":
        environment = run.directory.read_environment() if first_step else {}
        cpu.tune(run.config, model, environment, remark)
    if writer:
        writer.begin_training(device, first_step)
    if checkpoint:
        mismatch = f"{path} contains the weights of another model; delete it, or add rerun=true"
        load_weights(model, checkpoint["state_dict"], path, mismatch)
        if checkpoint["finished"]:
            return first_step
    elif run.config.init_from:
        remark(copy_parent_weights(model, run.experiment))
    observers = [writer, writer.display] if writer else []
    loggers = writer.tracking.loggers if writer else [DummyLogger() for _ in used_loggers(run.config.logger)]
    return fit(model, run.experiment, device, path, observers, loggers, first_step, run.identity.hash)


def is_other_rank(config: Config) -> bool:
    """Return whether this process only trains, beside rank 0, which alone evaluates and writes."""
    if config.trainer.devices * config.trainer.num_nodes == 1:
        return False
    from pytorch_lightning.utilities import rank_zero_only

    return rank_zero_only.rank != 0  # type: ignore[attr-defined]


def _finished(run: Run, device: str, display: Display, wait: bool = False) -> Result:
    """Return the result of a finished run, evaluating it first if this evaluation is new."""
    run.directory = run.final_directory
    if is_other_rank(run.config):
        recorded = run.directory.read_result() or {}
        return Result(run.experiment, run.directory, run.directory, recorded, "found", curve=[])
    run.directory.complete_rerun()
    list_run(run)
    if run.state is State.TO_EVALUATE:
        with run.evaluation_directory.locked(wait=-1 if wait else 0.2):
            if run.state is State.TO_EVALUATE:  # another process may have evaluated it since
                return _evaluate_again(run, device, display)
    changes = environment_changes(run.directory.read_environment(), code_versions())
    if changes:
        display.say(f"{run.name}: trained with {few(changes)}; rerun=true trains again")
    directory = run.evaluation_directory
    with suppress(UserError, KeyError, AttributeError):  # a finished run does not need its config.yaml
        logged = {name for name, section in directory.read_config()["logger"].items() if section}
        if unused := used_loggers(run.config.logger).keys() - logged:
            remark = "it has finished before, so nothing is logged to"
            display.say(f"{run.name}: {remark} {few(sorted(unused))}; rerun=true trains again")
    every = run.config.evaluation.every
    if every and not run.directory.by_step.exists():
        remark = f"trained without evaluation.every={every}, which does not change a run"
        display.say(f"{run.name}: {remark}; rerun=true trains again")
    result = directory.read_result() or {}
    curve = read_run_curve(directory, result) if result.get("status") == COMPLETED else []
    return Result(run.experiment, directory, run.directory, result, "found", curve)


def _evaluate_again(run: Run, device: str, display: Display) -> Result:
    """Evaluate a finished run at other lengths, with another encoding or decoding, or on another task."""
    experiment, directory = run.experiment, run.evaluation_directory
    trained = run.directory.read_result()
    assert trained
    copied_entries = ("status", "name", "run", "task", "model", "seed", "steps", "validation_loss")
    result: dict[str, Any] = {key: trained[key] for key in copied_entries if key in trained}
    result |= {"label": trained["label"], "evaluation": run.evaluation}
    encoding = experiment.components["pe"]
    if run.evaluation["pe"] != jsonable(encoding.with_defaults(trained["evaluation"]["pe"])):
        result["evaluated_encoding"] = encoding.label
        result["label"] += f" evaluated as {result['evaluated_encoding']}"
    if experiment.other_task:
        result["evaluated_on"] = experiment.other_task.label
    if "window" in run.evaluation:
        result["label"] += f" on its last {run.evaluation['window']} tokens"
    steps = trained.get("finished_step", run.config.training.steps)
    from pe_experiments.checking.own_classes import check_own_classes

    check_own_classes(experiment)  # the encoding, the task or the metrics may be others than in the training
    model = trained_model(run)
    with RunWriter(run, directory, display) as writer:
        writer.begin()
        with _explained_failures():
            curve, tables = evaluate_model(experiment, model.to(device), steps, display)
        summary = writer.curve(result["label"], curve, tables)
        writer.log_summary(summary | describe_model(model))
    result |= summary | {"files": writer.files}
    directory.write_result(result)
    return Result(experiment, directory, run.directory, result, "evaluated", curve)
