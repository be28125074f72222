"""Attention weights of a trained model by distance, on the examples it was evaluated with.

Shapes: B rows, T tokens, H heads, S keys, N distances; see `encodings.base`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TypeVar
from unittest.mock import patch

import pandas as pd
import torch
from torch import Tensor

from pe_experiments.config import Experiment
from pe_experiments.data import Batch
from pe_experiments.encodings import AttentionContext
from pe_experiments.errors import UserError
from pe_experiments.instantiation import source_of
from pe_experiments.models import Backbone
from pe_experiments.models.attention import Attention

Weights = Callable[[Tensor, Tensor, AttentionContext], Tensor]
Kept = TypeVar("Kept")


@torch.no_grad()
def attention_by_distance(experiment: Experiment, model: Backbone, length: int) -> pd.DataFrame:
    """Mean attention weight by layer, head and distance.

    Args:
        experiment: what the model was trained on; its first hundred evaluation examples are read.
        model: trained, on the CPU.
        length: input length of the examples.

    Returns:
        Columns ``layer, head, distance, weight``: the weight of the key ``distance`` tokens before the query
        (after it where negative), averaged over all queries that see a key there, without padding.

    Raises:
        UserError: a model that never asks its scheme for weights, such as one around a fused kernel.
    """
    content_length = experiment.task.nearest_length(length)
    assert content_length is not None
    batch = source_of(experiment).evaluation_block(content_length, 0)
    real_BT = torch.arange(batch.tokens_BT.shape[1]) < batch.lengths_B[:, None]
    pairs_BTS = real_BT[:, :, None] & real_BT[:, None, :]

    def means(weights_BHTS: Tensor, at: AttentionContext) -> pd.DataFrame:
        return _means(weights_BHTS.double(), pairs_BTS & at.visible_BTS)

    frames = recorded(model, batch, means)
    return pd.concat([frames[layer].assign(layer=layer) for layer in sorted(frames)], ignore_index=True)[
        ["layer", "head", "distance", "weight"]
    ]


@torch.no_grad()
def recorded(
    model: Backbone, batch: Batch, keep: Callable[[Tensor, AttentionContext], Kept]
) -> dict[int, Kept]:
    """``keep`` of the attention weights [B, H, T, S] of every layer, for one batch.

    Raises:
        UserError: a model that never asks its scheme for weights, such as one around a fused kernel.
    """
    kept: dict[int, Kept] = {}

    def recording(weights: Weights) -> Weights:
        def recorded_weights(q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor:
            weights_BHTS = weights(q_BHTK, k_BHSK, at)
            kept[at.layer] = keep(weights_BHTS, at)
            return weights_BHTS

        return recorded_weights

    with ExitStack() as changed:
        for module in model.modules():
            if isinstance(module, Attention):  # of the implementations, eager alone forms weights
                changed.enter_context(patch.object(module, "implementation", "eager"))
        for scheme in {model.scheme(layer) for layer in range(model.shape.num_layers)}:
            changed.enter_context(patch.object(scheme, "weights", recording(scheme.weights)))
        model.eval().hidden(batch.tokens_BT, batch.positions_BP, batch.lengths_B, batch.declared_B)
    if not kept:
        raise UserError(f"attention: {type(model).__name__} never asks its encoding for attention weights")
    return kept


def _means(weights_BHTS: Tensor, counted_BTS: Tensor) -> pd.DataFrame:
    """Mean weight of the counted pairs by distance and head."""
    heads, tokens = weights_BHTS.shape[1:3]
    bin_N = (torch.arange(tokens)[:, None] - torch.arange(tokens) + tokens - 1).flatten()  # from -(T-1)
    sums_NH = torch.zeros(2 * tokens - 1, heads, dtype=torch.float64)
    sums_NH.index_add_(0, bin_N, (weights_BHTS * counted_BTS[:, None]).sum(0).flatten(1).T)
    counts_N = torch.zeros(2 * tokens - 1, dtype=torch.float64)
    counts_N.index_add_(0, bin_N, counted_BTS.sum(0).double().flatten())
    seen_n = counts_N.nonzero()[:, 0]
    return pd.DataFrame(
        {
            "head": torch.arange(heads).repeat(len(seen_n)).numpy(),
            "distance": (seen_n - (tokens - 1)).repeat_interleave(heads).numpy(),
            "weight": (sums_NH[seen_n] / counts_N[seen_n, None]).flatten().numpy(),
        }
    )
