"""The figures of the study: the audits, and curves and differences of runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pe_experiments.plots import (
    COLOURS,
    WIDTHS,
    legend_below,
    length_axis,
    panels,
    styles,
)

from .audits import CRITERIA, NOISE, TEACHING
from .trained import EXTENSIONS, IN_DISTRIBUTION, MODELS, PAST, TWICE, WORDS, Trained, added_or_concatenated

ABSOLUTE = ("none", "sinusoidal", "learned", "learned_sinusoidal")


def figures(audits: pd.DataFrame, t: Trained) -> Iterator[tuple[str, Figure]]:
    """Every figure by its name."""
    values = audits.set_index("quantity")["value"]
    yield "claims-uniqueness", uniqueness(values)
    yield "claims-offsets", offsets(values)
    yield "claims-order", order(values)
    yield "claims-bounds", bounds(values)
    yield "claims-add-or-concat", differences(t)
    yield "claims-width", widths(t)
    absolute = {f"{task}, {m}": {n: t.points(task, n) for n in ABSOLUTE} for task, m in MODELS.items()}
    yield "claims-fixed-or-learned", curves(absolute, t.longest, {})
    rope = {"copy, decoder": {name: t.read_as[name] for name in ("rope", *EXTENSIONS)}}
    yield "claims-extension", curves(rope, t.longest, {"rope": " (as trained)"})


def _one(width: str, height: float, x: str, y: str = "") -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTHS[width], height), layout="constrained")
    axes = figure.subplots()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _widths_axis(axes: Axes, shown: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(shown, [str(d) for d in shown])


def curves(
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
    legend_below(figure, looks, labels, said)
    return figure


def differences(t: Trained) -> Figure:
    """Added or concatenated: the mean difference, and a dot for each seed that both have."""
    made = {name: d for name, d in added_or_concatenated(t, t.width).items() if d is not None}
    figure, axes = _one("double", 0.7 + 0.22 * len(made), "exact match, added minus concatenated")
    for row, difference in enumerate(made.values()):
        seeds = (difference.first - difference.second).dropna()
        axes.plot(seeds, [row] * len(seeds), ".", color=COLOURS[0], markersize=4, alpha=0.5)
        axes.plot(difference.mean, row, color=COLOURS[0], marker="|", markersize=10)
    axes.axvline(0, color="0.6", linewidth=0.8)
    axes.set_yticks(range(len(made)), list(made))
    axes.invert_yaxis()
    return figure


def widths(t: Trained) -> Figure:
    """Sinusoidal by width: means as lines, seeds as dots."""
    figure = Figure(figsize=(WIDTHS["double"], 2.3), layout="constrained")
    for axes, task in zip(figure.subplots(1, len(MODELS)), MODELS, strict=True):
        shown = t.widths(task)
        for metric, colour, marker in zip((IN_DISTRIBUTION, TWICE, PAST), COLOURS, "os^", strict=False):
            rows = [t.of(task, "sinusoidal", d)[metric] for d in shown]
            for width, values in zip(shown, rows, strict=True):
                axes.plot([width] * len(values), values, ".", color=colour, markersize=5, alpha=0.5)
            axes.plot(
                shown,
                [values.mean() for values in rows],
                color=colour,
                marker=marker,
                markersize=4,
                label=WORDS[metric],
            )
        _widths_axis(axes, shown)
        axes.set_title(f"{task}, {MODELS[task]}")
        axes.set_xlabel("d_model")
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    return figure


def uniqueness(values: pd.Series) -> Figure:
    """The margin by width, exact and in bfloat16."""
    figure, axes = _one("single", 2.4, "d", "closest two positions")
    found = values[values.index.str.startswith("closest two positions")]
    width = found.index.str.extract(r"d=(\d+)", expand=False).astype(int)
    coarse = found.index.str.endswith("bfloat16")
    for part, name, colour, marker in (
        (~coarse, "float64", COLOURS[0], "o"),
        (coarse, "bfloat16", COLOURS[1], "s"),
    ):
        axes.plot(width[part], found[part], color=colour, marker=marker, label=name)
    _widths_axis(axes, sorted(set(width)))
    axes.set_yscale("symlog", linthresh=1e-5)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    return figure


def offsets(values: pd.Series) -> Figure:
    """The distance of positions k apart."""
    figure, axes = _one("single", 2.4, "k", "distance of positions k apart")
    found = values[values.index.str.startswith("distance, k=")]
    axes.plot(found.index.str.removeprefix("distance, k=").astype(int), found, color=COLOURS[0])
    axes.set_ylim(bottom=0)
    return figure


def order(values: pd.Series) -> Figure:
    """How far outputs move when the input is permuted."""
    found = values[values.index.str.startswith("order, ")]
    parts = [name.split(", ", 3)[1:] for name in found.index]
    figure, axes = _one("double", 0.7 + 0.2 * len(found), "largest change of an output")
    looks = styles(["none", "sinusoidal"])
    rows = range(len(found))
    axes.barh(rows, found, color=[looks[scheme][0] for _, scheme, _ in parts])
    axes.set_yticks(rows, [f"{model}, {scheme}: {quantity}" for model, scheme, quantity in parts])
    for row, value in enumerate(found):
        axes.text(value, row, f" {value:.2g}" if value else f" below {NOISE:g}", va="center", fontsize=7)
    axes.margins(x=0.12)
    axes.invert_yaxis()
    return figure


def bounds(values: pd.Series) -> Figure:
    """Which of the five criteria each baseline keeps."""
    figure = Figure(figsize=(WIDTHS["double"], 1.8), layout="constrained")
    axes = figure.subplots()
    grid = [[values[f"{name}, holds, {criterion}"] for criterion in CRITERIA] for name in TEACHING]
    axes.imshow(grid, cmap="cividis", vmin=-0.5, vmax=1.5, aspect="auto")
    for row, column in [(r, c) for r in range(len(TEACHING)) for c in range(len(CRITERIA))]:
        text, colour = ("holds", "black") if grid[row][column] else ("broken", "white")
        axes.text(column, row, text, ha="center", va="center", color=colour)
    axes.set_xticks(range(len(CRITERIA)), CRITERIA)
    axes.set_yticks(range(len(TEACHING)), list(TEACHING))
    return figure
