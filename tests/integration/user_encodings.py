"""Encodings, tasks and a callback as users write them, right and wrong. The last one is the README's."""

import os
import signal
import sys
import time

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from pe_experiments.encodings import AttentionContext, ModelShape, PositionalEncoding
from pe_experiments.encodings.learned import Learned
from pe_experiments.tasks.base import PositionIds
from pe_experiments.tasks.copying import Copy

FAR = 60  # keys; no training batch of a test has so many


class UsedByFew(Learned):
    """Adds a parameter to sequences of four symbols (10 tokens) alone; most batches leave it unused."""

    def __init__(self, shape: ModelShape):
        super().__init__(shape)
        self.added_D = nn.Parameter(torch.ones(shape.d_model))

    def embed(self, x_BTD: Tensor, positions_BT: Tensor) -> Tensor:
        embedded_BTD = super().embed(x_BTD, positions_BT)
        return embedded_BTD + self.added_D if x_BTD.shape[1] == 10 else embedded_BTD


class Fails(PositionalEncoding):
    """Raises an error of two lines."""

    def embed(self, x_BTD: Tensor, positions_BT: Tensor) -> Tensor:
        raise RuntimeError("first line\nsecond line")


class Kills(PositionalEncoding):
    """Kills its process in training, as a machine out of memory does."""

    def bias(self, q_BHTK: Tensor, k_BHSK: Tensor, at: object) -> None:
        if self.training and torch.is_grad_enabled():
            os.kill(os.getpid(), signal.SIGKILL)


class Slow(PositionalEncoding):
    """Sleeps 0.1 s per layer and step while the file that SLOW_TRAINING names exists."""

    def bias(self, q_BHTK: Tensor, k_BHSK: Tensor, at: object) -> None:
        if self.training and torch.is_grad_enabled() and os.path.exists(os.environ.get("SLOW_TRAINING", "")):
            time.sleep(0.1)


class FailsFar(PositionalEncoding):
    """Fails in large batches of more than 20 tokens, which only the evaluation has."""

    def bias(self, q_BHTK: Tensor, k_BHSK: Tensor, at: object) -> None:
        if k_BHSK.shape[2] > 20 and len(k_BHSK) > 8:
            raise RuntimeError("too far")


class PoolsAll(PositionalEncoding):
    """Looks ahead: adds to every token the mean of the whole row."""

    def embed(self, x_BTD: Tensor, positions_BT: Tensor) -> Tensor:
        return x_BTD + x_BTD.mean(dim=1, keepdim=True)


class MeansToPool(PoolsAll):
    looks_ahead = True


class SeesOneKeyTooMany(PositionalEncoding):
    """Looks ahead: its mask is one key too wide."""

    def weights(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor:
        visible_BTS = at.relative_positions_BTS <= 1
        return (q_BHTK @ k_BHSK.mT).masked_fill(~visible_BTS[:, None], -torch.inf).softmax(-1)


class GatedByTheFuture(PositionalEncoding):
    """Looks ahead as soon as its gate, initially 0, is trained."""

    per_layer = True

    def __init__(self, shape: ModelShape):
        super().__init__(shape)
        self.gate = nn.Parameter(torch.zeros(shape.d_model))

    def bias(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor:
        assert at.x_BSD is not None
        pooled_BS = (at.x_BSD * self.gate).sum(-1).flip(1)
        return pooled_BS[:, None, None].float()


class NotANumberFar(PositionalEncoding):
    """Takes the logarithm of a negative number beyond position 100."""

    def embed(self, x_BTD: Tensor, positions_BT: Tensor) -> Tensor:
        return x_BTD + (100.0 - positions_BT)[..., None].log()


class TellingIds(Copy):
    """Its position ids are its answers."""

    def position_ids(self, inputs_BN: Tensor, targets_BM: Tensor) -> dict[str, PositionIds]:
        return {"coupling": PositionIds(torch.ones_like(inputs_BN), 1 + targets_BM)}


class Noisy(PositionalEncoding):
    """Draws random numbers while it trains."""

    def embed(self, x_BTD: Tensor, positions_BT: Tensor) -> Tensor:
        return x_BTD + 0.1 * torch.randn_like(x_BTD) if self.training else x_BTD


class NoisyInEvaluation(PositionalEncoding):
    """Draws from torch in evaluation, too."""

    looks_ahead = True  # so that the check for look-ahead does not apply

    def bias(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor:
        return torch.rand_like(at.relative_positions_BTS[:, None], dtype=torch.float32)


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


class WrongShapeInEvaluation(PositionalEncoding):
    def embed(self, x_BTD: Tensor, positions_BT: Tensor) -> Tensor:
        return x_BTD if self.training else x_BTD[:, 1:]


class EditsEmbeddings(PositionalEncoding):
    """Right: only the model reads them."""

    def embed(self, x_BTD: Tensor, positions_BT: Tensor) -> Tensor:
        with torch.no_grad():
            return x_BTD.add_(0.01)


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


class Halved(pl.Callback):
    """A user's callback that scales the gradients after the backward pass."""

    def __init__(self, factor: float = 0.5):
        self.factor = factor

    def on_after_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        for parameter in pl_module.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(self.factor)


class Recency(PositionalEncoding):
    def __init__(self, shape, slope: float = 0.1):
        super().__init__(shape)
        self.slope = slope

    def bias(self, q_BHTK, k_BHSK, at):  # added to the logits [B, H, T queries, S keys]
        distance = at.q_positions_BT[:, None, :, None] - at.k_positions_BS[:, None, None, :]
        return -self.slope * distance.abs()
