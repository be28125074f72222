"""Load the model of a finished run and query its answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from pe_experiments.configuration.compose import DERIVED, outside, with_local_logger
from pe_experiments.configuration.experiment import Experiment, resolve
from pe_experiments.configuration.schema import OF_TRAINER, PARTS, check
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
from pe_experiments.training.preflight import preflight


@dataclass(frozen=True)
class TrainedModel:
    """The experiment of a run (task, format, positions) and its model in evaluation mode on the CPU."""

    experiment: Experiment
    model: Backbone

    @property
    def encoding(self) -> PositionalEncoding:
        """Return the encoding, or that of the first layer if every layer has one."""
        return self.model.encoding(0)

    def batch(self, inputs_BN: Tensor) -> Batch:
        """Return the inputs and correct answers in the model's format: tokens, labels, position ids."""
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
        """Return answers to inputs of one length, decoded greedily if the format feeds answers back.

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
        """Return the weights [H heads, T queries, S keys] by layer, on one input with its answer."""
        weights: dict[int, Tensor] = {}

        def record(layer: Attention, given: tuple[Any, ...], _: Tensor) -> None:
            weights[given[2].layer] = layer.weights(*given[:3])[0]

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
    """Return the status of a completed run after checking the source of the user's classes.

    All code that builds parts named by a run directory calls this function, because such a directory may come
    from strangers. ``changes`` and ``trust`` are those of `run.evaluate_run`; errors name the option ``key``.
    """
    named = f"{key}={run.path}"
    run.restore()
    saved = run.read_config()
    changes = dict(changes or {})
    _refuse_outside(named, saved, changes, trust)
    try:
        identity = Identity(**saved["identity"])
        if not all(isinstance(identity.hashed[key], dict) for key in ("classes", "data", "config")):
            raise TypeError
    except (KeyError, TypeError) as error:
        why = "config.yaml: section 'identity' is not valid"
        raise UserError(f"{run.path} is not a valid run directory: {why}") from error
    trainer = saved.get("trainer", {})
    requested = changes.get("trainer", trainer)
    for option in OF_TRAINER:
        if option in trainer and requested.get(option, trainer[option]) != trainer[option]:
            raise UserError(f"trainer.{option} is fixed by the training; allowed: {shown(trainer[option])}")
    other_task = changes.pop("task", None)
    sections = {key: value for key, value in saved.items() if key not in DERIVED}
    experiment = resolve(check(with_local_logger(sections) | {"study": None} | changes), other_task)
    status = status_in(run, experiment, identity)
    if status.state not in ("finished", "to evaluate"):
        state = "interrupted" if status.state == "new" else status.state
        only = "only a completed run can be evaluated or continued; train it first"
        raise UserError(f"{named}: it is {state}, and {only}")
    _refuse_edited(named, identity.hashed, identify(experiment).hashed, changes)
    return status


def _refuse_edited(
    run: str, recorded: Mapping[str, Any], today: Mapping[str, Any], changes: Mapping[str, Any]
) -> None:
    """Raise an error if data or classes of the run have changed, except those being replaced."""
    pairs = [(recorded["data"], today["data"])]
    for group in {**recorded["classes"], **today["classes"]}.keys() - changes.keys():
        pairs.append((recorded["classes"].get(group, {}), today["classes"].get(group, {})))
    edited = [name for then, now in pairs for name in then | now if then.get(name) != now.get(name)]
    if edited:
        raise UserError(f"{run}: {few(edited)} changed since it was trained; train it again")


def _refuse_outside(run: str, saved: Any, changes: Mapping[str, Any], trust: bool) -> None:
    """Raise an error for saved classes and files from outside this package without ``trust``.

    Classes named by ``changes``, and recorded classes and files in the working directory, are the caller's.
    """
    if not isinstance(trust, bool):
        raise UserError(f"trust={shown(trust)}: expected true or false")
    replaced = {**saved, **changes}
    sections = [saved.get("task"), *map(replaced.get, (*PARTS, "model", "optimizer", "trainer"))]
    saved_names = set(outside(list(saved.values())))
    identity = saved.get("identity")
    hashed = identity.get("hashed", {}) if isinstance(identity, dict) else {}
    strange = [name for name in outside(sections) if name in saved_names]
    strange = [name for name in strange if not _is_own(name, hashed)]
    if strange and not trust:
        cure = "if you trust it, add trust=true, which runs these modules and reads these files"
        named = f"its config.yaml names {shown(strange[0])}, from outside this package"
        raise UserError(f"{run}: {named}; {cure}")


def _is_own(name: str, hashed: Mapping[str, Any]) -> bool:
    """Return whether the working directory has the module of a recorded class, or an unchanged file."""
    folder = Path.cwd().resolve()
    try:
        if any(name in digests for digests in hashed["classes"].values()):
            *parts, _ = name.split(".")
            modules = [folder.joinpath(*parts[:end]) for end in range(1, len(parts) + 1)]
            files = [file for path in modules for file in (path.with_suffix(".py"), path / "__init__.py")]
            return all(map(str.isidentifier, parts)) and any(file.is_file() for file in files)
        path = (folder / name).resolve()
        inside = path.exists() and path.is_relative_to(folder)
        return inside and data_digests([path], []).items() <= hashed["data"].items()
    except (AttributeError, TypeError, KeyError, ValueError, OSError, UserError):  # a damaged configuration
        return False


def trained_model(status: RunStatus) -> Backbone:
    """Return the model of the experiment with the weights of the run."""
    experiment, run = status.experiment, status.run
    checkpoint = read_checkpoint(run.checkpoint)
    if checkpoint is None:
        cure = "add rerun=true to train it again"
        raise UserError(f"{run.checkpoint} is missing, so the run cannot be evaluated; {cure}")
    preflight(experiment)
    model = experiment.untrained_model()
    label = experiment.components["pe"].label
    misfit = f"pe={label} has different parameters than the trained encoding of {run.name}"
    misfit += "; only encodings with the same parameters can use its weights"
    load_weights(model, checkpoint, run.checkpoint, misfit)
    return model
