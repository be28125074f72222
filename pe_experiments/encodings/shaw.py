"""Relative position representations of the keys (Shaw et al. 2018)."""

import torch
from torch import Tensor, nn

from pe_experiments.encodings import AttentionContext, ModelShape, PositionalEncoding
from pe_experiments.encodings.tensors import at_least_float32, by_distance, require_whole
from pe_experiments.terminal.argument_checks import at_least


class Shaw(PositionalEncoding):
    """Logit q_i . (k_j + a[clip(j - i, -K, K)]) / sqrt(head_dim), with learned vectors a.

    Each layer has one table of vectors, which its heads share. Relative representations of the values, which
    Shaw et al. found to add nothing, are left out.

    Source: Shaw, Uszkoreit and Vaswani 2018, arXiv:1803.02155, section 3.2. Parameters:
    ``rows * head_dim`` per layer, ``rows`` = 2K + 1, or K + 1 in a decoder, which sees no later key. Beyond
    training: all distances of K or more share a row, which has been trained.

    Args:
        max_distance: K, at least 1; None means 16, as in the paper, or ``original_length - 1`` if that is
            less.

    Raises:
        NotApplicable: when applied to fractional positions.
    """

    per_layer = True
    invariant_to = "shift"

    def __init__(self, shape: ModelShape, *, max_distance: int | None = None):
        super().__init__(shape)
        default = max(1, min(16, shape.original_length - 1))
        self.max_distance = at_least(1, "max_distance", default if max_distance is None else max_distance)
        self.rows = self.max_distance + 1 if shape.causal else 2 * self.max_distance + 1
        self.table_RK = nn.Parameter(nn.init.xavier_uniform_(torch.empty(self.rows, shape.head_dim)))

    def bias(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor:
        require_whole(at.relative_positions_BTS, "Shaw's table has no rows")
        row_BTS = (at.relative_positions_BTS + self.max_distance).clamp(0, self.rows - 1)
        query_BHTK = q_BHTK * self.shape.head_dim**-0.5
        scores_BHTR = at_least_float32(query_BHTK @ self.table_RK.T.to(q_BHTK.dtype))
        return by_distance(scores_BHTR, row_BTS)
