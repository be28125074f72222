"""Draw what `look_inside` and `probe_positions` measure of a trained model, and write it as a page."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pe_experiments.analysis.inside import AVERAGED, Inside
from pe_experiments.analysis.probe import DISTANCE, probe_figure
from pe_experiments.drawing import (
    COLOURS,
    FIGURE_WIDTH,
    GREY,
    MARKERS,
    drawing,
    escaped,
    panel_grid,
    render,
    write_figure,
)
from pe_experiments.terminal.files import write_atomically

TEMPLATE = Path(__file__).parent / "templates" / "inside.html.j2"
NAMED_TOKENS = 48  # longest sequence whose tokens are written at the axes, which need large panels
NAMED_IN_SMALL_PANELS = 16


def show_inside(inside: Inside, probe: pd.DataFrame, title: str, max_length: int, folder: Path) -> Path:
    """Write ``attention.png``, ``distance.png``, ``accuracy.png``, ``probe.png`` and the page with them.

    The results are those of `look_inside` and `probe_positions`. Returns the path of the page.
    """
    head = f"{title}, trained to {max_length}, input length {inside.length}"
    with drawing():
        figures = {
            "accuracy": accuracy_figure(inside, head),
            "probe": probe_figure(probe, f"{title}, trained to {max_length}"),
        }
        if inside.attention_LHTS.size:
            figures |= {
                "attention": attention_figure(inside, head),
                "distance": distance_figure(inside, head),
            }
        pictures = {}
        for name, figure in figures.items():
            path = folder / f"{name}.png"
            write_figure(figure, path)
            pictures[name] = path.read_bytes()
    page = folder / "inside.html"
    html = render(
        TEMPLATE,
        title=head,
        inside=inside,
        pictures=pictures,
        averaged=AVERAGED,
        has_marks=(probe["quantity"] == DISTANCE).any(),
    )
    write_atomically(page, html)
    return page


def attention_figure(inside: Inside, title: str) -> Figure:
    """Draw the attention weights on the first example: a row of panels per layer, a column per head."""
    layers, heads = inside.attention_LHTS.shape[:2]
    named = len(inside.tokens) <= NAMED_TOKENS
    large = named and len(inside.tokens) > NAMED_IN_SMALL_PANELS
    columns = min(heads, 2 if large else 4)
    rows = layers * math.ceil(heads / columns)
    side = FIGURE_WIDTH / columns
    figure = Figure(figsize=(FIGURE_WIDTH, 0.5 + 0.92 * rows * side), layout="constrained")
    figure.suptitle(escaped(title, 110))
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    per_layer = columns * math.ceil(heads / columns)
    image = None
    for index, axes in enumerate(panels):
        layer, head = divmod(index, per_layer)
        if head >= heads:
            axes.remove()
            continue
        image = axes.imshow(inside.attention_LHTS[layer, head], cmap="viridis", vmin=0, vmax=1)
        axes.set_title(f"layer {layer}, head {head}", fontsize=7)
        axes.tick_params(labelsize=5, length=1)
        if named:
            axes.set_xticks(range(len(inside.tokens)), inside.tokens, rotation=90)
            axes.set_yticks(range(len(inside.tokens)), inside.tokens)
    figure.supxlabel("key", fontsize=8)
    figure.supylabel("query", fontsize=8)
    if image is not None:
        figure.colorbar(image, ax=figure.axes, label="attention weight", aspect=15 * rows, shrink=0.5)
    return figure


def distance_figure(inside: Inside, title: str) -> Figure:
    """Draw the mean attention weight by distance: a panel per layer, a line per head."""
    layers, heads, _ = inside.attention_LHD.shape
    figure, panels = panel_grid(layers, 3, 2.2, 0.7, sharey=True)
    figure.suptitle(escaped(title, 110))
    for layer, axes in enumerate(panels):
        for head in range(heads):
            axes.plot(
                inside.distances_D,
                inside.attention_LHD[layer, head],
                color=COLOURS[head % len(COLOURS)],
                marker=MARKERS[head % len(MARKERS)],
                markersize=2.5,
                markevery=max(1, len(inside.distances_D) // 12),
                linewidth=1.2,
                label=f"head {head}",
            )
        axes.set_title(f"layer {layer}")
        axes.set_xlabel("distance (tokens)")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("mean attention weight")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(heads, 8), frameon=False)
    return figure


def accuracy_figure(inside: Inside, title: str) -> Figure:
    """Draw token accuracy by index in the answer and, if it is known, by distance to the needed symbol."""
    by_distance = inside.needed_D is not None and len(inside.needed_D) > 1
    figure = Figure(figsize=(FIGURE_WIDTH, 2.6), layout="constrained")
    title += f": {inside.examples} examples, exact match {inside.exact_match:.2f}"
    figure.suptitle(escaped(title, 110))
    panels = figure.subplots(1, 2 if by_distance else 1, squeeze=False)[0]
    indices = np.arange(len(inside.accuracy_M))
    _draw_accuracy(panels[0], indices, inside.accuracy_M, "index in the answer")
    if by_distance:
        assert inside.needed_D is not None
        assert inside.needed_accuracy_D is not None
        name = "distance to the needed symbol (tokens)"
        _draw_accuracy(panels[1], inside.needed_D, inside.needed_accuracy_D, name)
    return figure


def _draw_accuracy(axes: Axes, x: np.ndarray, accuracy: np.ndarray, name: str) -> None:
    """Draw token accuracy over ``x``, with a dashed line at its mean over the values of ``x``."""
    known = ~np.isnan(accuracy)
    size = 3 if known.sum() <= 100 else 1
    axes.plot(x[known], accuracy[known], color=COLOURS[0], marker="o", markersize=size, linewidth=1.2)
    axes.axhline(float(accuracy[known].mean()), color=GREY, linestyle=(0, (4, 2)), linewidth=0.8)
    axes.set_ylim(-0.02, 1.03)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel(name)
    axes.set_ylabel("token accuracy")
    axes.spines[["top", "right"]].set_visible(False)
