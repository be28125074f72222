"""Figures of whole runs: horizon, scheme by task, accuracy against cost, training curves.

Each takes a family, the sections that differ in the task alone; tasks are panels or columns, never pooled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pe_experiments.comparison.presentation import Cells, metric_in_words
from pe_experiments.comparison.protocols import Section, panel_title
from pe_experiments.comparison.style import WIDTHS, Look, handles, legend_below, length_axis, panels, text

Family = Sequence[tuple[Section, Sequence[Cells]]]
Looks = Mapping[str, Look]


def horizon_figure(family: Family, looks: Looks, width: float) -> Figure:
    """Horizon of every run by scheme, the median as a bar; a hollow arrowhead is censored: at least that."""
    labels = _order(family)
    columns = min(len(family), 3 if width > WIDTHS["single"] else 1)
    rows = -(-len(family) // columns)
    height = rows * (0.75 + 0.22 * len(labels))
    figure = Figure(figsize=(width, 0.3 + height), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.ravel()[len(family) :]:
        axes.remove()
    for place, ((section, _), axes) in enumerate(zip(family, grid.ravel(), strict=False)):
        _horizons(axes, section, labels, looks)
        axes.set_title(text(panel_title(section, [other for other, _ in family])))
        axes.set_yticks(range(len(labels)), [text(label) for label in labels] if place % columns == 0 else [])
    return figure


def _horizons(axes: Axes, section: Section, labels: Sequence[str], looks: Looks) -> None:
    lengths = sorted(section.curves.loc[section.curves["in_summary"], "content_length"].unique())
    lengths = [float(n) for n in lengths] or [float(section.max_length)]
    zero = lengths[0] / 2  # where a horizon of 0 stands on the logarithmic axis
    for row, label in enumerate(labels):
        runs = section.runs[section.runs["label"] == label].sort_values("seed")
        if runs.empty:
            continue
        spots = [max(zero, float(horizon)) for horizon in runs["horizon"]]
        axes.plot([np.median(spots)] * 2, [row - 0.3, row + 0.3], color=looks[label][0], linewidth=2.0)
        spread = np.linspace(-0.25, 0.25, len(runs)) if len(runs) > 1 else [0.0]
        for spot, shift, censored in zip(spots, spread, runs["horizon_censored"], strict=True):
            axes.plot(
                spot,
                row + shift,
                marker=">" if censored else looks[label][1],
                markersize=4,
                color=looks[label][0],
                markerfacecolor="white" if censored else looks[label][0],
                linestyle="none",
                clip_on=False,
            )
    length_axis(axes, [zero, *lengths], section.max_length, "")
    axes.xaxis.set_major_formatter(lambda value, _: "0" if value == zero else f"{value:g}")
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.set_xlabel("horizon (hollow: at least)")


def heat_map(family: Family, metric: str, width: float) -> Figure:
    """Scheme by task: the mean over seeds, and below it its 95 % interval where there is one."""
    labels = _order(family)
    figure = Figure(figsize=(width, 0.9 + 0.34 * len(labels)), layout="constrained")
    axes = figure.subplots()
    values = np.full((len(labels), len(family)), np.nan)
    for column, (_, rows) in enumerate(family):
        for cells in rows:
            if not cells.has(metric):
                continue
            row = labels.index(str(cells["scheme"]))
            mean = values[row, column] = float(cells[metric])
            shown = f"{mean:.2f}"
            if cells.has(f"{metric}_high"):
                shown += f"\n[{float(cells[f'{metric}_low']):.2f}, {float(cells[f'{metric}_high']):.2f}]"
            axes.text(
                column,
                row,
                shown,
                ha="center",
                va="center",
                fontsize=6,
                color="black" if mean > 0.5 else "white",
            )
    image = axes.imshow(values, cmap="cividis", vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(len(family)), [text(panel_title(s, [o for o, _ in family])) for s, _ in family])
    if len(family) > 4:
        axes.tick_params(axis="x", rotation=40)
    axes.set_yticks(range(len(labels)), [text(label) for label in labels])
    figure.colorbar(image, ax=axes, label=metric_in_words(metric))
    return figure


def cost_figure(family: Family, metric: str, runs: pd.DataFrame, looks: Looks, width: float) -> Figure:
    """Accuracy against the time of a training step (mean over runs), and against the number of parameters."""
    figure, pairs = panels(len(family), width)
    seconds = runs.assign(seconds=runs["seconds_per_step"].astype(float)).groupby(["protocol", "label"])
    times = (1000 * seconds["seconds"].mean()).to_dict()
    columns = ("ms per training step", "parameters")
    for (section, rows), pair in zip(family, pairs, strict=True):
        for axes, name in zip(pair, columns, strict=True):
            for cells in rows:
                label = str(cells["scheme"])
                x = float(cells[name]) if cells.has(name) else times.get((section.protocol, label), math.nan)
                if math.isnan(x) or not cells.has(metric):
                    continue
                colour, marker = looks[label]
                y = float(cells[metric])
                if cells.has(f"{metric}_low"):
                    ends = [float(cells[f"{metric}_low"]), float(cells[f"{metric}_high"])]
                    axes.plot([x, x], ends, color=colour, linewidth=1.0)
                axes.plot(x, y, color=colour, marker=marker, markersize=6, linestyle="none", alpha=0.85)
            axes.set_ylim(-0.03, 1.05)
            axes.xaxis.set_major_locator(MaxNLocator(4))
            axes.set_xlabel(name)
            axes.spines[["top", "right"]].set_visible(False)
        if len(family) > 1:
            pair[0].set_title(text(panel_title(section, [other for other, _ in family])))
    for axes in pairs[0]:
        axes.set_ylabel(metric_in_words(metric))
    legend_below(figure, _markers_only(looks, _order(family)))
    return figure


def training_figure(family: Family, training: pd.DataFrame, looks: Looks, width: float) -> Figure:
    """Loss and exact match on the training lengths over steps; each seed thin, the mean thick."""
    figure, pairs = panels(len(family), width)
    shown = {"loss": "training loss (nats)", "exact_match": "exact match within"}
    for (section, rows), pair in zip(family, pairs, strict=True):
        here = training[training["protocol"] == section.protocol]
        for axes, column in zip(pair, shown, strict=True):
            for cells in rows:
                label = str(cells["scheme"])
                curves = here[here["label"] == label].dropna(subset=[column])
                for _, seed in curves.groupby("name"):
                    axes.plot(seed["step"], seed[column], color=looks[label][0], linewidth=0.4, alpha=0.4)
                mean = curves.groupby("step")[column].mean()
                every = max(1, len(mean) // 6)
                axes.plot(
                    mean.index,
                    mean,
                    color=looks[label][0],
                    marker=looks[label][1],
                    markevery=every,
                    markersize=4,
                )
            axes.set_xlabel("step")
            axes.spines[["top", "right"]].set_visible(False)
            axes.xaxis.set_major_locator(MaxNLocator(4))
        if (here["loss"] > 0).any():
            pair[0].set_yscale("log")
        pair[1].set_ylim(-0.02, 1.03)
        if len(family) > 1:
            pair[0].set_title(text(panel_title(section, [other for other, _ in family])))
    for axes, name in zip(pairs[0], shown.values(), strict=True):
        axes.set_ylabel(name)
    legend_below(figure, handles(looks, _order(family), {}))
    return figure


def _order(family: Family) -> list[str]:
    """Schemes in the order of the first section that has them."""
    return list(dict.fromkeys(str(cells["scheme"]) for _, rows in family for cells in rows))


def _markers_only(looks: Looks, labels: Sequence[str]) -> list:
    entries = handles(looks, labels, {})
    for entry in entries:
        entry.set_linestyle("none")
    return entries
