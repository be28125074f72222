"""Draw the figures of a comparison: metrics over input length, for each task and for all tasks."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from textwrap import wrap

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pe_experiments.comparison.protocols import Protocol
from pe_experiments.comparison.result import Comparison
from pe_experiments.comparison.runs import Row, finite
from pe_experiments.comparison.sentences import format_seeds, learned
from pe_experiments.comparison.statistics import FEWEST
from pe_experiments.drawing import (
    FIGURE_WIDTH,
    GREY,
    drawing,
    escaped,
    legend_below,
    length_axis,
    metric_axis,
    printed_name,
    save,
)
from pe_experiments.store.directory import DIVERGED
from pe_experiments.terminal.console import Display

REPEATED_FAR = "repeated_far"  # a slice of text.csv
MOST_TASKS = 24  # of a comparison with figures, so that the figure of all tasks fits on a page

Rows = Sequence[Row]  # rows of one protocol in the table of encodings


def draw_all(comparison: Comparison, folder: Path, display: Display | None = None) -> list[Path]:
    """Draw and write every figure for which there is data; none for more than `MOST_TASKS` protocols."""
    protocols = comparison.protocols
    if len(protocols) > MOST_TASKS:
        return []
    figures: dict[str, Callable[[], Figure]] = {}  # by file name
    for protocol in protocols:
        figures[protocol.slug] = partial(curves_figure, comparison, [protocol])
        if len(comparison.runs.text):
            text_rows = comparison.runs.text.merge(protocol.runs[["name", "label"]], on="name")
            if len(text_rows):
                figures[f"{protocol.slug}-context"] = partial(context_figure, comparison, protocol, text_rows)
    if len(protocols) > 1:
        figures["tasks"] = partial(curves_figure, comparison, protocols)
    display = display or Display()
    display.start("drawing figures", len(figures))
    paths: list[Path] = []
    with drawing():
        for done, (slug, draw) in enumerate(figures.items(), start=1):
            paths += save(draw(), folder, slug)
            display.step(done)
    display.stop()
    return paths


def curves_figure(comparison: Comparison, protocols: Sequence[Protocol]) -> Figure:
    """Draw metrics over input length: a line per encoding for the mean over seeds, and a dot per seed.

    With three seeds and more a band around the line shows the 95 % interval of the mean.
    A line is dashed if most runs of the encoding did not solve the training lengths. The legend marks the
    encodings whose line is dashed in every panel.
    """
    single = len(protocols) == 1
    drawn_of = [protocol.drawn(comparison.summary) for protocol in protocols]
    most = max(map(len, drawn_of))
    if single:
        figure = Figure(figsize=(FIGURE_WIDTH, 2.9), layout="constrained")
        grid = figure.subplots(1, most, squeeze=False)  # [protocols, metrics]
    else:  # metrics below each other, at most four protocols side by side
        columns, blocks = min(len(protocols), 4), math.ceil(len(protocols) / 4)
        figure = Figure(figsize=(FIGURE_WIDTH, 0.6 + 1.9 * most * blocks), layout="constrained")
        grid = figure.subplots(most * blocks, columns, squeeze=False)
        grid = grid.reshape(blocks, most, columns).swapaxes(1, 2).reshape(-1, most)
    for axes in grid[len(protocols) :].flat:
        axes.remove()
    for protocol, metrics, panels in zip(protocols, drawn_of, grid, strict=False):
        rows = comparison.rows(protocol)
        for axes in panels[len(metrics) :]:
            axes.remove()
        for axes, metric in zip(panels, metrics, strict=False):
            for label, curves in protocol.parents.groupby("label"):  # the runs that these runs continue
                means = curves.groupby("content_length")[metric.name].mean()
                axes.plot(means.index, means, color=GREY, linestyle=(0, (1, 1)), linewidth=1.2, zorder=2)
                name = escaped(f"{printed_name(str(label))}, before")
                axes.annotate(name, (means.index[-1], means.iloc[-1]), (2, 4),
                              textcoords="offset points", fontsize=6.5, color=GREY, ha="right")  # fmt: skip
            _draw_means(axes, protocol, rows, metric.name, comparison)
            metric_axis(axes, protocol.curves, protocol.max_length, metric, words=single)
        if single:
            title = f"{protocol.title}, trained to {protocol.max_length}; {_seeds(rows)}"
            figure.suptitle("\n".join(wrap(escaped(title, 200), 115)))
        else:
            panels[0].set_title("\n".join(wrap(escaped(protocol.title, 60), 25)))
    all_rows = [row for protocol in protocols for row in comparison.rows(protocol)]
    drawn = {row["encoding"] for row in all_rows}
    unlearned = drawn - {row["encoding"] for row in all_rows if learned(row)}
    names = [name for name in comparison.encodings if name in drawn]
    legend_below(figure, comparison.styles, names, unlearned)
    return figure


def _draw_means(axes: Axes, protocol: Protocol, rows: Rows, metric: str, comparison: Comparison) -> None:
    """Draw the mean curve of each encoding with the interval of the mean, and the values of its runs."""
    for index, row in enumerate(rows):
        colour, marker = comparison.styles[row["encoding"]]
        curves = protocol.curves[protocol.curves["label"] == row["encoding"]]
        means = curves.groupby("content_length")[metric].mean()
        axes.plot(curves["content_length"], curves[metric], ".", color=colour, markersize=3, alpha=0.5,
                  clip_on=False, rasterized=len(curves) > 100)  # fmt: skip
        if row["seeds"] >= FEWEST:
            columns = [f"{metric}@{length}" for length in protocol.lengths()]
            low, high = (  # seeds that agree have no interval
                [row[column + end] if finite(row[column + end]) else row[column] for column in columns]
                for end in ("_low", "_high")
            )
            axes.fill_between(protocol.lengths(), low, high, color=colour, alpha=0.15, linewidth=0)
        size = 3.0 + 1.0 * min(6, len(rows) - 1 - index)  # keeps markers of coinciding lines visible
        dashes = "-" if learned(row) else (0, (4, 2))
        axes.plot(means.index, means, color=colour, marker=marker, markersize=size, linewidth=1.6,
                  linestyle=dashes, clip_on=False, zorder=3)  # fmt: skip


def _seeds(rows: Rows) -> str:
    seeds = format_seeds(row["seeds"] for row in rows)
    diverged = ", ".join(
        f"{row['diverged']} of {printed_name(row['encoding'])}" for row in rows if row["diverged"]
    )
    if not diverged:
        return f"{seeds} per encoding"
    drawn = "at 0" if finite(rows[0]["solved"]) else "as a uniform guess"
    return f"{seeds} per encoding; diverged (drawn {drawn}): {diverged}"


def context_figure(comparison: Comparison, protocol: Protocol, text_rows: pd.DataFrame) -> Figure:
    """Draw the four metrics of language models: bits per byte by length, index and slice, and copying."""
    figure = Figure(figsize=(FIGURE_WIDTH, 0.72 * FIGURE_WIDTH), layout="constrained")
    diverged = int(protocol.runs["status"].eq(DIVERGED).sum())
    exclusion = f"; without {diverged} diverged runs" if diverged else ""
    figure.suptitle(
        f"{protocol.title}, trained to {protocol.max_length}: the same bytes at every length{exclusion}"
    )
    sliding = text_rows["windows"] == "sliding"
    slices = text_rows["slice"]
    repeated = "bits per byte, repeated 4-grams"
    panels = (
        ("length", "bits_per_byte", "bits per byte, sliding windows", sliding & (slices == "all")),
        ("last_index", "bits_per_byte", "bits per byte, longest windows", slices == "index"),
        ("length", "bits_per_byte", repeated, sliding & slices.isin(["repeated_near", REPEATED_FAR])),
        ("length", "accuracy", "token accuracy, copied key", text_rows["windows"] == "copy"),
    )
    for axes, (x, y, name, mask) in zip(figure.subplots(2, 2).flat, panels, strict=True):
        rows = text_rows[mask]
        if rows.empty:  # nothing is copied in short windows
            axes.set_visible(False)
            continue
        ticks = [rows[x].min(), *text_rows["length"].unique()]
        length_axis(axes, ticks, protocol.max_length, name, accuracy=y == "accuracy")
        unit = "tokens" if protocol.has_tokens else "bytes"
        axes.set_xlabel(f"context length ({unit})" if x == "length" else "index in the window")
        for (label, slice_name), points in rows.groupby(["label", "slice"]):
            colour, marker = comparison.styles[str(label)]
            means = points.groupby(x)[y].mean()
            axes.plot(means.index, means, color=colour, marker=marker, markersize=3.5,
                      markevery=max(1, len(means) // 8),
                      linestyle="--" if slice_name == REPEATED_FAR else "-")  # fmt: skip
        if name == repeated:
            axes.set_title(
                "solid: repeated within the training length; dashed: only farther back", fontsize=6
            )
    legend_below(figure, comparison.styles, sorted(set(text_rows["label"])))
    return figure
