"""The contract of a task: examples, the rule behind them, and the scores that need no understanding.

Shapes: B examples, N input symbols, M target symbols.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

IGNORE = -100  # a target that is not scored; the default of torch's cross entropy


class PositionIds(NamedTuple):
    """Ids that related symbols share, from 1 on; 0 means "has none". B may be 1.

    They are read before anything is answered: they may depend on the inputs and on how many targets there
    are, never on what the targets say.
    """

    inputs_BN: Tensor
    targets_BM: Tensor
    separator: int = 0  # of the mark between inputs and targets


class Task(ABC):
    """A rule from input to target symbols, sampled at any length it can make.

    Attributes:
        vocab_size: content symbols are ``0 .. vocab_size - 1``, answers included. Formats add their own marks
            (BOS, SEP, EOS, SLOT) after them.
        order_sensitive: False when a bag of tokens solves it (a control).
        formats: how examples can be shown to a model: ``causal`` and ``slots`` (the answer after the input),
            or ``aligned`` (target t is read out at input t).
        data_files: files that examples are made from, besides those an argument or the source names: their
            content belongs to what a run trained on.
    """

    vocab_size: int
    data_files: tuple[str | Path, ...] = ()
    order_sensitive: bool = True
    formats: tuple[str, ...] = ("causal", "slots")

    @abstractmethod
    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Random examples: inputs [B, N] with N = ``length`` and targets [B, M], int64.

        Targets of -100 are not scored; under ``causal`` and ``slots`` they may only stand at the end.
        """

    @abstractmethod
    def solve(self, inputs_BN: Tensor) -> Tensor:
        """The targets [B, M] of these inputs by the slow and obvious rule; `sample` is held against it."""

    def nearest_length(self, length: int) -> int | None:
        """The largest length it can make that is not above ``length``; None when there is none."""
        return length if length >= 1 else None

    def target_length(self, length: int) -> int:
        """M at this input length; the largest where it varies, so that slots do not give the answer away."""
        return length

    @abstractmethod
    def chance(self, length: int) -> float:
        """Token accuracy of a uniform guess over the symbols a target can hold."""

    def bag_ceiling(self, length: int, prefix: bool = False) -> float | None:
        """Best token accuracy of any predictor that sees the input only as a multiset; None where unknown.

        The predictor knows which target it is asked for and, where targets are read out at the inputs, the
        symbol it stands at.

        Args:
            length: of the input.
            prefix: the predictor is a decoder: it also sees the target symbols before the one it predicts or,
                where targets are read out at the inputs, the inputs so far and no others.
        """
        return None

    def bag_ceiling_error(self, length: int, prefix: bool = False) -> float:
        """Standard error of `bag_ceiling`; 0 where that is computed rather than estimated."""
        return 0.0

    def input_blind(self, length: int) -> float | None:
        """Best token accuracy without reading the input, where that is far above chance; else None."""
        return None

    def position_ids(self, inputs_BN: Tensor, targets_BM: Tensor) -> dict[str, PositionIds]:
        """Ids for ``positions=task`` by kind (``coupling``, ``abacus``); empty where nothing is related.

        No id exceeds max(N, M) + 1.
        """
        return {}


def padded(rows: list[list[int]], width: int) -> Tensor:
    """Answers of different lengths as targets [B, width], filled up with -100."""
    return torch.tensor([row + [IGNORE] * (width - len(row)) for row in rows])


def require_symbols(name: str, value: int, minimum: int) -> int:
    """``value``, if it is at least ``minimum``.

    Raises:
        ValueError: it is not.
    """
    if value < minimum:
        raise ValueError(f"{name}={value} must be at least {minimum}")
    return value
