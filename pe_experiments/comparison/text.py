"""Language models in a comparison: what ``text.csv`` of their runs says, as one table and a figure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pe_experiments.comparison.protocols import Section
from pe_experiments.comparison.runs_table import DAMAGE, Runs
from pe_experiments.plots import Look, handles, legend_below, length_axis, training_note
from pe_experiments.runs import run_directory

NEEDED = ["length", "windows", "slice", "bits_per_byte", "accuracy"]


def with_text(runs: Runs, results_dir: str | Path) -> Runs:
    """The runs with the rows of their ``text.csv``; a file that is damaged is left out, with the reason."""
    tables, left_out = [], dict(runs.left_out)
    for name in runs.runs["name"] if len(runs.runs) else ():
        path = run_directory(results_dir, name).path / "text.csv"
        try:
            if path.exists():
                table = pd.read_csv(path)
                table[NEEDED[-2:]].astype(float)
                tables.append(table.assign(name=name)[["name", *table]])
        except DAMAGE as error:
            left_out[f"{name}/{path.name}"] = f"damaged ({type(error).__name__}: {error})"
    if not tables:
        return replace(runs, left_out=left_out)
    return replace(runs, left_out=left_out, text=pd.concat(tables, ignore_index=True))


def context_figures(
    runs: Runs, sections: list[Section], looks: Mapping[str, Look], width: float
) -> Iterator[tuple[str, Figure]]:
    """A figure by name for each section of language models."""
    for section in sections:
        about = section.runs[["name", "label"]]
        if len(runs.text) and len(text := runs.text.merge(about, on="name")):
            yield f"{section.slug}-context", context_figure(section, text, looks, width)


def context_figure(section: Section, text: pd.DataFrame, looks: Mapping[str, Look], width: float) -> Figure:
    """Means over seeds: bits per byte over context length, by index, and of repeated 4-grams; copying."""
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
    legend_below(figure, handles(looks, sorted(set(text["label"])), {}))
    return figure


def _lines(
    axes: Axes, rows: pd.DataFrame, x: str, y: str, looks: Mapping[str, Look], style: str = "-"
) -> None:
    for label, own in rows.groupby("label"):
        colour, marker = looks[str(label)]
        mean = own.groupby(x)[y].mean()
        every = max(1, len(mean) // 8)
        axes.plot(
            mean.index, mean, color=colour, marker=marker, markersize=3.5, markevery=every, linestyle=style
        )
