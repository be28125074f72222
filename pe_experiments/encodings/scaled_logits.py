"""Logits that grow with the number of keys, so that attention does not flatten on long sequences."""

import math

import torch
from torch import Tensor, nn

from pe_experiments.encodings import AttentionContext, ModelShape, PositionalEncoding
from pe_experiments.encodings.tensors import in_float64


class LogN(PositionalEncoding):
    """Log-length scaling: the logits of a query that sees n keys are multiplied by ln n / ln L0.

    L0 is ``original_length``. The entropy of the weights then stays about the same at any length. The
    encoding carries no order by itself; compose it with one that does (`Composition`).

    Source: Chiang and Cholak 2022, arXiv:2202.12172, section 5.3; Su 2021 (log n scaling, as in Qwen, which
    does not scale below L0). Parameters: none. Beyond training: weights stay as concentrated as at L0. In
    decoders, where n counts the keys up to the query, and in encoders.
    """

    invariant_to = "ids"

    def rotate(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> tuple[Tensor, Tensor]:
        scale_B1T1 = at.once(log_keys) / math.log(max(self.shape.original_length, 2))
        return (q_BHTK * scale_B1T1).to(q_BHTK.dtype), k_BHSK


class ScalableSoftmax(PositionalEncoding):
    """SSMax: the logits of a query that sees n keys are multiplied by s ln n, with a learned s per head.

    n is the number of visible keys, not the position id. The encoding carries no order by itself; compose it
    with one that does (`Composition`).

    Source: Nakanishi 2025, arXiv:2501.19399, section 2. Parameters: ``num_heads`` per layer, starting at
    1 / ln L0 (L0 = ``original_length``), so that logits at n = L0 start unscaled. Beyond training: weights
    stay concentrated. In decoders and encoders.
    """

    per_layer = True
    invariant_to = "ids"

    def __init__(self, shape: ModelShape):
        super().__init__(shape)
        start = 1 / math.log(max(shape.original_length, 2))
        self.scale_H = nn.Parameter(torch.full((shape.num_heads,), start))

    def rotate(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> tuple[Tensor, Tensor]:
        return (q_BHTK * (self.scale_H[:, None, None] * at.once(log_keys))).to(q_BHTK.dtype), k_BHSK


def log_keys(at: AttentionContext, added: int = 0) -> Tensor:
    """Return ln of the number of keys each query sees plus ``added``, [B, 1, T, 1] in float32."""
    # A padded row of an encoder's batch may see no key; its output is not used but must stay finite.
    logs_BT = in_float64(at.visible_keys_BT.clamp(min=1) + added).log()
    return logs_BT.float().to(at.visible_keys_BT.device)[:, None, :, None]
