"""Load a trained model to look inside: its answers and its attention weights."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pe_experiments.analysis.model_folder import is_model_folder, read_model_folder
from pe_experiments.configuration.experiment import Experiment
from pe_experiments.data.batches import Batch
from pe_experiments.encodings import PositionalEncoding
from pe_experiments.evaluation.curve import forced_answers, greedy_answers
from pe_experiments.models import Backbone
from pe_experiments.models.attention import Attention
from pe_experiments.models.transformer import Layer
from pe_experiments.store.directory import RunDirectory
from pe_experiments.store.finished import finished_run, trained_model
from pe_experiments.tasks import IGNORE
from pe_experiments.terminal.errors import UserError

Symbols = Tensor | Sequence[int] | Sequence[Sequence[int]]


@dataclass(frozen=True)
class TrainedModel:
    """The experiment of a run (task, format, positions) and its trained model on the CPU."""

    experiment: Experiment
    model: Backbone

    @property
    def encoding(self) -> PositionalEncoding:
        """Return the encoding of the first layer, which all layers may share."""
        return self.model.encoding(0)

    def batch(self, inputs: Symbols) -> Batch:
        """Return the model's inputs (tokens, labels, position ids) for inputs [B, N] of the task."""
        source, task = self.experiment.source, self.experiment.task
        expected = f"inputs: expected symbols of the task, 0 to {task.vocab_size - 1}"
        try:
            inputs_BN = torch.atleast_2d(torch.as_tensor(inputs))
        except (TypeError, ValueError) as error:
            raise UserError(f"{expected}, in rows of equal length") from error
        is_valid = inputs_BN.numel() > 0 and not inputs_BN.is_floating_point()
        if not is_valid or inputs_BN.min() < 0 or inputs_BN.max() >= task.vocab_size:
            raise UserError(expected)
        targets_BM = task.solve(inputs_BN)
        longest = max(targets_BM.shape[1], task.target_length(inputs_BN.shape[1]))
        targets_BM = F.pad(targets_BM, (0, longest - targets_BM.shape[1]), value=IGNORE)
        return source.batch(inputs_BN, targets_BM, torch.Generator().manual_seed(source.seed))

    @torch.no_grad()
    def answers(self, inputs: Symbols) -> list[list[int]]:
        """Return the answers to inputs [B, N], decoded greedily if the format feeds answers back.

        Inputs are a tensor or lists; ``[3, 1, 4]`` alone is a batch of one. Inputs and answers are symbols of
        the task, ``0 .. vocab_size - 1``. Answers have no end mark.
        """
        batch = self.batch(inputs)
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

        self._run(batch, Attention, record)
        return weights

    @torch.no_grad()
    def hidden_states(self, batch: Batch) -> Tensor:
        """Return hidden states [L + 1, B, T, D]: the embeddings, then the output of each layer.

        A model without a `Layer` of this package has one layer, its output after the last norm.
        """
        states: list[Tensor] = []
        last_BTD = self._run(batch, Layer, lambda *call: states.append(call[-1]))
        embedded_BTD = self.model.embed(batch.tokens_BT, batch.positions_BP, batch.declared_B)
        return torch.stack([embedded_BTD, *(states or [last_BTD])])

    def _run(self, batch: Batch, kind: type[nn.Module], hook: Callable[..., None]) -> Tensor:
        """Return hidden states [B, T, D], and call a hook after every module of a kind."""
        modules = [module for module in self.model.modules() if isinstance(module, kind)]
        handles = [module.register_forward_hook(hook) for module in modules]
        try:
            return self.model.eval().hidden(*batch.inputs)
        finally:
            for handle in handles:
                handle.remove()


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
