"""Accuracy over length: one run's, and many schemes' side by side, for one task or several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pe_experiments.comparison.presentation import Cells
from pe_experiments.comparison.protocols import Section, panel_title
from pe_experiments.comparison.style import (
    COLOURS,
    GREY,
    WIDTHS,
    Look,
    dark,
    handles,
    legend_below,
    length_axis,
    panels,
    text,
)

METRICS = {"exact_match": "exact match", "token_accuracy": "token accuracy"}
BASELINES = {"bag_ceiling": ("order-blind", (0, (4, 2))), "chance": ("chance", (0, (1, 2)))}
NOT_LEARNT = " (did not learn)"
LABELS_FIT = 7  # schemes that can be labelled at the ends of their lines


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
    figure.suptitle(text(title, 110))
    for axes, (metric, name) in zip(figure.subplots(1, 2), METRICS.items(), strict=True):
        length_axis(axes, curve["content_length"], max_length, name)
        _training_note(axes, max_length)
        if metric == "exact_match":
            low, high = curve["exact_match_low"].astype(float), curve["exact_match_high"].astype(float)
            axes.fill_between(curve["content_length"], low, high, color=COLOURS[0], alpha=0.2, linewidth=0)
        axes.plot(
            curve["content_length"], curve[metric], color=COLOURS[0], marker="o", clip_on=False, zorder=3
        )
        if metric == "token_accuracy":
            _draw_bounds(axes, curve)
    figure.savefig(path, dpi=150)


def section_figure(
    section: Section, rows: Sequence[Cells], looks: Mapping[str, Look], width: float
) -> Figure:
    """One section: a line per scheme, the mean over seeds, with each seed as a dot.

    Schemes most of whose runs did not solve the training lengths are dashed, and said so.
    """
    figure, [(left, right)] = panels(1, width)
    title = f"{section.task}, {section.model}, trained to {section.max_length}; {_seeds(rows)}"
    figure.suptitle("\n".join(wrap(text(title, 200), int(16 * width))))
    fits = len(rows) <= LABELS_FIT and width > WIDTHS["single"]
    for axes, (metric, name) in zip((left, right), METRICS.items(), strict=True):
        _draw_section(axes, section, rows, metric, looks)
        axes.set_ylabel(name)
        _training_note(axes, section.max_length)
        if fits:
            _label_ends(axes, section, rows, metric, looks, everywhere=axes is right)
    if not fits:
        legend_below(figure, _legend(rows, looks))
    return figure


def tasks_figure(
    family: Sequence[tuple[Section, Sequence[Cells]]], looks: Mapping[str, Look], width: float
) -> Figure:
    """Small multiples: exact match above token accuracy, a column per task."""
    figure, pairs = panels(len(family), width)
    for (section, rows), pair in zip(family, pairs, strict=True):
        for axes, metric in zip(pair, METRICS, strict=True):
            _draw_section(axes, section, rows, metric, looks, bound_names=False)
        pair[0].set_title(text(panel_title(section, [other for other, _ in family])))
        pair[0].set_xlabel("")
    for axes, name in zip(pairs[0], METRICS.values(), strict=True):
        axes.set_ylabel(name)
    everybody = {cells["scheme"]: cells for _, rows in family for cells in rows}
    legend_below(figure, handles(looks, sorted(everybody), {}))
    return figure


def _draw_section(
    axes: Axes,
    section: Section,
    rows: Sequence[Cells],
    metric: str,
    looks: Mapping[str, Look],
    bound_names: bool = True,
) -> None:
    length_axis(axes, section.curves["content_length"], section.max_length, "")
    for place, cells in enumerate(rows):
        label = str(cells["scheme"])
        colour, marker = looks[label]
        curves = section.curves[section.curves["label"] == label]
        axes.plot(
            curves["content_length"],
            curves[metric],
            ".",
            color=colour,
            markersize=3,
            alpha=0.5,
            clip_on=False,
        )
        mean = curves.groupby("content_length")[metric].mean()
        axes.plot(
            mean.index,
            mean,
            linestyle="-" if cells.learnt else (0, (4, 2)),
            color=colour,
            marker=marker,
            # Where lines coincide, every marker stays visible: the first drawn are the largest.
            markersize=3.0 + 1.0 * min(6, len(rows) - 1 - place),
            linewidth=1.6,
            clip_on=False,
            zorder=3,
        )
    if metric == "token_accuracy":
        _draw_bounds(axes, section.curves, bound_names)


def _seeds(rows: Sequence[Cells]) -> str:
    counts = sorted({int(cells["seeds"]) for cells in rows})
    shown = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    words = f"{shown} seed{'s' if counts[-1] > 1 else ''} per scheme"
    diverged = [f"{cells['diverged']} of {cells['scheme']}" for cells in rows if cells["diverged"]]
    return words + (f"; diverged (drawn at 0): {', '.join(diverged)}" if diverged else "")


def _legend(rows: Sequence[Cells], looks: Mapping[str, Look]) -> list[Any]:
    said = {str(cells["scheme"]): NOT_LEARNT for cells in rows if not cells.learnt}
    return handles(looks, [str(cells["scheme"]) for cells in rows], said)


def _label_ends(
    axes: Axes,
    section: Section,
    rows: Sequence[Cells],
    metric: str,
    looks: Mapping[str, Look],
    everywhere: bool,
) -> None:
    """Names at the right ends of the lines, moved apart, with a thin line to where each belongs.

    Where all lines end in one place names would say nothing; they are left out there, unless ``everywhere``.
    """
    ends = []
    for cells in rows:
        curves = section.curves[section.curves["label"] == cells["scheme"]]
        last = curves["content_length"].max()
        height = float(curves.loc[curves["content_length"] == last, metric].mean())
        ends.append((height, float(last), cells))
    ends.sort(key=lambda end: (end[0], str(end[2]["scheme"])))
    if not everywhere and ends[-1][0] - ends[0][0] < 0.1:
        return
    gap = 0.075
    heights = [end[0] for end in ends]
    for place in range(1, len(heights)):
        heights[place] = max(heights[place], heights[place - 1] + gap)
    excess = max(0.0, heights[-1] - 1.0)
    heights = [height - excess * (place + 1) / len(heights) for place, height in enumerate(heights)]
    right = axes.get_xlim()[1]
    for height, (end, last, cells) in zip(heights, ends, strict=True):
        label = str(cells["scheme"])
        axes.annotate(
            text(label) + ("" if cells.learnt else NOT_LEARNT),
            (last, end),
            (right * 1.06, height),
            textcoords="data",
            va="center",
            color=dark(looks[label][0]),
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": looks[label][0],
                "linewidth": 0.5,
                "shrinkB": 3,
                "relpos": (0, 0.5),
            },
        )


def _training_note(axes: Axes, max_length: int) -> None:
    axes.text(max_length / 1.03, 1.04, "training lengths", ha="right", va="bottom", fontsize=7, color=GREY)


def _draw_bounds(axes: Axes, curves: pd.DataFrame, names: bool = True) -> None:
    for column, (name, dashes) in BASELINES.items():
        if column not in curves:
            continue
        known = curves.dropna(subset=[column]).groupby("content_length")[column].mean().astype(float)
        if known.empty:
            continue
        axes.plot(known.index, known, linestyle=dashes, color=GREY, linewidth=1.0, zorder=2)
        if names:  # at the left end, where models that learnt anything are far above it
            place = (known.index[0], known.iloc[0])
            axes.annotate(name, place, (2, 3), textcoords="offset points", fontsize=7, color=GREY)
