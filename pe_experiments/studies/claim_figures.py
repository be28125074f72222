"""The figures of the study of the tutorials' claims: the audits, and curves and differences of runs."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure

from pe_experiments.comparison.statistics import shared_differences
from pe_experiments.plots import (
    COLOURS,
    WIDTHS,
    handles,
    legend_below,
    length_axis,
    panels,
    styles,
)
from pe_experiments.studies.audits import CRITERIA, NOISE, TEACHING
from pe_experiments.studies.trained_verdicts import Difference


def curves_figure(
    groups: Mapping[str, Mapping[str, pd.DataFrame]], max_length: int, said: Mapping[str, str]
) -> Figure:
    """Exact match and token accuracy over length: means over seeds, each seed a dot; two panels a group."""
    labels = list(dict.fromkeys(label for group in groups.values() for label in group))
    looks = styles(labels)
    figure, pairs = panels(len(groups), WIDTHS["double"])
    for (title, group), pair in zip(groups.items(), pairs, strict=True):
        pair[0].set_title(title)
        for axes, metric in zip(pair, ("exact_match", "token_accuracy"), strict=True):
            for label, rows in group.items():
                colour, marker = looks[label]
                seeds = rows["content_length"], rows[metric]
                axes.plot(*seeds, ".", color=colour, markersize=5, alpha=0.5, clip_on=False)
                mean = rows.groupby("content_length")[metric].mean()
                dash = "--" if label in said else "-"
                axes.plot(mean.index, mean, dash, color=colour, marker=marker, markersize=4)
            lengths = pd.concat(list(group.values()))["content_length"].unique()
            length_axis(axes, lengths, max_length, metric.replace("_", " "))
    legend_below(figure, handles(looks, labels, said))
    return figure


def differences_figure(differences: Mapping[str, Difference], axis: str) -> Figure:
    """Differences between schemes: the mean, and a dot for each seed that both have."""
    figure = Figure(figsize=(WIDTHS["double"], 0.7 + 0.22 * len(differences)), layout="constrained")
    axes = figure.subplots()
    for place, difference in enumerate(differences.values()):
        seeds = shared_differences(difference.first, difference.second)
        axes.plot(seeds, [place] * len(seeds), ".", color=COLOURS[0], markersize=4, alpha=0.5)
        axes.plot(difference.mean, place, color=COLOURS[0], marker="|", markersize=10)
    axes.axvline(0, color="0.6", linewidth=0.8)
    axes.set_yticks(range(len(differences)), list(differences))
    axes.invert_yaxis()
    axes.set_xlabel(axis)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def values(audits: pd.DataFrame, claim: str, start: str) -> dict[str, pd.DataFrame]:
    """Rows of a claim whose quantity begins with ``start``, by setting, with the number that ends it as x."""
    rows = audits[(audits["claim"] == claim) & audits["quantity"].str.match(rf"{start}\d+$")]
    rows = rows.assign(x=rows["quantity"].str.extract(r"(\d+)$")[0].astype(int))
    return {str(setting): group for setting, group in rows.groupby("setting", sort=False)}


def uniqueness_figure(audits: pd.DataFrame) -> Figure:
    """The margin by width, exact and in bfloat16."""
    figure = Figure(figsize=(WIDTHS["single"], 2.4), layout="constrained")
    axes = figure.subplots()
    rows = audits[audits["claim"] == "unique"]
    width = rows["setting"].str.extract(r"d=(\d+)")[0].astype(int)
    coarse = rows["setting"].str.endswith("bfloat16")
    for part, name, colour, marker in (
        (~coarse, "float64", COLOURS[0], "o"),
        (coarse, "bfloat16", COLOURS[1], "s"),
    ):
        axes.plot(width[part], rows.loc[part, "value"], color=colour, marker=marker, label=name)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(set(width)), [str(d) for d in sorted(set(width))])
    axes.set_yscale("symlog", linthresh=1e-5)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("d")
    axes.set_ylabel("closest two positions")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def offsets_figure(audits: pd.DataFrame) -> Figure:
    """The distance of positions k apart."""
    figure = Figure(figsize=(WIDTHS["single"], 2.4), layout="constrained")
    axes = figure.subplots()
    for rows in values(audits, "distance-curve", "k=").values():
        axes.plot(rows["x"], rows["value"], color=COLOURS[0])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("k")
    axes.set_ylabel("distance of positions k apart")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def order_figure(audits: pd.DataFrame) -> Figure:
    """How far outputs move when the input is permuted."""
    rows = audits[audits["claim"] == "order"].reset_index(drop=True)
    figure = Figure(figsize=(WIDTHS["double"], 0.7 + 0.2 * len(rows)), layout="constrained")
    axes = figure.subplots()
    looks = styles(["none", "sinusoidal"])
    colours = [looks[setting.rpartition(", ")[2]][0] for setting in rows["setting"]]
    axes.barh(rows.index, rows["value"], color=colours)
    axes.set_yticks(rows.index, rows["setting"] + ": " + rows["quantity"])
    for place, value in enumerate(rows["value"]):
        axes.text(value, place, f" {value:.2g}" if value else f" below {NOISE:g}", va="center", fontsize=7)
    axes.margins(x=0.12)
    axes.invert_yaxis()
    axes.set_xlabel("largest change of an output")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def bounds_figure(audits: pd.DataFrame) -> Figure:
    """Which of the five criteria each baseline keeps."""
    rows = audits[(audits["claim"] == "baselines") & audits["quantity"].str.startswith("holds: ")]
    grid = rows.pivot(index="setting", columns="quantity", values="value")
    grid = grid.loc[list(TEACHING), [f"holds: {criterion}" for criterion in CRITERIA]]
    figure = Figure(figsize=(WIDTHS["double"], 1.8), layout="constrained")
    axes = figure.subplots()
    axes.imshow(grid.to_numpy(), cmap="cividis", vmin=-0.5, vmax=1.5, aspect="auto")
    for row, column in [(r, c) for r in range(grid.shape[0]) for c in range(grid.shape[1])]:
        words = "holds" if grid.iloc[row, column] else "broken"
        colour = "black" if words == "holds" else "white"
        axes.text(column, row, words, ha="center", va="center", color=colour)
    axes.set_xticks(range(len(CRITERIA)), CRITERIA)
    axes.set_yticks(range(len(grid)), list(grid.index))
    return figure
