"""Open a finished run, for another evaluation, a child or a look inside, and read its model.

A run may come from a stranger, so neither its configuration nor its checkpoint is trusted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pe_experiments.configuration.choices import groups_of
from pe_experiments.configuration.compose import DERIVED, compose_config, merged_with_request
from pe_experiments.configuration.experiment import Experiment
from pe_experiments.configuration.foreign import refuse_foreign
from pe_experiments.configuration.schema import TRAINER_OPTIONS_IN_IDENTITY, Config, resolved, validated
from pe_experiments.models import Backbone
from pe_experiments.store.directory import RunDirectory, State
from pe_experiments.store.identity import CALL, Identity, Record, identify
from pe_experiments.store.names import file_digest, full_hash, leaves
from pe_experiments.store.requested import Run
from pe_experiments.terminal.errors import UserError, allowed, few, one_line, shown
from pe_experiments.terminal.files import require_file

MOST_MODEL_BYTES = 16 << 30  # a billion parameters and the state of their optimizer


def finished_run(
    directory: RunDirectory,
    requested: Mapping[str, Any] | None = None,
    keys: Collection[str] = (),
    trust: bool = False,
    key: str = "run",
) -> Run:
    """Return a completed run after checking that its code may be executed and is unchanged.

    Always call this function before building parts that a run directory names, because the directory may come
    from a stranger.

    Args:
        directory: of the run.
        requested: the user's configuration, by default without any option.
        keys: of the options that the user set, such as ``pe`` or ``evaluation.lengths``.
        trust: as in `load_model`.
        key: the option that error messages name.
    """
    option = f"{key}={directory.path}"
    directory.complete_rerun()
    saved = directory.read_config()
    record = Record.read(directory, saved)
    changed = {name.partition(".")[0] for name in keys}
    changeable = groups_of("evaluate").keys() & Config.model_fields.keys()
    if fixed := sorted(changed - changeable):
        raise UserError(f"{fixed[0]} is fixed by the training; allowed: {allowed(sorted(changeable))}")
    requested = dict(resolved(compose_config()) if requested is None else requested)
    logger = saved.get("logger")
    if "logger" not in changed and isinstance(logger, Mapping) and not any(logger.values()):
        requested["logger"] = {}
    config = merged_with_request(
        {name: value for name, value in saved.items() if name not in DERIVED}, requested, keys
    )
    changes = {section: config[section] for section in changed}
    refuse_foreign(option, saved, changes, trust)
    for name in TRAINER_OPTIONS_IN_IDENTITY:
        trained = saved["trainer"][name]
        if config["trainer"][name] != trained:
            raise UserError(f"trainer.{name} is fixed by the training; allowed: {shown(trained)}")
    other_task = changes.pop("task", None)
    config |= {"task": saved["task"], "study": None}
    config["results_dir"] = str(directory.results_dir)  # the folder may have been moved
    experiment = Experiment(validated(Config, config), other_task)
    run = Run(experiment.config, experiment, record.identity, directory)
    state = run.shown_state
    if state not in (State.FINISHED, State.TO_EVALUATE):
        shown_state = State.INTERRUPTED if state is State.NEW else state
        only = "only a completed run can be evaluated or continued; train it first"
        raise UserError(f"{option}: it is {shown_state}, and {only}")
    current = identify(experiment)
    _refuse_edited_code(option, record, saved["pe"], current, changes)
    # Even if another encoding is evaluated, the trained one may be a class of a stranger.
    unchanged = current.config.keys() - {CALL, *changes}
    same = all(
        full_hash(current.config[name]) == full_hash(run.identity.config.get(name)) for name in unchanged
    )
    if run.identity.hash != record.hash or not same:
        raise UserError(f"{option}: its config.yaml was changed after it was trained, or is of another run")
    return run


def _refuse_edited_code(
    option: str, recorded: Record, encoding: Mapping[str, Any], current: Identity, changes: Mapping[str, Any]
) -> None:
    """Raise an error if data or classes have been edited since training, except what ``changes`` replace.

    ``encoding`` is the section of the trained encoding, whose files do not count if it is replaced.
    """
    encodings = (encoding, changes["pe"]) if "pe" in changes else ()
    values = [str(value) for section in encodings for _, value in leaves(section)]
    replaced = {name for value in values for name in (value, Path(value).name)}
    digests = [(recorded.data, current.data)]
    for group in {**recorded.classes, **current.classes}.keys() - changes.keys():
        digests.append((recorded.classes.get(group, {}), current.classes.get(group, {})))
    edited = [name for old, new in digests for name in old | new if old.get(name) != new.get(name)]
    if edited := [name for name in edited if name not in replaced]:
        raise UserError(f"{option}: {few(edited)} changed since it was trained; train it again")


def trained_model(run: Run) -> Backbone:
    """Return the model of the experiment with the weights of the run."""
    path = run.directory.checkpoint
    if not path.exists():
        cure = "add rerun=true to train it again"
        raise UserError(f"{path} is missing, so the run cannot be evaluated; {cure}")
    checkpoint = read_checkpoint(path, run.identity.hash)
    if (run.directory.read_result() or {}).get("checkpoint") != file_digest(path):
        raise UserError(f"{path} is damaged (its content changed since the run finished)")
    model = run.experiment.untrained_model()
    label = run.experiment.components["pe"].label
    mismatch = f"pe={label} has different parameters than the trained encoding of {run.name}"
    load_weights(model, checkpoint["state_dict"], path, mismatch)
    return model


def read_checkpoint(path: Path, run_hash: str) -> dict[str, Any]:
    """Return a checkpoint that the run of this `Identity.hash` must have written.

    Raises:
        UserError: it is damaged or was not written by this run.
    """
    try:
        require_file(path, MOST_MODEL_BYTES)
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        required = {"state_dict", "finished"}
        if type(checkpoint["global_step"]) is not int or not required <= checkpoint.keys():
            raise ValueError("weights or step are missing")
        if checkpoint.get("run") != run_hash:
            raise ValueError("it was written by another run")
    except Exception as error:
        why = one_line(str(error)) if type(error) is ValueError else type(error).__name__
        raise _damaged(path, why) from error
    return checkpoint


def load_weights(model: nn.Module, weights: Any, path: Path, mismatch: str) -> None:
    """Load the weights of the checkpoint in ``path`` into an untrained model.

    Raises:
        UserError: the weights do not fit the model (with the message ``mismatch``) or are not finite.
    """
    try:
        model.load_state_dict({name.removeprefix("model."): value for name, value in weights.items()})
    except (RuntimeError, AttributeError, TypeError) as error:
        raise UserError(mismatch) from error
    refuse_infinite(model, path)


def refuse_infinite(model: nn.Module, path: Path) -> None:
    """Raise an error if the weights that were read from this file are NaN or infinite."""
    if not all(parameter.isfinite().all() for parameter in model.parameters()):
        raise _damaged(path, "its weights are NaN or infinite")


def _damaged(path: Path, why: str) -> UserError:
    cure = "delete it to train this run from the start, or add rerun=true"
    return UserError(f"{path} is damaged ({why}); {cure}")
