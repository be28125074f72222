"""Encodings and a task with one defect each. No training batch of a test has ``FAR`` keys."""

import random
import sys

import torch
from torch import Tensor

from pe_experiments.encodings import AttentionContext, PositionalEncoding
from pe_experiments.tasks.copying import Copy

FAR = 60


class SeesAll(PositionalEncoding):
    """Reads masked keys, too, where ``misbehaves`` is true."""

    def misbehaves(self, keys: int) -> bool:
        raise NotImplementedError

    def weights(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor:
        if self.misbehaves(k_BHSK.shape[2]):
            return (q_BHTK @ k_BHSK.mT).softmax(-1)
        return super().weights(q_BHTK, k_BHSK, at)


class AheadFar(SeesAll):
    def misbehaves(self, keys: int) -> bool:
        return keys > FAR


class AheadInEvaluation(SeesAll):
    def misbehaves(self, keys: int) -> bool:
        return not self.training


class DrawsAnew(PositionalEncoding):
    """Draws from a generator that no seed sets."""

    def bias(self, q_BHTK, k_BHSK, at):
        return random.SystemRandom().random() * at.relative_positions_BTS[:, None].float()


class WrongShapeInEvaluation(PositionalEncoding):
    def embed(self, x_BTD: Tensor, positions_BT: Tensor) -> Tensor:
        return x_BTD if self.training else x_BTD[:, 1:]


class EditsEmbeddings(PositionalEncoding):
    """Right: only the model reads them."""

    def embed(self, x_BTD: Tensor, positions_BT: Tensor) -> Tensor:
        with torch.no_grad():
            return x_BTD.add_(0.01)


class OtherSize(PositionalEncoding):
    def bias(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor:
        return q_BHTK.sum(-1) + torch.zeros(q_BHTK.shape[2] + 2)


class WrongAnswers(Copy):
    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        inputs_BN, targets_BN = super().sample(length, batch_size, generator)
        return inputs_BN, targets_BN.roll(1, dims=1)


class Exits(PositionalEncoding):
    def embed(self, x_BTD: Tensor, positions_BT: Tensor) -> Tensor:
        sys.exit(0)


class ExitsLate(PositionalEncoding):
    """Ends the program after some training steps, which no check before the training reaches."""

    calls = 0

    def bias(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> None:
        self.calls += self.training and torch.is_grad_enabled()
        if self.calls == 15:
            sys.exit(0)
