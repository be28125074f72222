"""The figure of language models: what ``text.csv`` of their runs says."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pe_experiments.comparison.protocols import Section
from pe_experiments.comparison.result import Comparison
from pe_experiments.plots import Looks, legend_below, length_axis, training_note


def context_figure(made: Comparison, section: Section, text: pd.DataFrame) -> Figure:
    """Means over seeds: bits per byte over context length, by index, and of repeated 4-grams; copying."""
    looks, width = made.looks, made.options.inches
    figure = Figure(figsize=(width, 0.72 * width), layout="constrained")
    figure.suptitle(f"{section.title}, trained to {section.max_length}: the same bytes at every length")
    (whole, index), (repeated, copying) = figure.subplots(2, 2)
    sliding = text[text["windows"] == "sliding"]
    _lines(whole, sliding[sliding["slice"] == "all"], "length", "bits_per_byte", looks)
    _lines(repeated, sliding[sliding["slice"] == "repeated_near"], "length", "bits_per_byte", looks)
    _lines(repeated, sliding[sliding["slice"] == "repeated_far"], "length", "bits_per_byte", looks, "--")
    _lines(copying, text[text["windows"] == "copy"], "length", "accuracy", looks)
    _lines(index, text[text["slice"] == "index"], "last_index", "bits_per_byte", looks)
    lengths = section.curves["content_length"]
    length_axis(whole, lengths, section.max_length, "bits per byte, sliding windows", accuracy=False)
    length_axis(repeated, lengths, section.max_length, "bits per byte, repeated 4-grams", accuracy=False)
    length_axis(copying, lengths, section.max_length, "token accuracy, copied key")
    repeated.set_title("solid: repeated within the training length; dashed: only farther back", fontsize=6)
    training_note(whole, section.max_length)
    for axes in (whole, repeated, copying):
        axes.set_xlabel("context length (bytes)")
    index.set_xlabel("index in the longest window")
    index.set_ylabel("bits per byte")
    index.axvspan(0, section.max_length, color="0.92", zorder=0)
    index.spines[["top", "right"]].set_visible(False)
    legend_below(figure, looks, sorted(set(text["label"])))
    return figure


def _lines(axes: Axes, rows: pd.DataFrame, x: str, y: str, looks: Looks, style: str = "-") -> None:
    for label, own in rows.groupby("label"):
        colour, marker = looks[str(label)]
        mean = own.groupby(x)[y].mean()
        every = max(1, len(mean) // 8)
        axes.plot(
            mean.index, mean, color=colour, marker=marker, markersize=3.5, markevery=every, linestyle=style
        )
