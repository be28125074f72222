"""Figures of the bank: schemes x tasks, the performance profile, and what stopping early costs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from pe_experiments.evaluation import SOLVED
from pe_experiments.plots import COLOURS, drawing, save

METRIC = "exact_match_at_2x"
RESAMPLES = 2000
SCORES = np.linspace(0, 1, 51)
PANELS = 5  # in a row


def matrix(table: pd.DataFrame, tasks: Sequence[str], schemes: Sequence[str], folder: Path) -> None:
    """Colour: the mean over seeds at twice the training length; in the cell: k of n seeds that reach 0.9."""
    means = np.full((len(schemes), len(tasks)), np.nan)
    with drawing():
        figure = Figure(figsize=(1.9 + 0.62 * len(tasks), 1.1 + 0.24 * len(schemes)), layout="constrained")
        axes = figure.subplots()
        for (task, scheme), runs in table.groupby(["title", "label"]):
            row, column = schemes.index(scheme), tasks.index(task)
            means[row, column] = mean = runs[METRIC].mean()
            if runs["solved_in_distribution"].eq(True).mean() < 0.5:
                text, style = "not\nlearned", "italic"
            else:
                text, style = f"{int((runs[METRIC] >= SOLVED).sum())} of {len(runs)}", "normal"
            axes.text(
                column, row, text, ha="center", va="center", fontsize=6, style=style, linespacing=0.9,
                color="white" if mean > 0.55 else "black",
            )  # fmt: skip
        image = axes.imshow(means, cmap="Blues", vmin=0, vmax=1, aspect="auto")
        axes.set_xticks(
            range(len(tasks)), [task.replace(", ", "\n") for task in tasks], rotation=30, ha="right"
        )
        axes.set_yticks(range(len(schemes)), schemes)
        axes.xaxis.tick_bottom()
        figure.colorbar(image, ax=axes, label="exact match at 2x, mean over seeds")
        save(figure, folder, "answer")


def profile(table: pd.DataFrame, schemes: Sequence[str], folder: Path) -> None:
    """Share of runs that reach a score, over all tasks; a panel per scheme, the others in grey.

    The band is a bootstrap over seeds within each task (Agarwal et al. 2021, arXiv:2108.13264).
    """
    draw = np.random.default_rng(0)
    lines, bands = {}, {}
    for label, runs in table.groupby("label"):
        by_task = [values.to_numpy(float) for _, values in runs.groupby("title")[METRIC]]
        lines[label] = np.mean([np.mean(values[:, None] >= SCORES, axis=0) for values in by_task], axis=0)
        picks = [values[draw.integers(len(values), size=(RESAMPLES, len(values)))] for values in by_task]
        drawn = np.mean([np.mean(pick[:, :, None] >= SCORES, axis=1) for pick in picks], axis=0)
        bands[label] = np.quantile(drawn, [0.025, 0.975], axis=0)
    rows = -(-len(schemes) // PANELS)
    with drawing():
        figure = Figure(figsize=(7.2, 0.5 + 1.35 * rows), layout="constrained")
        grid = figure.subplots(rows, PANELS, sharex=True, sharey=True, squeeze=False).ravel()
        for axes in grid[len(schemes) :]:
            axes.remove()
        for axes, scheme in zip(grid, schemes, strict=False):
            for other in lines.values():
                axes.plot(SCORES, other, color="0.85", linewidth=0.7)
            axes.fill_between(SCORES, *bands[scheme], color=COLOURS[0], alpha=0.2, linewidth=0)
            axes.plot(SCORES, lines[scheme], color=COLOURS[0], linewidth=1.8)
            axes.set_title(scheme)
            axes.set_xlim(0, 1)
            axes.set_ylim(0, 1.02)
        figure.supxlabel("exact match at 2x", fontsize=8)
        figure.supylabel("share of runs with at least this", fontsize=8)
        save(figure, folder, "profile")


def stopping(curve: pd.DataFrame, used: float, folder: Path) -> None:
    """Agreement with the verdicts of all seeds over the share of seeds run, by threshold."""
    with drawing():
        figure = Figure(figsize=(3.6, 2.6), layout="constrained")
        axes = figure.subplots()
        axes.plot(curve["seeds"], curve["agreement"], marker="o", markersize=4)
        for row in curve.to_dict("records"):
            axes.annotate(
                f"{100 * row['threshold']:g} %" + (" (in use)" if row["threshold"] == used else ""),
                (row["seeds"], row["agreement"]),
                textcoords="offset points",
                xytext=(6, -8),
                fontsize=6,
            )
        axes.set_xlabel("share of seeds run")
        axes.set_ylabel("share of verdicts that agree")
        axes.set_xlim(0, 1.02)
        save(figure, folder, "stopping")
