"""Disentangled attention (He et al. 2021): content to position and position to content."""

from typing import Literal

import torch
from torch import Tensor, nn

from pe_experiments.encodings import AttentionContext, ModelShape, PositionalEncoding
from pe_experiments.encodings.tensors import at_least_float32, by_distance, require_whole
from pe_experiments.terminal.errors import at_least, one_of

KeyIndex = Literal["paper", "released"]


class Deberta(PositionalEncoding):
    """Logit (q_i . k_j + q_i . Kr[d(i, j)] + k_j . Qr[d(j, i)]) / sqrt(3 head_dim).

    d(i, j) = clip(i - j + K, 0, 2K - 1). Kr = P Wk and Qr = P Wq are two projections of one table P of
    relative positions, which all layers share; each layer has its own Wk and Wq.

    Source: He et al. 2021, arXiv:2006.03654, section 3.1. Parameters: ``2 * max_distance * d_model + 2 *
    num_layers * d_model * d_model``, with PyTorch's default initialisation. Beyond training: far distances
    share a row on each side, which has been trained. Made for encoders.

    Args:
        max_distance: K, at least 1; None means ``original_length // 2``, so that the last rows are trained
            too.
        key_index: the row of Qr in the key's term: ``paper``, d(j, i) as above, or ``released``, d(i, j) as
            in the authors' code and in transformers.

    Raises:
        NotApplicable: when applied to fractional positions.
    """

    invariant_to = "shift"

    def __init__(self, shape: ModelShape, *, max_distance: int | None = None, key_index: KeyIndex = "paper"):
        super().__init__(shape)
        self.key_index = one_of(KeyIndex, "key_index", key_index)
        default = max(1, shape.original_length // 2)
        self.max_distance = at_least(1, "max_distance", default if max_distance is None else max_distance)
        self.positions_RD = nn.Parameter(torch.randn(2 * self.max_distance, shape.d_model))
        maps = torch.empty(2, shape.num_layers, shape.d_model, shape.d_model)
        self.key_map_LDD, self.query_map_LDD = (
            nn.Parameter(weight.uniform_(-(shape.d_model**-0.5), shape.d_model**-0.5)) for weight in maps
        )

    def rotate(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> tuple[Tensor, Tensor]:
        return q_BHTK * 3**-0.5, k_BHSK  # the sum has three terms

    def bias(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor:
        require_whole(at.relative_positions_BTS, "DeBERTa's table has no rows")
        scale = self.shape.head_dim**-0.5
        heads = (self.shape.num_heads, self.shape.head_dim)
        key_table_RD = self.positions_RD @ self.key_map_LDD[at.layer]
        query_table_RD = self.positions_RD @ self.query_map_LDD[at.layer]
        key_HRK = key_table_RD.unflatten(-1, heads).transpose(0, 1)
        query_HRK = query_table_RD.unflatten(-1, heads).transpose(0, 1)
        c2p_BHTR = (q_BHTK * scale) @ key_HRK.mT.to(q_BHTK.dtype)
        p2c_BHSR = (k_BHSK * scale * 3**-0.5) @ query_HRK.mT.to(k_BHSK.dtype)
        from_query_BTS, from_key_BST = at.once(self._rows)
        c2p = by_distance(c2p_BHTR, from_query_BTS)
        p2c = by_distance(p2c_BHSR, from_key_BST).mT
        return at_least_float32(c2p) + at_least_float32(p2c)

    def _rows(self, at: AttentionContext) -> tuple[Tensor, Tensor]:
        """Return the indices of the rows of Kr, [B, T, S], and of Qr, [B, S, T]."""
        last = 2 * self.max_distance - 1
        from_query_BTS = (self.max_distance - at.relative_positions_BTS).clamp(0, last)
        if self.key_index == "released":
            return from_query_BTS, from_query_BTS.mT
        return from_query_BTS, (self.max_distance + at.relative_positions_BTS).clamp(0, last).mT
