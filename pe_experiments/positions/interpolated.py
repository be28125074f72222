"""Position interpolation, which scales the ids of longer sequences into the range of training."""

from __future__ import annotations

import torch
from torch import Tensor

from pe_experiments.positions.base import PositionPolicy


class Interpolated(PositionPolicy):
    """Ids 0 .. n-1, multiplied by L0/n in sequences of n > L0 tokens; L0 is the longest in training.

    No id is larger than in training. Most ids are fractions, which only some encodings accept.

    Source: Chen et al. 2023, arXiv:2306.15595 (position interpolation, without fine-tuning).
    """

    def evaluation_ids(self, declared_B: Tensor, train_length: int, generator: torch.Generator) -> Tensor:
        ids_1P = super().evaluation_ids(declared_B, train_length, generator)
        if int(declared_B.max()) <= train_length:
            return ids_1P
        return ids_1P * (train_length / declared_B.double()).clamp(max=1)[:, None]
