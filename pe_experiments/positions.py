"""Which position ids the tokens of a sequence get, independently of the encoding that reads them.

Shapes: B rows, T tokens including padding. Ids are drawn per row from the data stream, so no result depends
on how an evaluation is cut into batches.
"""

from __future__ import annotations

import torch
from torch import Tensor


class PositionPolicy:
    """Consecutive ids 0 .. n-1, and the contract of every other policy."""

    def train_positions(self, train_length: int) -> int:
        """How many different ids training can show when its longest sequence has ``train_length`` tokens.

        Raises:
            ValueError: the policy has fewer ids than such a sequence needs.
        """
        return train_length

    def training_ids(self, lengths_B: Tensor, train_length: int, generator: torch.Generator) -> Tensor:
        """Ids [B or 1, T] for training rows of these lengths; T is the longest of them."""
        return torch.arange(int(lengths_B.max()))[None]

    def evaluation_ids(self, lengths_B: Tensor, train_length: int, generator: torch.Generator) -> Tensor:
        """Ids [B or 1, T] for evaluation rows of these lengths."""
        return torch.arange(int(lengths_B.max()))[None]


class Consecutive(PositionPolicy):
    """Ids 0 .. n-1 for every row, in training and in evaluation."""


class RandomOffset(PositionPolicy):
    """Ids o .. o+n-1 with o drawn uniformly per training row so that every id below the maximum is trained.

    Evaluation starts at 0. Distances between tokens stay those of training; what changes is which absolute
    ids have been seen. Used with learned tables by Huang et al. 2024, arXiv:2410.02140.

    Args:
        max_positions: ids in all; None means four times the longest training sequence.
    """

    def __init__(self, max_positions: int | None = None):
        if max_positions is not None and max_positions < 1:
            raise ValueError(f"max_positions={max_positions} must be at least 1")
        self.max_positions = max_positions

    def train_positions(self, train_length: int) -> int:
        positions = 4 * train_length if self.max_positions is None else self.max_positions
        if positions < train_length:
            raise ValueError(
                f"max_positions={positions} is below the {train_length} tokens of the longest training "
                f"sequence; allowed: {train_length} or more, or null for {4 * train_length}"
            )
        return positions

    def training_ids(self, lengths_B: Tensor, train_length: int, generator: torch.Generator) -> Tensor:
        room_B = self.train_positions(train_length) - lengths_B + 1
        offsets_B = (torch.rand(len(lengths_B), generator=generator, dtype=torch.float64) * room_B).long()
        # Padding repeats no promise: its ids are clamped so that they never leave the table.
        ids_BT = offsets_B[:, None] + torch.arange(int(lengths_B.max()))
        return torch.minimum(ids_BT, (offsets_B + lengths_B - 1)[:, None])
