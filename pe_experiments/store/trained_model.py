"""Load the model of a finished run, and compute its answers and attention weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from pe_experiments.configuration.compose import DERIVED, compose_config
from pe_experiments.configuration.experiment import Experiment, resolve
from pe_experiments.configuration.schema import TRAINER_OPTIONS_IN_IDENTITY, Config, resolved
from pe_experiments.data.batches import Batch
from pe_experiments.encodings import PositionalEncoding
from pe_experiments.evaluation.curve import forced_answers, greedy_answers
from pe_experiments.models import Backbone
from pe_experiments.models.attention import Attention
from pe_experiments.store.checkpoint import load_weights, read_checkpoint
from pe_experiments.store.directory import RunDirectory, State
from pe_experiments.store.identity import Identity, identify
from pe_experiments.store.model_folder import is_model_folder, read_model_folder
from pe_experiments.store.names import file_digest
from pe_experiments.store.record import Record
from pe_experiments.store.status import Run
from pe_experiments.store.trust import refuse_untrusted_code
from pe_experiments.tasks import IGNORE
from pe_experiments.terminal.errors import UserError, few, shown
from pe_experiments.training.own_classes import check_own_classes


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
        weights = self.batch_weights(self.batch(inputs_1N))
        if not weights:
            kind = type(self.model).__name__
            raise UserError(f"attention: {kind} has no layer whose attention weights can be read")
        return {layer: weights_BHTS[0] for layer, weights_BHTS in weights.items()}

    @torch.no_grad()
    def batch_weights(self, batch: Batch) -> dict[int, Tensor]:
        """Return the attention weights [B, H, T, S] by layer, of the layers whose weights can be read."""
        weights: dict[int, Tensor] = {}

        def record(layer: Attention, arguments: tuple[Any, ...], _: Tensor) -> None:
            context = arguments[2]
            weights[context.layer] = layer.weights(*arguments[:3])

        layers = [module for module in self.model.modules() if isinstance(module, Attention)]
        hooks = [layer.register_forward_hook(record) for layer in layers]
        try:
            self.model.eval().hidden(batch.tokens_BT, batch.positions_BP, batch.lengths_B, batch.declared_B)
        finally:
            for hook in hooks:
                hook.remove()
        return weights


def load_model(run: str | Path, trust: bool = False) -> TrainedModel:
    """Return the trained model of a completed run, or of a folder that ``export.py`` wrote.

    Args:
        run: the directory of the run, ``results/runs/NAME``, or the folder.
        trust: import the modules outside this package that its configuration names, which runs their code,
            and read the files it names.

    Raises:
        UserError: the run does not exist or is not completed, its code has been edited since, or without
            ``trust`` it names modules or files from outside this package.
    """
    if is_model_folder(Path(run)):
        experiment, model = read_model_folder(Path(run), trust)
        return TrainedModel(experiment, model.eval())
    finished = finished_run(RunDirectory(Path(run)), trust=trust)
    return TrainedModel(finished.experiment, trained_model(finished).eval())


def finished_run(
    directory: RunDirectory, changes: Mapping[str, Any] | None = None, trust: bool = False, key: str = "run"
) -> Run:
    """Return a completed run after checking that its code may be executed and is unchanged.

    Always call this function before building parts that a run directory names, because the directory may come
    from a stranger.

    Args:
        directory: of the run.
        changes: as in `run.evaluate_run`.
        trust: as in `load_model`.
        key: the option that error messages name.
    """
    option = f"{key}={directory.path}"
    directory.complete_rerun()
    saved = directory.read_config()
    changes = dict(changes or {})
    refuse_untrusted_code(option, saved, changes, trust)
    record = Record.of(directory, saved)
    _refuse_other_arithmetic(saved["trainer"], changes)
    other_task = changes.pop("task", None)
    experiment = resolve(Config.checked(_requested_config(saved, changes, directory)), other_task)
    run = Run.finished(directory, experiment, record.trusted_identity())
    state = run.shown_state
    if state not in (State.FINISHED, State.TO_EVALUATE):
        shown_state = State.INTERRUPTED if state is State.NEW else state
        only = "only a completed run can be evaluated or continued; train it first"
        raise UserError(f"{option}: it is {shown_state}, and {only}")
    _refuse_edited_code(option, record, identify(experiment), changes)
    if run.identity.hash != record.hash:
        raise UserError(f"{option}: its config.yaml was changed after it was trained, or is of another run")
    return run


def _requested_config(
    saved: Mapping[str, Any], changes: Mapping[str, Any], directory: RunDirectory
) -> dict[str, Any]:
    """Return the configuration in which a trained run is evaluated on this machine.

    Loggers, devices and callbacks are those of the user, not of the run, which may come from a stranger.
    """
    config = {key: value for key, value in saved.items() if key not in DERIVED}
    had_none = all(section is None for section in saved["logger"].values())
    here = resolved(compose_config(["logger=none"] if had_none else []))
    trainer = {key: saved["trainer"][key] for key in TRAINER_OPTIONS_IN_IDENTITY if key in saved["trainer"]}
    config |= {"logger": here["logger"], "trainer": here["trainer"] | trainer, "study": None}
    # As wherever the run is now; the folder may have been moved since.
    return config | {"results_dir": str(directory.path.parents[1])} | dict(changes)


def _refuse_other_arithmetic(trained: Mapping[str, Any], changes: Mapping[str, Any]) -> None:
    """Raise an error for changes of ``trainer`` that belong to the identity of the run."""
    requested = changes.get("trainer", trained)
    for name in TRAINER_OPTIONS_IN_IDENTITY:
        if name in trained and requested.get(name, trained[name]) != trained[name]:
            raise UserError(f"trainer.{name} is fixed by the training; allowed: {shown(trained[name])}")


def _refuse_edited_code(option: str, recorded: Record, current: Identity, changes: Mapping[str, Any]) -> None:
    """Raise an error if data or classes not replaced by ``changes`` have been edited since training."""
    digests = [(recorded.data, current.data)]
    for group in {**recorded.classes, **current.classes}.keys() - changes.keys():
        digests.append((recorded.classes.get(group, {}), current.classes.get(group, {})))
    edited = []
    for old, new in digests:
        edited += [name for name in old | new if old.get(name) != new.get(name)]
    if edited:
        raise UserError(f"{option}: {few(edited)} changed since it was trained; train it again")


def trained_model(run: Run) -> Backbone:
    """Return the model of the experiment with the weights of the run."""
    experiment, directory = run.experiment, run.directory
    if not directory.checkpoint.exists():
        cure = "add rerun=true to train it again"
        raise UserError(f"{directory.checkpoint} is missing, so the run cannot be evaluated; {cure}")
    checkpoint = read_checkpoint(directory.checkpoint, run.identity.hash)
    recorded = (directory.read_result() or {}).get("checkpoint")
    if recorded != file_digest(directory.checkpoint):
        raise UserError(f"{directory.checkpoint} is damaged (its content changed since the run finished)")
    check_own_classes(experiment)
    model = experiment.untrained_model()
    label = experiment.components["pe"].label
    mismatch = f"pe={label} has different parameters than the trained encoding of {run.name}"
    mismatch += "; only encodings with the same parameters can use its weights"
    load_weights(model, checkpoint, directory.checkpoint, mismatch)
    return model
