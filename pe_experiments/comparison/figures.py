"""Draw figures for papers: values over input length, by task and for all tasks."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import wrap

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pe_experiments.comparison.protocols import Protocol
from pe_experiments.comparison.result import Comparison
from pe_experiments.comparison.runs import Row
from pe_experiments.comparison.table import finite
from pe_experiments.comparison.words import learned, seeds_in_words
from pe_experiments.drawing import (
    GREY,
    WIDTH,
    depth_heatmap,
    drawing,
    legend_below,
    length_axis,
    metric_axis,
    save,
    text,
)
from pe_experiments.store.directory import DIVERGED
from pe_experiments.terminal.console import Display

REPEATED_FAR = "repeated_far"  # a slice of text.csv
PANELS_FIT = 24  # most tasks in a figure of small multiples, so that it fits a page

Rows = Sequence[Row]  # of the table, of one protocol


def draw_all(comparison: Comparison, folder: Path, display: Display | None = None) -> list[Path]:
    """Draw and write every figure for which there is data."""
    display = display or Display()
    paths: list[Path] = []
    display.start("drawing figures", len(comparison.protocols) + 1)
    with drawing():
        for done, (slug, figure) in enumerate(_figures(comparison), start=1):
            paths += save(figure, folder, slug)
            display.step(done)
    display.stop()
    return paths


def _figures(comparison: Comparison) -> Iterator[tuple[str, Figure]]:
    for protocol in comparison.protocols:
        yield protocol.slug, curves_figure(comparison, [protocol])
    if 1 < len(comparison.protocols) <= PANELS_FIT:
        yield "tasks", curves_figure(comparison, comparison.protocols)
    for protocol in comparison.protocols:
        if depths := comparison.depths(protocol):
            yield f"{protocol.slug}-depth", depth_figure(protocol, depths)
    if comparison.runs.text.empty:
        return
    for protocol in comparison.protocols:
        text_rows = comparison.runs.text.merge(protocol.runs[["name", "label"]], on="name")
        if len(text_rows):
            yield f"{protocol.slug}-context", context_figure(comparison, protocol, text_rows)


def curves_figure(comparison: Comparison, protocols: Sequence[Protocol]) -> Figure:
    """Draw values over input length: a line per encoding for the mean over seeds, and a dot per seed.

    An encoding is dashed if most of its runs did not solve the training lengths, and listed below the figure
    if this holds in every panel.
    """
    alone = len(protocols) == 1
    figure, columns = _panels(len(protocols))
    for protocol, panels in zip(protocols, columns, strict=True):
        rows = comparison.rows(protocol)
        for axes, metric in zip(panels, protocol.drawn(comparison.metric), strict=True):
            _draw_parents(axes, protocol, metric)
            _draw_means(axes, protocol, rows, metric, comparison)
            metric_axis(axes, protocol.curves, protocol.max_length, metric, words=alone)
        if alone:
            title = f"{protocol.title}, trained to {protocol.max_length}; {_seeds(rows)}"
            figure.suptitle("\n".join(wrap(text(title, 200), 115)))
        else:
            panels[0].set_title("\n".join(wrap(text(protocol.title, 60), 25)))
    drawn = [row for protocol in protocols for row in comparison.rows(protocol)]
    present = {row["encoding"] for row in drawn}
    unlearned = present - {row["encoding"] for row in drawn if learned(row)}
    legend_below(
        figure, comparison.styles, [name for name in comparison.encodings if name in present], unlearned
    )
    return figure


def _panels(protocols: int) -> tuple[Figure, np.ndarray]:
    """Return two panels per protocol: side by side for one protocol, else stacked and four in a row."""
    if protocols == 1:
        figure = Figure(figsize=(WIDTH, 2.9), layout="constrained")
        return figure, figure.subplots(1, 2, squeeze=False)
    columns = min(protocols, 4)
    blocks = math.ceil(protocols / 4)
    figure = Figure(figsize=(WIDTH, 0.6 + 3.8 * blocks), layout="constrained")
    grid = figure.subplots(2 * blocks, columns).reshape(blocks, 2, columns).swapaxes(1, 2).reshape(-1, 2)
    for axes in grid[protocols:].flat:
        axes.remove()
    return figure, grid[:protocols]


def _draw_means(axes: Axes, protocol: Protocol, rows: Rows, metric: str, comparison: Comparison) -> None:
    for index, row in enumerate(rows):
        colour, marker = comparison.styles[row["encoding"]]
        curves = protocol.curves[protocol.curves["label"] == row["encoding"]]
        means = curves.groupby("content_length")[metric].mean()
        axes.plot(curves["content_length"], curves[metric], ".", color=colour, markersize=3, alpha=0.5,
                  clip_on=False, rasterized=len(curves) > 100)  # fmt: skip
        size = 3.0 + 1.0 * min(6, len(rows) - 1 - index)  # keeps markers of coinciding lines visible
        dashes = "-" if learned(row) else (0, (4, 2))
        axes.plot(means.index, means, color=colour, marker=marker, markersize=size, linewidth=1.6,
                  linestyle=dashes, clip_on=False, zorder=3)  # fmt: skip


def _draw_parents(axes: Axes, protocol: Protocol, metric: str) -> None:
    """Draw the mean curve of the runs that these continue, with its label."""
    for label, curves in protocol.parents.groupby("label"):
        means = curves.groupby("content_length")[metric].mean()
        axes.plot(means.index, means, color=GREY, linestyle=(0, (1, 1)), linewidth=1.2, zorder=2)
        axes.annotate(text(f"{label}, before"), (means.index[-1], means.iloc[-1]), (2, 4),
                      textcoords="offset points", fontsize=6.5, color=GREY, ha="right")  # fmt: skip


def _seeds(rows: Rows) -> str:
    seeds = seeds_in_words(row["seeds"] for row in rows)
    diverged = ", ".join(f"{row['diverged']} of {row['encoding']}" for row in rows if row["diverged"])
    if not diverged:
        return f"{seeds} per encoding"
    where = "at 0" if finite(rows[0]["solved"]) else "as a uniform guess"
    return f"{seeds} per encoding; diverged (drawn {where}): {diverged}"


def depth_figure(protocol: Protocol, depths: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw exact match by input length and depth, a heatmap for each encoding."""
    columns = min(len(depths), 4)
    rows = math.ceil(len(depths) / columns)
    figure = Figure(figsize=(WIDTH, 0.7 + 1.6 * rows), layout="constrained")
    title = f"{protocol.title}, trained to {protocol.max_length}: mean exact match over seeds"
    figure.suptitle(text(title, 110))
    figure.supxlabel("input length", fontsize=8)
    figure.supylabel("depth", fontsize=8)
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes in panels[len(depths) :]:
        axes.remove()
    panels = panels[: len(depths)]
    for axes, (label, cells) in zip(panels, depths.items(), strict=True):
        image = depth_heatmap(axes, cells, protocol.max_length)
        axes.set(xlabel="", ylabel="")
        axes.set_title("\n".join(wrap(text(label, 60), 22)), fontsize=7)
        axes.tick_params(labelsize=6)
        axes.tick_params(axis="x", rotation=90 if columns > 2 else 0)
    figure.colorbar(image, ax=panels, label="exact match", aspect=12 * rows)
    return figure


