"""Relative position representations of keys and values (Shaw et al. 2018)."""

import torch
from torch import Tensor, nn

from pe_experiments.encodings import AttentionContext, ModelShape, PositionalEncoding
from pe_experiments.encodings.tensors import at_least_float32, by_distance, require_whole
from pe_experiments.terminal.errors import at_least


class Shaw(PositionalEncoding):
    """Logit q_i . (k_j + a[clip(j - i, -K, K)]) / sqrt(head_dim), with learned vectors a.

    Each layer has one table of vectors, which its heads share. With ``values`` a second table acts on what is
    read: o_i = sum_j w_ij (v_j + a^V[clip(j - i, -K, K)]). Shaw et al. found that it adds nothing.

    Source: Shaw, Uszkoreit and Vaswani 2018, arXiv:1803.02155, section 3.2. Parameters:
    ``tables * rows * head_dim`` per layer, ``rows`` = 2K + 1, or K + 1 in a decoder, which sees no later key.
    Beyond training: all distances of K or more share a row, which has been trained.

    Args:
        max_distance: K, at least 1; None means 16, as in the paper, or ``original_length - 1`` if that is
            less.
        values: whether the values have a table, too, which gives up the fused kernel.

    Raises:
        NotApplicable: when applied to fractional positions.
    """

    per_layer = True
    invariant_to = "shift"

    def __init__(self, shape: ModelShape, *, max_distance: int | None = None, values: bool = False):
        super().__init__(shape)
        default = max(1, min(16, shape.original_length - 1))
        self.max_distance = at_least(1, "max_distance", default if max_distance is None else max_distance)
        self.rows = self.max_distance + 1 if shape.causal else 2 * self.max_distance + 1
        self.tables = 2 if values else 1
        self.table_RK = self._make_table()
        self.value_table_RK = self._make_table() if values else None

    @property
    def reads_weights(self) -> bool:
        return self.value_table_RK is not None

    def bias(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor:
        query_BHTK = q_BHTK * self.shape.head_dim**-0.5
        scores_BHTR = at_least_float32(query_BHTK @ self.table_RK.T.to(q_BHTK.dtype))
        return by_distance(scores_BHTR, self._rows(at))

    def read(self, weights_BHTS: Tensor, v_BHSK: Tensor, at: AttentionContext) -> Tensor:
        o_BHTK = super().read(weights_BHTS, v_BHSK, at)
        if self.value_table_RK is None:
            return o_BHTK
        batch, heads, queries, _ = weights_BHTS.shape
        row_BHTS = self._rows(at)[:, None].expand(batch, heads, -1, -1)
        weights_BHTR = weights_BHTS.new_zeros(batch, heads, queries, self.rows)
        weights_BHTR = weights_BHTR.scatter_add(-1, row_BHTS, weights_BHTS)
        return o_BHTK + (weights_BHTR.to(o_BHTK.dtype) @ self.value_table_RK.to(o_BHTK.dtype))

    def _make_table(self) -> nn.Parameter:
        return nn.Parameter(nn.init.xavier_uniform_(torch.empty(self.rows, self.shape.head_dim)))

    def _rows(self, at: AttentionContext) -> Tensor:
        """Return the row of the tables for each query and key, [B, T, S] (B may be 1)."""
        require_whole(at.relative_positions_BTS, "Shaw's table has no rows")
        return (at.relative_positions_BTS + self.max_distance).clamp(0, self.rows - 1)
