"""The attention weights of a trained model on one input."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pe_experiments.models.attention import Attention
from pe_experiments.store.finished import TrainedModel
from pe_experiments.terminal.errors import UserError


@torch.no_grad()
def attention_weights(trained: TrainedModel, inputs_1N: Tensor) -> dict[int, Tensor]:
    """The weights [H heads, T queries, S keys] by layer on one input (content symbols) with its right answer.

    Raises:
        UserError: a model without a layer of the class `Attention`.
    """
    found: dict[int, Tensor] = {}

    def record(layer: Attention, given: tuple[Any, ...], _: Tensor) -> None:
        found[given[2].layer] = layer.weights(*given[:3])[0]

    layers = [module for module in trained.model.modules() if isinstance(module, Attention)]
    hooks = [layer.register_forward_hook(record) for layer in layers]
    batch = trained.batch(inputs_1N)
    try:
        trained.model.eval().hidden(batch.tokens_BT, batch.positions_BP, batch.lengths_B, batch.declared_B)
    finally:
        for hook in hooks:
            hook.remove()
    if not found:
        kind = type(trained.model).__name__
        raise UserError(f"attention: {kind} has no layer whose attention weights can be read")
    return found
