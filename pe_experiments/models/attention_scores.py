"""Compute attention scores under an encoding for given queries and keys, without a model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pe_experiments.encodings import AttentionContext, PositionalEncoding
from pe_experiments.models.attention import makes_weights


@dataclass(frozen=True)
class Inputs:
    """The queries, keys, hidden states and position ids of attention. Shapes as in `encodings.base`."""

    q_BHTK: Tensor
    k_BHTK: Tensor
    x_BTD: Tensor
    positions_BT: Tensor
    declared_B: Tensor | None = None  # declared length of the row, as in `AttentionContext`; None means T

    def context(self, causal: bool, layer: int = 0) -> AttentionContext:
        """Return the context of attention within each row, without padding."""
        ids_BT = self.positions_BT
        visible_1TT = torch.ones(1, ids_BT.shape[1], ids_BT.shape[1], dtype=torch.bool)
        if causal:
            visible_1TT = visible_1TT.tril()
        return AttentionContext(
            ids_BT, ids_BT, visible_1TT, None, self.x_BTD, layer, declared_B=self.declared_B
        )


def attention_scores(
    encoding: PositionalEncoding, inputs: Inputs, layer: int = 0, *, weights: bool = False
) -> Tensor:
    """Return the logits of attention [B, H, T, S], or its weights; masked keys are NaN.

    Weights are returned if ``weights`` is true or if they are not the masked softmax of the encoding's
    logits.
    """
    layer_encoding = encoding.for_layer(layer)
    at = inputs.context(encoding.shape.causal, layer)
    if weights or makes_weights(layer_encoding):
        scores_BHTS = layer_encoding.weights(inputs.q_BHTK, inputs.k_BHTK, at)
    else:
        q_BHTK, k_BHTK = layer_encoding.rotate(inputs.q_BHTK, inputs.k_BHTK, at)
        scores_BHTS = layer_encoding.scaled_logits(q_BHTK, k_BHTK)
        bias = layer_encoding.bias(q_BHTK, k_BHTK, at)
        scores_BHTS = scores_BHTS if bias is None else scores_BHTS + bias
    return scores_BHTS.masked_fill(~at.visible_BTS[:, None], torch.nan)


def attention_outputs(encoding: PositionalEncoding, inputs: Inputs, v_BHTK: Tensor, layer: int = 0) -> Tensor:
    """Return what attention reads from the values, [B, H, T, K]."""
    layer_encoding = encoding.for_layer(layer)
    at = inputs.context(encoding.shape.causal, layer)
    weights_BHTS = layer_encoding.weights(inputs.q_BHTK, inputs.k_BHTK, at)
    o_BHTK = layer_encoding.read(weights_BHTS, layer_encoding.values(v_BHTK, at), at)
    return layer_encoding.outputs(o_BHTK, at)
