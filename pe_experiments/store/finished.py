"""A finished run in Python: its configuration, its weights, and its answers to your own inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pe_experiments.configuration.compose import DERIVED, outside, own_logger
from pe_experiments.configuration.experiment import Experiment, resolve
from pe_experiments.configuration.schema import PARTS, check
from pe_experiments.data.batches import Batch
from pe_experiments.encodings import PositionalEncoding
from pe_experiments.evaluation.curve import forced_answers, greedy_answers
from pe_experiments.models import Backbone
from pe_experiments.models.attention import Attention
from pe_experiments.store.directory import RunDirectory
from pe_experiments.store.identity import Identity, identify
from pe_experiments.store.own_code import is_own
from pe_experiments.store.plan import Plan, plan_in
from pe_experiments.tasks import IGNORE
from pe_experiments.terminal.errors import UserError, few, one_line, shown
from pe_experiments.terminal.files import require_file
from pe_experiments.training.preflight import preflight

MOST_BYTES = 16 << 30  # a model of a thousand million parameters with the optimiser's averages


@dataclass(frozen=True)
class TrainedModel:
    """The experiment of a run (task, format, positions), and its model: in evaluation mode, on the CPU."""

    experiment: Experiment
    model: Backbone

    @property
    def encoding(self) -> PositionalEncoding:
        """The encoding; that of the first layer if every layer has its own."""
        return self.model.encoding(0)

    def batch(self, inputs_BN: Tensor) -> Batch:
        """The inputs with their right answers in the model's format: tokens, labels, position ids."""
        source, task = self.experiment.source, self.experiment.task
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

    @torch.no_grad()
    def attention_weights(self, inputs_1N: Tensor) -> dict[int, Tensor]:
        """The weights [H heads, T queries, S keys] by layer, on one input (content) with its answer."""
        found: dict[int, Tensor] = {}

        def record(layer: Attention, given: tuple[Any, ...], _: Tensor) -> None:
            found[given[2].layer] = layer.weights(*given[:3])[0]

        layers = [module for module in self.model.modules() if isinstance(module, Attention)]
        hooks = [layer.register_forward_hook(record) for layer in layers]
        batch = self.batch(inputs_1N)
        try:
            self.model.eval().hidden(batch.tokens_BT, batch.positions_BP, batch.lengths_B, batch.declared_B)
        finally:
            for hook in hooks:
                hook.remove()
        if not found:
            kind = type(self.model).__name__
            raise UserError(f"attention: {kind} has no layer whose attention weights can be read")
        return found


def load_model(run: str | Path, trust: bool = False) -> TrainedModel:
    """The trained model of a completed run.

    Args:
        run: its directory, ``results/runs/NAME``.
        trust: import the modules outside this package that its ``config.yaml`` names, which runs their code,
            and read the files it names.

    Raises:
        UserError: no such run, not completed, its code has been edited since, or it names modules or files
            from outside this package without ``trust``.
    """
    finished = finished_run(RunDirectory(Path(run)), trust=trust)
    return TrainedModel(finished.experiment, trained_model(finished).eval())


def finished_run(run: RunDirectory, changes: Mapping[str, Any] | None = None, trust: bool = False) -> Plan:
    """A completed run, checked to be of the present source of the user's classes.

    Whatever builds the parts that a run's directory names comes through here: it may be anybody's.
    ``changes`` and ``trust`` are those of `run.evaluate_run`.
    """
    saved, changes = run.read_config(), dict(changes or {})
    _refuse_outside(run, saved, changes, trust)
    try:
        identity = Identity(**saved["identity"])
        hashed = [identity.hashed[key] for key in ("classes", "data", "config")]
        if not all(isinstance(part, dict) for part in hashed):
            raise TypeError
    except (KeyError, TypeError) as error:
        why = "its config.yaml is of an earlier version; train it again"
        raise UserError(f"run={run.path}: {why}") from error
    other_task = changes.pop("task", None)
    sections = {key: value for key, value in saved.items() if key not in DERIVED}
    experiment = resolve(check(own_logger(sections) | {"study": None} | changes), other_task)
    planned = plan_in(run, experiment, identity)
    if planned.state not in ("finished", "to evaluate"):
        state = "interrupted" if planned.state == "new" else planned.state
        only = "only a completed run can be evaluated; train it first"
        raise UserError(f"run={run.path}: it is {state}, and {only}")
    recorded, today = identity.hashed, identify(experiment).hashed
    pairs = [(recorded["data"], today["data"])] if "task" not in changes else []
    for group in {**recorded["classes"], **today["classes"]}.keys() - changes.keys():
        pairs.append((recorded["classes"].get(group, {}), today["classes"].get(group, {})))
    if edited := [name for then, now in pairs for name in then | now if then.get(name) != now.get(name)]:
        raise UserError(f"run={run.path}: {few(edited)} changed since it was trained; train it again")
    return planned


