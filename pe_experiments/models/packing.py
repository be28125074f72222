"""Compute only the real tokens of a padded batch in layers; attention sees rows.

Shapes: B rows, T tokens of the longest row, P = B T, N computed tokens, D columns.
"""

from __future__ import annotations

import torch
from torch import Tensor

STEP = 16  # N is padded to a multiple of it, because every new shape sets up kernels


class Unpacked:
    """Leave rows unchanged."""

    def pack(self, x_BTD: Tensor) -> Tensor:
        return x_BTD

    def pad(self, x_BTD: Tensor) -> Tensor:
        return x_BTD

    def residual_rows(self, x_ND: Tensor) -> Tensor:
        """Return a layer's input at the tokens that `pack` returns, for the residual sum."""
        return x_ND


UNPACKED = Unpacked()


class Packing(Unpacked):
    """Concatenate the real tokens of right-padded rows; ``tokens`` is the length of the longest row."""

    def __init__(self, lengths_B: Tensor, tokens: int):
        self.shape = (len(lengths_B), tokens)
        shortest = int(lengths_B.argmin())
        filling = min(-int(lengths_B.sum()) % STEP, tokens - int(lengths_B[shortest]))
        kept_BT = torch.arange(tokens) < lengths_B[:, None]
        kept_BT[shortest, lengths_B[shortest] :][:filling] = True
        kept_P = kept_BT.flatten()
        self.kept_N = kept_P.nonzero()[:, 0]
        # Padding repeats the last token of its row, so that encodings compute with ordinary values.
        self.source_P = kept_P.cumsum(0) - 1

    def pack(self, x_BTD: Tensor) -> Tensor:
        """Return the real tokens [N, D]."""
        return x_BTD.flatten(0, 1).index_select(0, self.kept_N)

    def pad(self, x_ND: Tensor) -> Tensor:
        """Return rows [B, T, D]."""
        return x_ND.index_select(0, self.source_P).unflatten(0, self.shape)


class SelectedTokens(Unpacked):
    """Compute only selected tokens after the attention of the last layer, which sees all tokens."""

    def __init__(self, packing: Unpacked, indices_n: Tensor):
        self.pad = packing.pad  # type: ignore[method-assign]
        self.indices_n = indices_n
        self.place_n = packing.source_P[indices_n] if isinstance(packing, Packing) else indices_n

    def pack(self, x_BTD: Tensor) -> Tensor:
        return x_BTD.flatten(0, 1).index_select(0, self.indices_n)

    def residual_rows(self, x_ND: Tensor) -> Tensor:
        return x_ND.flatten(0, -2).index_select(0, self.place_n)
