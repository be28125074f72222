"""Parts that misbehave, each in one way; far away is farther than any training batch of a test."""

import os
import random
import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pe_experiments.encodings import ModelShape, PositionalEncoding
from pe_experiments.encodings.base import AttentionContext
from pe_experiments.positions import PositionPolicy
from pe_experiments.tasks.copying import Copy

FAR = 60
STATUS = 3  # of tests that really end; with 0 they would seem to have passed


class SeesAll(PositionalEncoding):
    """Reads every key, the masked ones too, where it misbehaves."""

    def where(self, keys: int) -> bool:
        raise NotImplementedError

    def weights(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor:
        if self.where(k_BHSK.shape[2]):
            return (q_BHTK @ k_BHSK.mT).softmax(-1)
        return super().weights(q_BHTK, k_BHSK, at)


class AheadFar(SeesAll):
    def where(self, keys: int) -> bool:
        return keys > FAR


class AheadInEvaluation(SeesAll):
    def where(self, keys: int) -> bool:
        return not self.training


class AheadLateInLongRows(PositionalEncoding):
    """The last tokens of long rows read one key too many."""

    def weights(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor:
        late_T = torch.arange(q_BHTK.shape[2]) >= max(FAR, k_BHSK.shape[2] - 2)
        masked_TS = at.relative_positions_BTS[0] > late_T[:, None].long()
        return (q_BHTK @ k_BHSK.mT).masked_fill(masked_TS, -torch.inf).softmax(-1)


class WrongShapeInEvaluation(PositionalEncoding):
    def embed(self, x_BTD: Tensor, positions_BT: Tensor) -> Tensor:
        return x_BTD if self.training else x_BTD[:, 1:]


class WrongShapeFar(PositionalEncoding):
    def bias(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor | None:
        keys = k_BHSK.shape[2]
        return torch.zeros(keys, keys - 1) if keys > FAR and not self.training else None


class EditsQueries(PositionalEncoding):
    def rotate(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> tuple[Tensor, Tensor]:
        q_BHTK.data.mul_(2)
        return q_BHTK, k_BHSK


class EditsKeysFar(PositionalEncoding):
    def bias(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> None:
        if k_BHSK.shape[2] > FAR:
            k_BHSK.add_(1)


class EditsPositions(PositionalEncoding):
    def bias(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> None:
        at.q_positions_BT.add_(1)


class EditsPositionsAtEmbedding(PositionalEncoding):
    def embed(self, x_BTD: Tensor, positions_BT: Tensor) -> Tensor:
        positions_BT.clamp_(max=3)
        return x_BTD


class EditsDistances(PositionalEncoding):
    def bias(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor:
        return -at.relative_positions_BTS.abs_()[:, None].float()


class EditsEmbeddings(PositionalEncoding):
    """Harmless: nobody else reads them."""

    def embed(self, x_BTD: Tensor, positions_BT: Tensor) -> Tensor:
        with torch.no_grad():
            return x_BTD.add_(0.01)


class Drawing(PositionalEncoding):
    """Adds noise at the embedding."""

    def __init__(self, shape: ModelShape):
        super().__init__(shape)
        self.own = torch.Generator()

    def noise(self, size: torch.Size) -> Any:
        raise NotImplementedError

    def embed(self, x_BTD: Tensor, positions_BT: Tensor) -> Tensor:
        return x_BTD + torch.as_tensor(self.noise(x_BTD.shape), dtype=x_BTD.dtype)


class NoiseInEvaluation(Drawing):
    def noise(self, size: torch.Size) -> Any:
        return torch.zeros(size) if self.training else torch.randn(size)


class NoiseOfNumpy(Drawing):
    def noise(self, size: torch.Size) -> Any:
        return np.random.standard_normal(size)


class NoiseOfPython(Drawing):
    def noise(self, size: torch.Size) -> Any:
        return random.random()


class NoiseOfItsOwn(Drawing):
    """Where a resumed run goes on, its generator starts anew."""

    def noise(self, size: torch.Size) -> Any:
        return torch.randn(size, generator=self.own)


class NoiseOfItsOwnFar(NoiseOfItsOwn):
    def noise(self, size: torch.Size) -> Any:
        return super().noise(size) if size[1] > FAR else torch.zeros(size)


class SetsTheSeed(Drawing):
    def noise(self, size: torch.Size) -> Any:
        if self.training:
            torch.manual_seed(0)
        return torch.zeros(size)


class SetsTheSeedInEvaluation(Drawing):
    def noise(self, size: torch.Size) -> Any:
        if not self.training:
            torch.manual_seed(0)
        return torch.zeros(size)


class SetsSeedsOfItsOwn(Drawing):
    """Another seed at every call."""

    calls = 0

    def noise(self, size: torch.Size) -> Any:
        self.calls += 1
        if self.training:
            torch.manual_seed(self.calls)
        return torch.zeros(size)


class SetsTheSeedOfNumpy(Drawing):
    def noise(self, size: torch.Size) -> Any:
        np.random.seed(0)
        return torch.zeros(size)


class SetsTheSeedOfPython(Drawing):
    def noise(self, size: torch.Size) -> Any:
        random.seed(0)
        return torch.zeros(size)


class UnseededTask(Copy):
    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        inputs_BN = torch.randint(self.vocab_size, (batch_size, length))
        return inputs_BN, inputs_BN


class UnseededTaskOfNumpy(Copy):
    """Numbers that seem random, and the same in every batch."""

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        np.random.seed(0)
        inputs_BN = torch.from_numpy(np.random.randint(0, self.vocab_size, (batch_size, length)))
        return inputs_BN, inputs_BN


class TaskOfItsOwnGenerator(Copy):
    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        inputs = np.random.default_rng().integers(0, self.vocab_size, (batch_size, length))
        return torch.from_numpy(inputs), torch.from_numpy(inputs)


class Misspelt(PositionalEncoding):
    def bais(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> None:
        return None


class OtherSize(PositionalEncoding):
    def bias(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor:
        return q_BHTK.sum(-1) + torch.zeros(q_BHTK.shape[2] + 2)


class WrongAnswers(Copy):
    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        inputs_BN, targets_BN = super().sample(length, batch_size, generator)
        return inputs_BN, targets_BN.roll(1, dims=1)


class ExitingTask(Copy):
    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        sys.exit(0)


class ExitingLength(Copy):
    def target_length(self, length: int) -> int:
        sys.exit(0)


class UnseededWeights(PositionalEncoding):
    def __init__(self, shape: ModelShape):
        super().__init__(shape)
        self.weight = torch.nn.Parameter(torch.tensor(np.random.standard_normal(3)))


class UnseededPositions(PositionPolicy):
    def training_ids(self, declared_B: Tensor, train_length: int, generator: torch.Generator) -> Tensor:
        start = int.from_bytes(os.urandom(4), "big")
        return torch.arange(int(declared_B.max()))[None] + start


class Late(PositionalEncoding):
    """Misbehaves after some steps of training, where nothing that is tried before can see it."""

    calls = 0

    def bias(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> None:
        self.calls += self.training and torch.is_grad_enabled()
        if self.calls == 15:
            self.misbehave()

    def misbehave(self) -> None:
        raise NotImplementedError


class ExitsLate(Late):
    def misbehave(self) -> None:
        sys.exit(0)


class Exits(PositionalEncoding):
    def embed(self, x_BTD: Tensor, positions_BT: Tensor) -> Tensor:
        sys.exit(0)