def context_figure(comparison: Comparison, protocol: Protocol, text_rows: pd.DataFrame) -> Figure:
    """Draw means over seeds: bits per byte over length, by index and of repeated 4-grams, and copying."""
    figure = Figure(figsize=(WIDTH, 0.72 * WIDTH), layout="constrained")
    diverged = int(protocol.runs["status"].eq(DIVERGED).sum())
    without = f"; without {diverged} diverged runs" if diverged else ""
    figure.suptitle(
        f"{protocol.title}, trained to {protocol.max_length}: the same bytes at every length{without}"
    )
    sliding = text_rows["windows"] == "sliding"
    part = text_rows["slice"]
    repeated = "bits per byte, repeated 4-grams"
    panels = (
        ("length", "bits_per_byte", "bits per byte, sliding windows", sliding & (part == "all")),
        ("last_index", "bits_per_byte", "bits per byte, longest windows", part == "index"),
        ("length", "bits_per_byte", repeated, sliding & part.isin(["repeated_near", REPEATED_FAR])),
        ("length", "accuracy", "token accuracy, copied key", text_rows["windows"] == "copy"),
    )
    for axes, (x, y, name, mask) in zip(figure.subplots(2, 2).flat, panels, strict=True):
        rows = text_rows[mask]
        if rows.empty:  # nothing is copied in short windows
            axes.set_visible(False)
            continue
        ticks = [rows[x].min(), *text_rows["length"].unique()]
        length_axis(axes, ticks, protocol.max_length, name, accuracy=y == "accuracy")
        axes.set_xlabel("context length (bytes)" if x == "length" else "index in the window")
        for (label, of_slice), points in rows.groupby(["label", "slice"]):
            colour, marker = comparison.styles[str(label)]
            means = points.groupby(x)[y].mean()
            axes.plot(means.index, means, color=colour, marker=marker, markersize=3.5,
                      markevery=max(1, len(means) // 8),
                      linestyle="--" if of_slice == REPEATED_FAR else "-")  # fmt: skip
        if name == repeated:
            axes.set_title(
                "solid: repeated within the training length; dashed: only farther back", fontsize=6
            )
    legend_below(figure, comparison.styles, sorted(set(text_rows["label"])))
    return figure
