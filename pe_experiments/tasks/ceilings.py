"""Bag ceilings: the best token accuracy an order-blind predictor can reach, computed or estimated."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pe_experiments.tasks.base import IGNORE, Task

EXACT_UP_TO = 256  # tokens; above, the curve is smooth enough for interpolation between computed points
BAGS = (48, 500)  # of an estimate; more for shorter inputs
ARRANGEMENTS = (100, 1000)  # per bag and half; fewer for longer inputs
SYMBOLS_AT_ONCE = 4_000_000  # bounds the memory of an estimate
ESTIMATED_UP_TO = 1_000  # input symbols; longer ones take too long


@cache
def mode_share(length: int, vocab_size: int) -> float:
    """E[max_c n_c] / n for n independent tokens, uniform over ``vocab_size`` symbols.

    The best guess from a bag is its most frequent symbol, right with probability max_c n_c / n. The counts
    are independent Poisson variables given their sum, so P(max <= m) is a coefficient of the V-th power of a
    truncated Poisson series; that power is one FFT.
    """
    if length == 1 or vocab_size == 1:
        return 1.0
    counts = np.arange(length + 1)
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, length + 1)))])
    rate = length / vocab_size
    poisson = np.exp(counts * np.log(rate) - rate - log_factorial)
    total = np.exp(length * np.log(length) - length - log_factorial[length])
    expected = 0.0
    for most in range(length):  # E[max] = sum over m of P(max > m)
        if most * vocab_size < length:
            expected += 1.0  # so few of each cannot add up to the length
            continue
        size = 1 << int(most * vocab_size).bit_length()
        spectrum = np.fft.rfft(poisson[: most + 1], size)
        below = np.fft.irfft(spectrum**vocab_size, size)[length] / total
        expected += max(0.0, 1.0 - below)
        if below > 1 - 1e-9:  # the transform itself is exact to about 1e-10
            break
    return float(expected / length)


def mode_shares(lengths: Sequence[int] | np.ndarray, vocab_size: int) -> np.ndarray:
    """`mode_share` of each of the lengths (at least 1), interpolated for long ones."""
    wanted = np.asarray(lengths)
    points = np.unique(wanted[wanted <= EXACT_UP_TO])
    if wanted.max() > EXACT_UP_TO:
        spread = np.geomspace(max(wanted.min(), EXACT_UP_TO), wanted.max(), 24)
        points = np.unique(np.concatenate([points, spread.round().astype(int)]))
    return np.interp(wanted, points, [mode_share(int(n), vocab_size) for n in points])


def mean_mode_share(shortest: int, longest: int, vocab_size: int) -> float:
    """Mean of `mode_share` over ``shortest .. longest`` tokens: each answer seen leaves one token fewer."""
    return float(mode_shares(np.arange(shortest, longest + 1), vocab_size).mean())


def coin_flips(length: int, share: float = 0.5) -> np.ndarray:
    """P(k of ``length`` independent coins show heads) for k = 0 .. length."""
    heads = np.arange(length + 1)
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, length + 1)))])
    log_ways = log_factorial[-1] - log_factorial[heads] - log_factorial[length - heads]
    return np.exp(log_ways + heads * np.log(share) + (length - heads) * np.log1p(-share))


class Estimate(NamedTuple):
    """A value estimated from random examples, and its standard error."""

    value: float
    error: float


class EstimatedCeiling(Task):
    """A task with an estimated bag ceiling: all arrangements of a bag's symbols are equally likely.

    Subclasses draw inputs (`draw`), compute the targets (`answer`) and say which positions may exchange their
    symbols (`position_kinds`). The ceiling is the estimate of `split_half`.
    """

    @abstractmethod
    def draw(self, length: int, batch_size: int, generator: torch.Generator) -> Tensor:
        """Random inputs [B, N]."""

    @abstractmethod
    def answer(self, inputs_BN: Tensor) -> Tensor:
        """The targets [B, M] of these inputs, all rows at once."""

    def position_kinds(self, inputs_BN: Tensor) -> Tensor:
        """A small whole number per position, [B, N]; positions of one kind may exchange their symbols.

        The bag must determine how many positions of each kind there are and which symbols they hold.
        """
        return torch.zeros_like(inputs_BN)

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        inputs_BN = self.draw(length, batch_size, generator)
        return inputs_BN, self.answer(inputs_BN)

    def rearrange(self, inputs_BN: Tensor, generator: torch.Generator) -> Tensor:
        """Another input with the same bag per row, drawn with its probability given the bag."""
        kinds_BN = self.position_kinds(inputs_BN)
        keys_BN = kinds_BN + torch.rand(inputs_BN.shape, generator=generator, dtype=torch.float64)
        shuffled_BN = inputs_BN.gather(1, keys_BN.argsort(dim=1))
        return torch.empty_like(inputs_BN).scatter_(1, kinds_BN.argsort(dim=1, stable=True), shuffled_BN)

    def bag_ceiling(self, length: int, prefix: bool = False) -> float | None:
        estimate = self._estimate(length, prefix)
        return None if estimate is None else estimate.value

    def bag_ceiling_error(self, length: int, prefix: bool = False) -> float:
        estimate = self._estimate(length, prefix)
        return 0.0 if estimate is None else estimate.error

    @cached_property
    def _estimates(self) -> dict[int, Estimate]:
        return {}

    def _estimate(self, length: int, prefix: bool) -> Estimate | None:
        if length > ESTIMATED_UP_TO or (prefix and self.target_length(length) > 1):
            return None  # the ceiling given the answer so far is not known
        if length not in self._estimates:
            self._estimates[length] = split_half(self, length)
        return self._estimates[length]


def split_half(task: EstimatedCeiling, length: int) -> Estimate:
    """Bag ceiling by cross-validation: the modal answer over half the arrangements, scored on the others.

    Scored on the same half it would be too high; scored on the other half it is slightly too low (the mode of
    a sample is not always the mode). The error includes the spread over bags and that gap.
    """
    generator = torch.Generator().manual_seed(length)
    bags = _between(BAGS, SYMBOLS_AT_ONCE // (2 * max(ARRANGEMENTS) * length))
    half = _between(ARRANGEMENTS, SYMBOLS_AT_ONCE // (2 * bags * length))
    at_once = max(1, SYMBOLS_AT_ONCE // (2 * half * length))
    counts = [
        _count_votes(task, inputs_CN, half, generator)
        for inputs_CN in task.draw(length, bags, generator).split(at_once)
    ]
    right_B, fitted_B, scored_B = torch.cat(counts, dim=1)
    value, plugged_in = float(right_B.sum() / scored_B.sum()), float(fitted_B.sum() / scored_B.sum())
    spread = float((right_B - value * scored_B).std() / scored_B.mean() / bags**0.5)
    return Estimate(value, (spread**2 + (plugged_in - value) ** 2) ** 0.5)


def _between(bounds: tuple[int, int], value: int) -> int:
    return max(bounds[0], min(bounds[1], value))


def _count_votes(task: EstimatedCeiling, inputs_CN: Tensor, half: int, generator: torch.Generator) -> Tensor:
    """Numbers of targets [3, C] per bag: right by the other half's mode, right by their own's, and all."""
    arranged_RN = task.rearrange(inputs_CN.repeat_interleave(2 * half, dim=0), generator)
    targets_C2SM = task.answer(arranged_RN).unflatten(0, (len(inputs_CN), 2, half))
    votes_C2MV = torch.stack(
        [(targets_C2SM == symbol).sum(dim=2) for symbol in range(task.vocab_size)], dim=-1
    )
    mode_C2M1 = votes_C2MV.argmax(dim=-1, keepdim=True)
    right_C = votes_C2MV.gather(-1, mode_C2M1.flip(1)).sum(dim=(1, 2, 3))
    fitted_C = votes_C2MV.gather(-1, mode_C2M1).sum(dim=(1, 2, 3))
    scored_C = (targets_C2SM != IGNORE).sum(dim=(1, 2, 3))
    return torch.stack([right_C, fitted_C, scored_C]).double()