def _refuse_outside(run: RunDirectory, saved: Any, changes: Mapping[str, Any], trust: bool) -> None:
    """Refuse saved classes from outside, the task's too; those named by ``changes`` are the caller's.

    Classes and files that lie in the working directory as the run recorded them are the caller's own.
    """
    if not isinstance(trust, bool):
        raise UserError(f"trust={shown(trust)}: expected true or false")
    built = [
        saved.get("task"),
        *({**saved, **changes}.get(group) for group in (*PARTS, "model", "optimizer", "trainer")),
    ]
    saved_names = set(outside(list(saved.values())))
    identity = saved.get("identity")
    hashed = identity.get("hashed", {}) if isinstance(identity, dict) else {}
    strange = [
        name for name in outside(built) if name in saved_names and not is_own(name, hashed, Path.cwd())
    ]
    if strange and not trust:
        cure = "if you trust it, add trust=true, which runs the modules and reads the files that it names"
        named = f"its config.yaml names {shown(strange[0])}, from outside this package"
        raise UserError(f"run={run.path}: {named}; {cure}")


def trained_model(finished: Plan) -> Backbone:
    """The model of the experiment with the weights of the run."""
    experiment, run = finished.experiment, finished.run
    if (checkpoint := read_checkpoint(run.checkpoint)) is None:
        cure = "add rerun=true to train it again"
        raise UserError(f"{run.checkpoint} is missing, so the run cannot be evaluated; {cure}")
    preflight(experiment)
    model, label = experiment.untrained_model(), experiment.components["pe"].label
    other = f"pe={label} has other parameters than the encoding {run.name} was trained with"
    load_weights(model, checkpoint, f"{other}; only encodings with the same can take over its weights")
    return model


def read_checkpoint(path: Path) -> dict[str, Any] | None:
    """The checkpoint, or None where there is none; a damaged one is a `UserError`."""
    if path.parent.is_symlink() or (path.parent.exists() and not path.parent.is_dir()):
        what = "link" if path.parent.is_symlink() else "file"
        raise UserError(f"{path.parent} is a {what} where a directory belongs; delete it")
    if not path.exists():
        return None
    try:
        require_file(path, MOST_BYTES)
        with ZipFile(path) as archive:  # torch would inflate what it never writes
            if sum(entry.file_size for entry in archive.infolist()) > path.stat().st_size:
                raise ValueError("it is compressed, as no run writes it")
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        if type(checkpoint["global_step"]) is not int or "state_dict" not in checkpoint:
            raise ValueError("it has no weights, or was written at no step")
        if not checkpoint["finished"] and not checkpoint["lr_schedulers"]:
            raise ValueError("an earlier version began it")
    except Exception as error:
        why = one_line(str(error)) if type(error) is ValueError else type(error).__name__
        cure = "delete it to train this run from the start, or add rerun=true"
        raise UserError(f"{path} is damaged ({why}); {cure}") from error
    return checkpoint


def load_weights(model: nn.Module, checkpoint: dict[str, Any], otherwise: str) -> None:
    """Give an untrained model the weights of a checkpoint; ``otherwise`` is said where they do not fit."""
    try:
        weights = checkpoint["state_dict"].items()
        model.load_state_dict({name.removeprefix("model."): value for name, value in weights})
    except (RuntimeError, AttributeError, TypeError) as error:
        raise UserError(otherwise) from error
