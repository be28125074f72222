"""Attention weights of a trained model by distance, on the examples it was evaluated with.

Shapes: B rows, T tokens, H heads, S keys; see `encodings.base`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from pe_experiments.config import Experiment
from pe_experiments.data import Batch
from pe_experiments.encodings import AttentionContext
from pe_experiments.instantiation import source_of
from pe_experiments.models import Backbone
from pe_experiments.models.attention import Attention


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
    """
    content_length = experiment.task.nearest_length(length)
    assert content_length is not None
    batch = source_of(experiment).evaluation_block(content_length, 0)
    model.eval()
    sums: dict[int, Tensor] = {}
    counts: dict[int, Tensor] = {}

    def record(weights_BHTS: Tensor, at: AttentionContext) -> None:
        sums[at.layer], counts[at.layer] = _by_distance(weights_BHTS, at, batch)

    with _recorded(model, record):
        model.hidden(batch.tokens_BT, batch.positions_BP, batch.lengths_B, batch.declared_B)
    rows = []
    tokens = batch.tokens_BT.shape[1]
    for layer in sorted(sums):
        for index in counts[layer].nonzero()[:, 0].tolist():
            for head, total in enumerate(sums[layer][:, index].tolist()):
                weight = total / float(counts[layer][index])
                rows.append(
                    {"layer": layer, "head": head, "distance": index - (tokens - 1), "weight": weight}
                )
    return pd.DataFrame(rows)


def _by_distance(weights_BHTS: Tensor, at: AttentionContext, batch: Batch) -> tuple[Tensor, Tensor]:
    """Sums [H, 2T-1] and counts [2T-1] by distance, from ``-(T-1)`` to ``T-1``."""
    _, heads, tokens, _ = weights_BHTS.shape
    indices_T = torch.arange(tokens)
    real_BT = indices_T < batch.lengths_B[:, None]
    counted_BTS = at.visible_BTS & real_BT[:, :, None] & real_BT[:, None, :]
    distance_TS = indices_T[:, None] - indices_T + tokens - 1
    counts = torch.zeros(2 * tokens - 1, dtype=torch.float64)
    counts.index_add_(0, distance_TS.flatten(), counted_BTS.double().sum(0).flatten())
    summed_HTS = (weights_BHTS.double() * counted_BTS[:, None]).sum(0)
    sums = torch.zeros(heads, 2 * tokens - 1, dtype=torch.float64)
    sums.index_add_(1, distance_TS.flatten(), summed_HTS.flatten(1))
    return sums, counts


@contextmanager
def _recorded(model: Backbone, record: Callable[[Tensor, AttentionContext], None]) -> Any:
    """Pass the attention weights of every layer to ``record``, whatever the scheme."""

    def recording(encoding: Any) -> Callable[..., Tensor]:
        made = encoding.weights

        def weights(q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor:
            weights_BHTS = made(q_BHTK, k_BHSK, at)
            record(weights_BHTS, at)
            return weights_BHTS

        return weights

    attentions = [module for module in model.modules() if isinstance(module, Attention)]
    encodings: list[Any] = list(model.encodings)
    before = [attention.implementation for attention in attentions]
    try:
        for attention in attentions:
            attention.implementation = "eager"
        for encoding in encodings:
            encoding.weights = recording(encoding)
        yield
    finally:
        for attention, implementation in zip(attentions, before, strict=True):
            attention.implementation = implementation
        for encoding in encodings:
            del encoding.weights
