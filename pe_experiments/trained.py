"""A finished run in Python: its configuration, its weights, and its answers to your own inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from pe_experiments.building import preflight
from pe_experiments.checkpoints import model_weights, read_checkpoint
from pe_experiments.composition import parts_outside
from pe_experiments.config import Experiment, check, resolve
from pe_experiments.data import Batch
from pe_experiments.encodings import PositionalEncoding
from pe_experiments.errors import UserError, few, shown
from pe_experiments.evaluation import forced_answers, greedy_answers
from pe_experiments.fingerprints import changed
from pe_experiments.identity import Identity, identify
from pe_experiments.instantiation import build_model, source_of
from pe_experiments.models import Backbone
from pe_experiments.runs import COMPLETED, RunDirectory
from pe_experiments.tasks import IGNORE


@dataclass(frozen=True)
class TrainedModel:
    """The experiment of a run (task, format, positions), and its model: in evaluation mode, on the CPU."""

    experiment: Experiment
    model: Backbone

    @property
    def encoding(self) -> PositionalEncoding:
        """The scheme; that of the first layer if every layer has its own."""
        return self.model.scheme(0)

    def batch(self, inputs_BN: Tensor) -> Batch:
        """The inputs with their right answers in the model's format: tokens, labels, position ids."""
        source, task = source_of(self.experiment), self.experiment.task
        targets_BM = task.solve(inputs_BN)
        longest = max(targets_BM.shape[1], task.target_length(inputs_BN.shape[1]))
        targets_BM = F.pad(targets_BM, (0, longest - targets_BM.shape[1]), value=IGNORE)
        rows = source.format.lay_out(inputs_BN, targets_BM)
        if kinds := source.positions.task_ids:
            provided = task.position_ids(inputs_BN, targets_BM)
            ids = next(provided[kind] for kind in kinds if kind in provided)
            ids_BP = source.format.lay_out_ids(ids, len(inputs_BN))
        else:
            draws = torch.Generator().manual_seed(source.seed)
            ids_BP = source.positions.evaluation_ids(rows.declared_B, source.train_length, draws)
        return Batch(rows.tokens_BT, rows.labels_BT, rows.lengths_B, rows.declared_B, ids_BP)

    @torch.no_grad()
    def answers(self, inputs_BN: Tensor) -> list[list[int]]:
        """The model's answers to inputs of one length, decoded greedily if the format feeds answers back.

        Both are symbols of the task, ``0 .. vocab_size - 1``; an answer has no end mark.
        """
        batch, layout = self.batch(inputs_BN), self.experiment.format
        if layout.feeds_back:
            answers_BT = greedy_answers(self.model, batch, layout.eos)
        else:
            answers_BT, _ = forced_answers(self.model, batch)
        return [[token for token in row if token not in (IGNORE, layout.eos)] for row in answers_BT.tolist()]


@dataclass(frozen=True)
class FinishedRun:
    """A completed run with its ``result.json``, and the experiment to evaluate it on (maybe another)."""

    experiment: Experiment
    identity: Identity
    directory: RunDirectory
    result: dict[str, Any]


def load_model(run: str | Path, trust: bool = False) -> TrainedModel:
    """The trained model of a completed run.

    Args:
        run: its directory, ``results/runs/NAME``.
        trust: import modules outside this package that its ``config.yaml`` names, which runs their code.

    Raises:
        UserError: as `finished_run`; or modules outside this package without ``trust``.
    """
    directory = RunDirectory(Path(run))
    if not directory.config.exists():
        raise UserError(f"run={run}: there is no run (no config.yaml)")
    if not trust and (strange := parts_outside(directory.read_config())):
        raise UserError(
            f"run={run}: its config.yaml names {shown(strange[0])}, from outside this package; if you trust "
            f"it, say trust=True"
        )
    finished = finished_run(directory)
    return TrainedModel(finished.experiment, model_of(finished).eval())


def finished_run(run: RunDirectory, changes: Mapping[str, Any] | None = None) -> FinishedRun:
    """A completed run, checked to have been trained by the present code.

    Args:
        run: its directory.
        changes: sections of the saved configuration to replace; ``task`` is a task to evaluate on instead.

    Raises:
        UserError: no such run, not completed, or its code has been edited since.
    """
    saved, changes = run.read_config(), dict(changes or {})
    try:
        known = {key: saved["identity"][key] for key in ("trained", "sources", "label")}
    except (KeyError, TypeError) as error:
        raise UserError(
            f"run={run.path}: its config.yaml is of an earlier version; train it again"
        ) from error
    identity, other_task = Identity(**known, prefix=""), changes.pop("task", None)
    sections = {key: value for key, value in saved.items() if key not in ("identity", "derived")}
    experiment = resolve(check({**sections, **changes}), other_task)
    result = run.read_result()
    if result is None or result["status"] != COMPLETED:
        state = "interrupted" if result is None else result["status"]
        raise UserError(
            f"run={run.path}: it is {state}, and only a completed run can be evaluated; train it first"
        )
    kept = [group for group in identity.sources if group not in changes]
    now = identify(experiment).sources
    if names := changed(*({group: each[group] for group in kept} for each in (identity.sources, now))):
        raise UserError(f"run={run.path}: {few(names)} changed since it was trained; train it again")
    return FinishedRun(experiment, identity, run, result)


def model_of(finished: FinishedRun) -> Backbone:
    """The model of the experiment with the weights of the run.

    Raises:
        UserError: the checkpoint is missing or damaged, or its weights do not fit the experiment's scheme.
    """
    experiment, run = finished.experiment, finished.directory
    if (checkpoint := read_checkpoint(run.checkpoint)) is None:
        raise UserError(
            f"{run.checkpoint} is missing, so the run cannot be evaluated; add rerun=true to train it again"
        )
    preflight(experiment)
    model = build_model(experiment)
    try:
        model.load_state_dict(model_weights(checkpoint))
    except RuntimeError as error:
        raise UserError(
            f"pe={experiment.components['pe'].label} has other parameters than the scheme {run.name} was "
            f"trained with; only schemes with the same parameters can take over its weights"
        ) from error
    return model
