"""Load the model of a finished run, and compute its answers and attention weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from pe_experiments.configuration.compose import DERIVED, names_outside_package, with_local_logger
from pe_experiments.configuration.experiment import Experiment, resolve
from pe_experiments.configuration.schema import ENCODING_AND_TASK, TRAINER_OPTIONS_IN_IDENTITY, check
from pe_experiments.data.batches import Batch
from pe_experiments.encodings import PositionalEncoding
from pe_experiments.evaluation.curve import forced_answers, greedy_answers
from pe_experiments.models import Backbone
from pe_experiments.models.attention import Attention
from pe_experiments.store.checkpoint import load_weights, read_checkpoint
from pe_experiments.store.directory import RunDirectory
from pe_experiments.store.identity import Identity, data_digests, identify
from pe_experiments.store.status import RunStatus, status_in
from pe_experiments.tasks import IGNORE
from pe_experiments.terminal.errors import UserError, few, shown
from pe_experiments.training.preflight import check_model, refuse_large_model


@dataclass(frozen=True)
class TrainedModel:
    """The experiment of a run (task, format, positions) and its trained model on the CPU."""

    experiment: Experiment
    model: Backbone

    @property
    def encoding(self) -> PositionalEncoding:
        """Return the encoding of the first layer, which all layers may share."""
        return self.model.encoding(0)

    def batch(self, inputs_BN: Tensor) -> Batch:
        """Return the model's inputs (tokens, labels, position ids) for inputs [B, N] of the task."""
        source, task = self.experiment.source, self.experiment.task
        targets_BM = task.solve(inputs_BN)
        longest = max(targets_BM.shape[1], task.target_length(inputs_BN.shape[1]))
        targets_BM = F.pad(targets_BM, (0, longest - targets_BM.shape[1]), value=IGNORE)
        rows = source.sequences(inputs_BN, targets_BM)
        ids_BP = rows.ids_BT
        if ids_BP is None:
            draws = torch.Generator().manual_seed(source.seed)
            ids_BP = source.positions.evaluation_ids(rows.declared_B, source.train_length, draws)
        return Batch(rows.tokens_BT, rows.labels_BT, rows.lengths_B, rows.declared_B, ids_BP)

    @torch.no_grad()
    def answers(self, inputs_BN: Tensor) -> list[list[int]]:
        """Return the answers to inputs [B, N], decoded greedily if the format feeds answers back.

        Inputs and answers are symbols of the task, ``0 .. vocab_size - 1``. Answers have no end mark.
        """
        batch = self.batch(inputs_BN)
        layout = self.experiment.format
        if layout.feeds_back:
            answers_BT = greedy_answers(self.model, batch, layout.eos)
        else:
            answers_BT, _ = forced_answers(self.model, batch)
        return [[token for token in row if token not in (IGNORE, layout.eos)] for row in answers_BT.tolist()]

    @torch.no_grad()
    def attention_weights(self, inputs_1N: Tensor) -> dict[int, Tensor]:
        """Return the attention weights [H heads, T queries, S keys] by layer for one input and its answer."""
        weights: dict[int, Tensor] = {}

        def record(layer: Attention, arguments: tuple[Any, ...], _: Tensor) -> None:
            context = arguments[2]
            weights[context.layer] = layer.weights(*arguments[:3])[0]

        layers = [module for module in self.model.modules() if isinstance(module, Attention)]
        hooks = [layer.register_forward_hook(record) for layer in layers]
        batch = self.batch(inputs_1N)
        try:
            self.model.eval().hidden(batch.tokens_BT, batch.positions_BP, batch.lengths_B, batch.declared_B)
        finally:
            for hook in hooks:
                hook.remove()
        if not weights:
            kind = type(self.model).__name__
            raise UserError(f"attention: {kind} has no layer whose attention weights can be read")
        return weights


def load_model(run: str | Path, trust: bool = False) -> TrainedModel:
    """Return the trained model of a completed run.

    Args:
        run: its directory, ``results/runs/NAME``.
        trust: import the modules outside this package that its ``config.yaml`` names, which runs their code,
            and read the files it names.

    Raises:
        UserError: the run does not exist or is not completed, its code has been edited since, or without
            ``trust`` it names modules or files from outside this package.
    """
    status = finished_status(RunDirectory(Path(run)), trust=trust)
    return TrainedModel(status.experiment, trained_model(status).eval())


