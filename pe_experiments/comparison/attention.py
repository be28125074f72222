"""Attention of chosen runs: by distance, at the longest training length and at twice that, and as a map."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from torch import Tensor

from pe_experiments.comparison.attention_by_distance import attention_by_distance, recorded
from pe_experiments.comparison.runs_table import Runs
from pe_experiments.composition import parts_outside
from pe_experiments.errors import UserError, nearest, shown
from pe_experiments.plots import COLOURS, MARKERS, WIDTHS, text
from pe_experiments.runs import COMPLETED
from pe_experiments.trained import TrainedModel, load_model

COLUMNS = ["run", "length", "layer", "head", "distance", "weight"]


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
            turn = int(str(head))
            look: Any = {"color": COLOURS[turn % len(COLOURS)], "marker": MARKERS[turn % len(MARKERS)]}
            every = max(1, len(line) // 8)
            axes.plot(line["distance"], line["weight"], **look, markersize=3, markevery=every, linewidth=1.0,
                      label=f"head {head}")  # fmt: skip
        axes.set_title(f"layer {layer}, input length {length}")
        axes.spines[["top", "right"]].set_visible(False)
    for axes in grid[:, 0]:
        axes.set_ylabel("mean attention weight")
    figure.supxlabel("distance from key to query (tokens)", fontsize=8)
    grid[0, -1].legend(frameon=False, fontsize=7, ncols=2)
    return figure


def map_figure(trained: TrainedModel, inputs_1N: Tensor, width: float = WIDTHS["double"]) -> Figure:
    """The attention weights of a trained model on one input with its right answer.

    Args:
        trained: from `load_model`.
        inputs_1N: one row of content symbols.
        width: of the figure, in inches.

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
