"""Random real positions in training and evenly spaced ones in evaluation."""

from __future__ import annotations

import torch
from torch import Tensor

from pe_experiments.positions.base import PositionPolicy, sorted_ids
from pe_experiments.terminal.errors import above


class RandomFloat(PositionPolicy):
    """n real positions drawn uniformly from 0 .. span and sorted; in evaluation (i - 1/2) span / max(n, L0).

    i = 1 .. n, and L0 is the length of the longest training sequence. At every length all positions lie in
    the range of training. In training their spacing varies. Most positions are fractions, which only some
    encodings accept.

    Source: Shimizu, Taniguchi and Matsuo 2026, arXiv:2602.14050 (random float sampling), with span 1.

    Args:
        span: end of the range; None means L0, so that tokens are one position apart within the training
            lengths and encodings with fixed frequencies or slopes tell neighbours apart.
    """

    def __init__(self, span: float | None = None):
        self.span = None if span is None else above(0, "span", span)

    def largest_trained(self, train_length: int) -> float:
        return train_length if self.span is None else self.span

    def training_ids(self, declared_B: Tensor, train_length: int, generator: torch.Generator) -> Tensor:
        longest = int(declared_B.max())
        drawn_BP = torch.rand(len(declared_B), longest, generator=generator, dtype=torch.float64)
        return sorted_ids(drawn_BP, declared_B, 1.0) * self.largest_trained(train_length)

    def evaluation_ids(self, declared_B: Tensor, train_length: int, generator: torch.Generator) -> Tensor:
        middles_P = torch.arange(int(declared_B.max()), dtype=torch.float64) + 0.5
        spacing_B = self.largest_trained(train_length) / declared_B.clamp(min=train_length).double()
        return middles_P * spacing_B[:, None]
