"""The attention weights of a trained model on one input, as a picture of every layer and head."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure
from torch import Tensor

from pe_experiments.drawing import WIDTH
from pe_experiments.encodings import AttentionContext, PositionalEncoding
from pe_experiments.models.attention import Attention
from pe_experiments.models.packing import Unpacked
from pe_experiments.store.finished import TrainedModel
from pe_experiments.terminal.errors import UserError

Given = tuple[Tensor, PositionalEncoding, AttentionContext, Unpacked]  # what a layer is called with


def map_figure(trained: TrainedModel, inputs_1N: Tensor) -> Figure:
    """The attention weights of a trained model on one input (content symbols) with its right answer.

    Raises:
        UserError: a model without a layer of the class `Attention`.
    """
    maps = attention_weights(trained, inputs_1N)
    heads = len(maps[0])
    figure = Figure(figsize=(WIDTH, 0.4 + WIDTH / heads * len(maps)), layout="constrained")
    grid = figure.subplots(len(maps), heads, squeeze=False, sharex=True, sharey=True)
    for layer, weights_HTS in sorted(maps.items()):
        for head, weights_TS in enumerate(weights_HTS):
            image = grid[layer, head].imshow(weights_TS.numpy(), cmap="Blues", vmin=0, vmax=1, aspect="auto")
            grid[layer, head].set_title(f"layer {layer}, head {head}", fontsize=8)
    figure.supxlabel("key (token)", fontsize=8)
    figure.supylabel("query (token)", fontsize=8)
    figure.colorbar(image, ax=grid, label="attention weight")
    return figure


@torch.no_grad()
def attention_weights(trained: TrainedModel, inputs_1N: Tensor) -> dict[int, Tensor]:
    """The attention weights [H heads, T queries, S keys] by layer, on one input with its right answer.

    Raises:
        UserError: a model without a layer of the class `Attention`.
    """
    found: dict[int, Tensor] = {}

    def record(layer: Attention, given: Given, _: Tensor) -> None:
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
