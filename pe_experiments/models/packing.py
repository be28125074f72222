"""Layers compute the real tokens of a padded batch alone; only attention sees them in rows.

Shapes: B rows, T tokens of the longest, P = B T, N tokens that are computed, D columns.
"""

from __future__ import annotations

import torch
from torch import Tensor

STEP = 16  # N is a multiple of it, filled up with padding: kernels are set up anew for every new shape


class Unpacked:
    """Rows stay as they are."""

    def pack(self, x_BTD: Tensor) -> Tensor:
        return x_BTD

    def pad(self, x_BTD: Tensor) -> Tensor:
        return x_BTD

    def kept(self, x_ND: Tensor) -> Tensor:
        """A layer's input at the tokens that `pack` returns, for the residual sum."""
        return x_ND


UNPACKED = Unpacked()


class Packing(Unpacked):
    """The real tokens of right-padded rows, one after the other; ``tokens`` are those of the longest row."""

    def __init__(self, lengths_B: Tensor, tokens: int):
        self.shape = (len(lengths_B), tokens)
        shortest = int(lengths_B.argmin())
        filling = min(-int(lengths_B.sum()) % STEP, tokens - int(lengths_B[shortest]))
        kept_BT = torch.arange(tokens) < lengths_B[:, None]
        kept_BT[shortest, lengths_B[shortest] :][:filling] = True
        kept_P = kept_BT.flatten()
        self.kept_N = kept_P.nonzero()[:, 0]
        # Padding repeats the last token of its row: a value like any other, in whatever an encoding computes.
        self.source_P = kept_P.cumsum(0) - 1

    def pack(self, x_BTD: Tensor) -> Tensor:
        """The real tokens [N, D]."""
        return x_BTD.flatten(0, 1).index_select(0, self.kept_N)

    def pad(self, x_ND: Tensor) -> Tensor:
        """Rows again, [B, T, D]."""
        return x_ND.index_select(0, self.source_P).unflatten(0, self.shape)


class Asked(Unpacked):
    """For the last layer: attention sees all tokens; after it only those at ``asked_n`` are computed."""

    def __init__(self, packing: Unpacked, asked_n: Tensor):
        self.pad = packing.pad  # type: ignore[method-assign]
        self.asked_n = asked_n
        self.place_n = packing.source_P[asked_n] if isinstance(packing, Packing) else asked_n

    def pack(self, x_BTD: Tensor) -> Tensor:
        return x_BTD.flatten(0, 1).index_select(0, self.asked_n)

    def kept(self, x_ND: Tensor) -> Tensor:
        return x_ND.flatten(0, -2).index_select(0, self.place_n)
