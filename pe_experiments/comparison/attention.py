"""Attention of chosen runs: by distance, at the longest training length and at twice that, and as a map.

Shapes: B rows, T tokens, H heads, S keys, N distances; see `encodings.base`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar
from unittest.mock import patch

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from pe_experiments.comparison.runs_table import Runs
from pe_experiments.composition import parts_outside
from pe_experiments.config import Experiment
from pe_experiments.data import Batch
from pe_experiments.encodings import AttentionContext
from pe_experiments.errors import UserError, nearest, shown
from pe_experiments.instantiation import source_of
from pe_experiments.models import Backbone
from pe_experiments.models.attention import Attention
from pe_experiments.plots import COLOURS, MARKERS, WIDTHS, text
from pe_experiments.runs import COMPLETED
from pe_experiments.trained import TrainedModel, load_model

COLUMNS = ["run", "length", "layer", "head", "distance", "weight"]

Weights = Callable[[Tensor, Tensor, AttentionContext], Tensor]
Kept = TypeVar("Kept")


def measure_attention(runs: Runs, results_dir: Path, names: Sequence[str]) -> pd.DataFrame:
    """Attention by distance of these runs: columns ``run, length, layer, head, distance, weight``.

    Raises:
        UserError: a name that is no compared run, or a run whose weights cannot be loaded.
    """
    completed = runs.runs.loc[runs.runs["status"] == COMPLETED, "name"]
    frames = []
    for name in names:
        if name not in set(completed):
            wrong = f"attention: {name} is no completed run of this comparison."
            raise UserError(wrong + nearest(name, completed))
        if strange := parts_outside(runs.saved[name]):
            raise UserError(
                f"attention: {name} has parts from outside this package ({shown(strange[0])}), which a "
                f"comparison does not import"
            )
        try:
            trained = load_model(results_dir / "runs" / name)
        except UserError as error:
            raise UserError(f"attention: {error}") from error
        experiment, model = trained.experiment, trained.model
        for length in (experiment.max_length, 2 * experiment.max_length):
            frames.append(attention_by_distance(experiment, model, length).assign(run=name, length=length))
    return pd.concat(frames, ignore_index=True)[COLUMNS] if frames else pd.DataFrame(columns=COLUMNS)


def attention_figure(attention: pd.DataFrame, run: str, width: float) -> Figure:
    """One run: a row per length, a panel per layer, a line per head."""
    here = attention[attention["run"] == run]
    lengths, layers = sorted(here["length"].unique()), sorted(here["layer"].unique())
    figure = Figure(figsize=(width, 0.5 + 1.8 * len(lengths)), layout="constrained")
    figure.suptitle(text(run, 100))
    grid = figure.subplots(len(lengths), len(layers), squeeze=False, sharey=True)
    for (length, layer), panel in here.groupby(["length", "layer"]):
        axes = grid[lengths.index(length), layers.index(layer)]
        for head, line in panel.groupby("head"):
            n, every = int(str(head)), max(1, len(line) // 8)
            axes.plot(line["distance"], line["weight"], color=COLOURS[n % len(COLOURS)], linewidth=1.0,
                      marker=MARKERS[n % len(MARKERS)], markersize=3, markevery=every,
                      label=f"head {head}")  # fmt: skip
        axes.set_title(f"layer {layer}, input length {length}")
        axes.spines[["top", "right"]].set_visible(False)
    for axes in grid[:, 0]:
        axes.set_ylabel("mean attention weight")
    figure.supxlabel("distance from key to query (tokens)", fontsize=8)
    grid[0, -1].legend(frameon=False, fontsize=7, ncols=2)
    return figure


def map_figure(trained: TrainedModel, inputs_1N: Tensor, width: float = WIDTHS["double"]) -> Figure:
    """The attention weights of a trained model on one input (content symbols) with its right answer.

    Raises:
        UserError: a model that never asks its scheme for weights.
    """
    maps = recorded(trained.model, trained.batch(inputs_1N), lambda weights, at: weights[0])
    heads = len(maps[0])
    figure = Figure(figsize=(width, 0.4 + width / heads * len(maps)), layout="constrained")
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
    tables = (frames[layer].assign(layer=layer) for layer in sorted(frames))
    return pd.concat(tables, ignore_index=True)[COLUMNS[2:]]


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