def finished_status(
    run: RunDirectory, changes: Mapping[str, Any] | None = None, trust: bool = False, key: str = "run"
) -> RunStatus:
    """Return the status of a completed run after checking that its code may be run and is unchanged.

    Always call this function before building parts that a run directory names, because the directory may come
    from a stranger.

    Args:
        run: the directory.
        changes: as in `run.evaluate_run`.
        trust: as in `load_model`.
        key: the option that error messages name.
    """
    option = f"{key}={run.path}"
    run.restore()
    saved = run.read_config()
    changes = dict(changes or {})
    _refuse_untrusted_code(option, saved, changes, trust)
    try:
        identity = Identity(**saved["identity"])
        if not all(isinstance(identity.hashed[key], dict) for key in ("classes", "data", "config")):
            raise TypeError
    except (KeyError, TypeError) as error:
        why = "config.yaml: section 'identity' is not valid"
        raise UserError(f"{run.path} is not a valid run directory: {why}") from error
    trainer = saved.get("trainer", {})
    requested = changes.get("trainer", trainer)
    for name in TRAINER_OPTIONS_IN_IDENTITY:
        if name in trainer and requested.get(name, trainer[name]) != trainer[name]:
            raise UserError(f"trainer.{name} is fixed by the training; allowed: {shown(trainer[name])}")
    other_task = changes.pop("task", None)
    sections = {key: value for key, value in saved.items() if key not in DERIVED}
    experiment = resolve(check(with_local_logger(sections) | {"study": None} | changes), other_task)
    status = status_in(run, experiment, identity)
    if status.state not in ("finished", "to evaluate"):
        state = "interrupted" if status.state == "new" else status.state
        only = "only a completed run can be evaluated or continued; train it first"
        raise UserError(f"{option}: it is {state}, and {only}")
    _refuse_edited_code(option, identity.hashed, identify(experiment).hashed, changes)
    return status


def _refuse_edited_code(
    option: str, recorded: Mapping[str, Any], current: Mapping[str, Any], changes: Mapping[str, Any]
) -> None:
    """Raise an error if data or classes not replaced by ``changes`` have been edited since training."""
    digests = [(recorded["data"], current["data"])]
    for group in {**recorded["classes"], **current["classes"]}.keys() - changes.keys():
        digests.append((recorded["classes"].get(group, {}), current["classes"].get(group, {})))
    edited = []
    for old, new in digests:
        edited += [name for name in old | new if old.get(name) != new.get(name)]
    if edited:
        raise UserError(f"{option}: {few(edited)} changed since it was trained; train it again")


def _refuse_untrusted_code(option: str, saved: Any, changes: Mapping[str, Any], trust: bool) -> None:
    """Raise an error without ``trust`` if the saved configuration names classes or files of a stranger.

    Classes and files that ``changes`` names or that are in the working directory belong to the caller.
    """
    if not isinstance(trust, bool):
        raise UserError(f"trust={shown(trust)}: expected true or false")
    effective = {**saved, **changes}
    sections = [effective.get(key) for key in (*ENCODING_AND_TASK, "model", "optimizer", "trainer")]
    sections.insert(0, saved.get("task"))  # is built even if another task is evaluated
    saved_names = set(names_outside_package(list(saved.values())))
    identity = saved.get("identity")
    hashed = identity.get("hashed", {}) if isinstance(identity, dict) else {}
    untrusted = [
        name
        for name in names_outside_package(sections)
        if name in saved_names and not _is_in_working_directory(name, hashed)
    ]
    if untrusted and not trust:
        cure = "if you trust it, add trust=true, which runs these modules and reads these files"
        problem = f"its config.yaml names {shown(untrusted[0])}, from outside this package"
        raise UserError(f"{option}: {problem}; {cure}")


def _is_in_working_directory(name: str, hashed: Mapping[str, Any]) -> bool:
    """Return whether a class that the run recorded, or an unchanged file, is in the working directory."""
    folder = Path.cwd().resolve()
    try:
        if any(name in digests for digests in hashed["classes"].values()):
            *module_parts, _ = name.split(".")
            if not all(part.isidentifier() for part in module_parts):
                return False
            modules = [folder.joinpath(*module_parts[:end]) for end in range(1, len(module_parts) + 1)]
            return any(
                path.with_suffix(".py").is_file() or (path / "__init__.py").is_file() for path in modules
            )
        path = (folder / name).resolve()
        if not (path.exists() and path.is_relative_to(folder)):
            return False
        return data_digests([path], []).items() <= hashed["data"].items()
    except (AttributeError, TypeError, KeyError, ValueError, OSError, UserError):  # a damaged configuration
        return False


def trained_model(status: RunStatus) -> Backbone:
    """Return the model of the experiment with the weights of the run."""
    experiment, run = status.experiment, status.run
    checkpoint = read_checkpoint(run.checkpoint)
    if checkpoint is None:
        cure = "add rerun=true to train it again"
        raise UserError(f"{run.checkpoint} is missing, so the run cannot be evaluated; {cure}")
    refuse_large_model(experiment)
    check_model(experiment)
    model = experiment.untrained_model()
    label = experiment.components["pe"].label
    mismatch = f"pe={label} has different parameters than the trained encoding of {run.name}"
    mismatch += "; only encodings with the same parameters can use its weights"
    load_weights(model, checkpoint, run.checkpoint, mismatch)
    return model
