"""Figures of extrapolation curves: one run's, and many schemes' side by side.

Colour-blind safe (Okabe and Ito 2008), told apart in grey by markers, labelled at the lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
# The schemes everybody compares keep their colour in every figure; others take what is left, by name.
USUAL = ("sinusoidal", "learned", "none", "alibi", "rope")
METRICS = {"exact_match": "exact match", "token_accuracy": "token accuracy"}
BASELINES = {"bag_ceiling": ("bag of tokens", (0, (4, 2))), "chance": ("chance", (0, (1, 2)))}


def styles(labels: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Colour and marker by label; no two labels share both."""
    look = {label: (COLOURS[place], MARKERS[place]) for place, label in enumerate(USUAL) if label in labels}
    free = COLOURS[len(USUAL) :]
    for place, label in enumerate(sorted(set(labels) - set(USUAL))):
        # Three colours and eight markers have no common divisor: 24 different pairs.
        look[label] = free[place % len(free)], MARKERS[place % len(MARKERS)]
    return look


def run_figure(rows: Sequence[dict[str, Any]], title: str, max_length: int, path: Path) -> None:
    """Exact match and token accuracy of one run over length, with the ceiling, chance and the training range.

    Args:
        rows: of ``extrapolation.csv``.
        title: over the figure.
        max_length: longest training length.
        path: of the PNG to write.
    """
    curve = pd.DataFrame(rows)
    figure = Figure(figsize=(9.0, 3.6), layout="constrained")
    figure.suptitle(title)
    for axes, (metric, name) in zip(figure.subplots(1, 2), METRICS.items(), strict=True):
        _draw_frame(axes, curve["content_length"], max_length, name)
        if metric == "exact_match":
            low, high = curve["exact_match_low"].astype(float), curve["exact_match_high"].astype(float)
            axes.fill_between(curve["content_length"], low, high, color=COLOURS[0], alpha=0.2, linewidth=0)
        axes.plot(
            curve["content_length"], curve[metric], color=COLOURS[0], marker="o", clip_on=False, zorder=3
        )
        if metric == "token_accuracy":
            _draw_baselines(axes, curve)
    figure.savefig(path, dpi=150)


def comparison_figure(curves: pd.DataFrame, unlearned: set[str], title: str, max_length: int) -> Figure:
    """Exact match and token accuracy over length, a line per scheme: each seed thin, the mean thick.

    Args:
        curves: rows of ``extrapolation.csv`` with ``label`` and ``seed`` columns.
        unlearned: labels of schemes that did not learn the training lengths; dashed, and said so.
        title: over the figure.
        max_length: longest training length.
    """
    figure = Figure(figsize=(11.0, 4.2), layout="constrained")
    figure.suptitle(title)
    style = styles(list(curves["label"].unique()))
    left, right = figure.subplots(1, 2)
    for axes, (metric, name) in zip((left, right), METRICS.items(), strict=True):
        _draw_frame(axes, curves["content_length"], max_length, name)
        _draw_schemes(axes, curves, metric, style, unlearned)
    _draw_baselines(right, curves)
    left.legend(loc="upper right", frameon=True, framealpha=0.9, edgecolor="none")
    return figure


def _draw_schemes(
    axes: Axes, curves: pd.DataFrame, metric: str, style: dict[str, tuple[str, str]], unlearned: set[str]
) -> None:
    groups = curves.groupby("label", sort=False)
    for place, (name, rows) in enumerate(groups):
        label = str(name)
        colour, marker = style[label]
        for _, seed in rows.groupby("seed"):
            axes.plot(seed["content_length"], seed[metric], color=colour, linewidth=0.7, alpha=0.45)
        mean = rows.groupby("content_length")[metric].mean()
        axes.plot(
            mean.index,
            mean,
            linestyle="--" if label in unlearned else "-",
            label=f"{label} (did not learn)" if label in unlearned else label,
            color=colour,
            marker=marker,
            # Where lines coincide, every marker stays visible: the first drawn are the largest.
            markersize=5.0 + 2.0 * (groups.ngroups - 1 - place),
            linewidth=2.2,
            clip_on=False,
            zorder=3,
        )


def _draw_frame(axes: Axes, lengths: pd.Series, max_length: int, name: str) -> None:
    ticks = np.unique(lengths.to_numpy())
    axes.set_xscale("log", base=2)
    left, right = ticks.min() / 1.15, ticks.max() * 1.15
    axes.set_xlim(left, right)
    axes.set_ylim(-0.02, 1.03)
    axes.xaxis.set_major_locator(FixedLocator(_readable(ticks, max_length)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("input length")
    axes.set_ylabel(name)
    axes.spines[["top", "right"]].set_visible(False)
    axes.axvspan(left, max_length, color="0.92", zorder=0)
    axes.text(max_length / 1.03, 1.035, "training lengths", ha="right", va="bottom", fontsize=8, color="0.35")


def _readable(ticks: np.ndarray, max_length: int) -> list[float]:
    """The lengths that can be labelled without running into each other on a logarithmic axis.

    The longest training length, where it is one of them, always can.
    """
    apart = 0.06 * (np.log2(ticks.max() / ticks.min()) or 1.0)
    kept = [float(max_length)] if max_length in ticks else []
    for tick in ticks:
        if all(abs(np.log2(tick / other)) > apart for other in kept):
            kept.append(float(tick))
    return kept


def _draw_baselines(axes: Axes, curves: pd.DataFrame) -> None:
    for column, (text, dashes) in BASELINES.items():
        known = curves.dropna(subset=[column]).groupby("content_length")[column].mean().astype(float)
        if known.empty:
            continue
        axes.plot(known.index, known, linestyle=dashes, color="0.35", linewidth=1.2, zorder=2)
        # At the left end, where models that learnt anything are far above it.
        place = (known.index[0], known.iloc[0])
        axes.annotate(text, place, (2, 3), textcoords="offset points", fontsize=8, color="0.35")
