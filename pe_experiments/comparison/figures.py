"""Figures for papers: accuracy over length, schemes x tasks, horizons, costs, training curves."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pe_experiments.comparison.attention import attention_figure
from pe_experiments.comparison.protocols import Section
from pe_experiments.comparison.result import Comparison
from pe_experiments.comparison.run_rows import Row
from pe_experiments.comparison.table import finite
from pe_experiments.comparison.words import digits, learned, metric_in_words, number, seeds_in_words
from pe_experiments.comparison.words import mean as mean_in_words
from pe_experiments.console import Display
from pe_experiments.identity import safe_name
from pe_experiments.plots import (
    ACCURACY_NAMES,
    METRIC_NAMES,
    WIDTHS,
    Look,
    Looks,
    dark,
    draw_bounds,
    drawing,
    legend_below,
    length_axis,
    panels,
    save,
    text,
    training_note,
)

NOT_LEARNED = " (did not learn)"
LABELS_FIT = 7  # schemes that can be labelled at the ends of their lines
INTERVALS_FIT = 0.55  # inches of a column that an interval fits in

Rows = Sequence[Row]  # of the table, of one section
Spot = tuple[str, float, bool]  # scheme, value of a run, and whether it is "at least that"


def draw_all(made: Comparison, folder: Path, display: Display | None = None) -> list[Path]:
    """Draw and write everything there is data for."""
    display = display or Display()
    paths: list[Path] = []
    display.start("drawing figures", len(made.sections) + 5 + made.runs.attention["run"].nunique())
    with drawing():
        for done, (slug, figure) in enumerate(_figures(made), start=1):
            paths += save(figure, folder, slug)
            display.step(done)
    display.stop()
    return paths


def _figures(made: Comparison) -> Iterator[tuple[str, Figure]]:
    runs, sections = made.runs, made.sections
    yield "matrix", matrix_figure(made)
    for section in sections:
        yield section.slug, section_figure(made, section)
    if len(sections) > 1:
        yield "tasks", tasks_figure(made)
    if exact := [section for section in sections if section.exact]:
        yield "horizon", strips_figure(made, exact, _horizons)
    if runs.runs["seconds_per_step"].notna().any():
        yield "costs", strips_figure(made, sections, _costs)
    if not runs.training.empty:
        yield "training", training_figure(made)
    for section in sections if len(runs.text) else ():
        if len(lines := runs.text.merge(section.runs[["name", "label"]], on="name")):
            yield f"{section.slug}-context", context_figure(made, section, lines)
    for run in runs.attention["run"].unique():
        about = runs.runs.set_index("name").loc[run]
        slug = safe_name("-".join(map(str, about[["task", "model", "label"]])))[:80]
        yield f"attention-{slug}-s{about['seed']}", attention_figure(runs.attention, run, made.options.inches)


def section_figure(made: Comparison, section: Section) -> Figure:
    """One section: a line per scheme, the mean over seeds, with each seed as a dot.

    Schemes most of whose runs did not solve the training lengths are dashed and labelled.
    """
    rows, width = made.rows(section), made.options.inches
    figure, [(left, right)] = panels(1, width)
    metrics = section.shown(made.metric)
    if len(metrics) == 1:
        right.remove()
        grid = left.get_gridspec()
        assert grid is not None
        left.set_subplotspec(grid[:, :])
    title = f"{section.title}, trained to {section.max_length}; {_seeds(rows)}"
    figure.suptitle("\n".join(wrap(text(title, 200), int(16 * width))))
    fits = len(rows) <= LABELS_FIT and width > WIDTHS["single"]
    for axes, metric in zip((left, right), metrics, strict=False):
        _draw_curves(axes, section, rows, metric, made.looks)
        axes.set_ylabel(METRIC_NAMES[metric])
        training_note(axes, section.max_length)
        if fits:
            _label_ends(axes, section, rows, metric, made.looks)
    if not fits:
        said = {row["scheme"]: NOT_LEARNED for row in rows if not learned(row)}
        legend_below(figure, made.looks, [row["scheme"] for row in rows], said)
    return figure


def tasks_figure(made: Comparison) -> Figure:
    """Small multiples: exact match above token accuracy (where it is another), a column per task."""
    figure, pairs = panels(len(made.sections), made.options.inches)
    named = list(ACCURACY_NAMES)
    for section, pair in zip(made.sections, pairs, strict=True):
        shown = section.shown(made.metric)
        named = list(shown) if pair is pairs[0] and len(shown) == 2 else named
        for axes, metric, usual in zip(pair, shown, named, strict=False):
            _draw_curves(axes, section, made.rows(section), metric, made.looks, bound_names=False)
            if pair is pairs[0] or metric != usual:
                axes.set_ylabel(METRIC_NAMES[metric])
        pair[0].set_title(_wrapped(section.title, made.options.inches))
        if len(shown) == 1:
            pair[1].remove()
        else:
            pair[0].set_xlabel("")
    legend_below(figure, made.looks, sorted(made.schemes))
    return figure


def _wrapped(title: str, width: float) -> str:
    return "\n".join(wrap(text(title, 60), max(14, int(3.6 * width))))


def _draw_curves(
    axes: Axes, section: Section, rows: Rows, metric: str, looks: Looks, bound_names: bool = True
) -> None:
    length_axis(axes, section.curves["content_length"], section.max_length, "", metric != "loss")
    for index, row in enumerate(rows):
        colour, marker = looks[row["scheme"]]
        curves, mean = _curves(section, row["scheme"], metric)
        seeds: Any = {"color": colour, "markersize": 3, "alpha": 0.5, "clip_on": False}
        axes.plot(curves["content_length"], curves[metric], ".", **seeds)
        size = 3.0 + 1.0 * min(6, len(rows) - 1 - index)  # of lines that coincide every marker stays visible
        line: Any = {"color": colour, "marker": marker, "markersize": size, "linewidth": 1.6}
        dashes = "-" if learned(row) else (0, (4, 2))
        axes.plot(mean.index, mean, **line, linestyle=dashes, clip_on=False, zorder=3)
    if metric == "token_accuracy":
        draw_bounds(axes, section.curves, bound_names)


def _curves(section: Section, scheme: str, metric: str) -> tuple[pd.DataFrame, pd.Series]:
    """The points of a scheme's runs, and their mean by length."""
    curves = section.curves[section.curves["label"] == scheme]
    return curves, curves.groupby("content_length")[metric].mean()


def _seeds(rows: Rows) -> str:
    words = f"{seeds_in_words(row['seeds'] for row in rows)} per scheme"
    diverged = [f"{row['diverged']} of {row['scheme']}" for row in rows if row["diverged"]]
    drawn = "at 0" if finite(rows[0]["solved"]) else "as a uniform guess"
    return words + (f"; diverged (drawn {drawn}): {', '.join(diverged)}" if diverged else "")


def _label_ends(axes: Axes, section: Section, rows: Rows, metric: str, looks: Looks) -> None:
    """Names at the right ends of the lines, moved apart; those of lines that coincide are one label."""
    groups: list[tuple[pd.Series, list[str]]] = []
    for row in rows:
        name = text(row["scheme"], 24) + ("" if learned(row) else NOT_LEARNED)
        _, mean = _curves(section, row["scheme"], metric)
        same = next((names for line, names in groups if _coincide(line, mean)), None)
        if same is None:
            groups.append((mean, [name]))
        else:
            same.append(name)
    groups = sorted(groups, key=lambda group: -round(float(group[0].iloc[-1]), 2))[::-1]  # the best on top
    colours = {text(label, 24): colour for label, (colour, _) in looks.items()}
    rows_of_text = [_stacked(names).count("\n") + 1 for _, names in groups]
    low, high = (-0.02, 1.03) if metric != "loss" else axes.get_ylim()
    unit = (high - low) / 1.05  # what 1 is on an axis of accuracies
    base = low + 0.02 * unit
    heights = [(float(line.iloc[-1]) - base) / unit for line, _ in groups]
    for n in range(1, len(heights)):
        heights[n] = max(heights[n], heights[n - 1] + 0.04 * (rows_of_text[n - 1] + rows_of_text[n]))
    excess = max(0.0, heights[-1] - 1.0)
    right = axes.get_xlim()[1]
    for index, (line, names) in enumerate(groups):
        height = base + unit * (heights[index] - excess * (index + 1) / len(groups))
        colour = colours[names[0].removesuffix(NOT_LEARNED)] if len(names) == 1 else "0.25"
        arrow = {"arrowstyle": "-", "color": colour, "linewidth": 0.5, "shrinkB": 3, "relpos": (0, 0.5)}
        end, at = (line.index[-1], line.iloc[-1]), (right * 1.06, height)
        axes.annotate(_stacked(names), end, at, textcoords="data", va="center", color=dark(colour),
                      annotation_clip=False, arrowprops=arrow)  # fmt: skip


def _coincide(one: pd.Series, other: pd.Series) -> bool:
    return one.index.equals(other.index) and bool(((one - other).abs() < 0.01).all())


def _stacked(names: Sequence[str]) -> str:
    return "\n".join(wrap(", ".join(names), 26))


def matrix_figure(made: Comparison) -> Figure:
    """Schemes x tasks: the mean over seeds, and below it its 95 % interval where there is one and it fits."""
    metric, schemes = made.metric, made.schemes
    titles = [_wrapped(section.title, 7) for section in made.sections]
    angle = 0 if len(titles) <= 4 else 40 if max(title.count("\n") for title in titles) < 2 else 90
    width = max(made.options.inches, 1.6 + 0.34 * len(titles))
    height = 1.3 + 0.3 * len(schemes) + (angle == 90)
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    values = np.full((len(schemes), len(titles)), np.nan)
    fits = (width - 2.2) / len(titles) > INTERVALS_FIT
    pale, full = 0.0, 1.0
    if made.lower:  # then the lowest is the darkest
        means = made.table[metric].dropna().tolist() or [0.0]
        pale, full = max(means) + 1e-9, min(means)
    for column, section in enumerate(made.sections):
        for row in made.rows(section):
            index, mean = schemes.index(row["scheme"]), row[metric]
            values[index, column] = mean
            ends = "\n" + mean_in_words(row, metric).partition(" ")[2]
            shown = number(mean, digits(metric)) + (ends if fits and finite(row[f"{metric}_low"]) else "")
            colour = "white" if finite(mean) and (mean - pale) / (full - pale) > 0.55 else "black"
            axes.text(column, index, shown, ha="center", va="center", fontsize=6, color=colour)
    colours = "Blues" if full > pale else "Blues_r"
    image = axes.imshow(values, cmap=colours, vmin=min(pale, full), vmax=max(pale, full), aspect="auto")
    axes.set_xticks(range(len(titles)), titles, rotation=angle, rotation_mode="anchor",
                    ha="right" if angle else "center", va="center" if angle == 90 else "top")  # fmt: skip
    axes.set_yticks(range(len(schemes)), [text(scheme) for scheme in schemes])
    figure.colorbar(image, ax=axes, label=metric_in_words(metric))
    return figure


def _horizons(axes: Axes, section: Section) -> list[Spot]:
    lengths = [float(n) for n in section.lengths] or [float(section.max_length)]
    zero = lengths[0] / 2  # where a horizon of 0 stands on the logarithmic axis
    length_axis(axes, [zero, *lengths], section.max_length, "")
    axes.xaxis.set_major_formatter(lambda value, _: "0" if value == zero else f"{value:g}")
    axes.set_xlabel("horizon (hollow: at least)")
    columns = (section.runs[key] for key in ("label", "horizon", "horizon_censored"))
    return [(label, max(zero, float(h)), bool(censored)) for label, h, censored in zip(*columns, strict=True)]


def _costs(axes: Axes, section: Section) -> list[Spot]:
    axes.set_xlabel("ms per training step")
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    times = 1000 * section.runs["seconds_per_step"].astype(float)
    axes.set_xlim(0, 1.05 * times.max() if times.notna().any() else 1)
    known = zip(section.runs["label"], times, strict=True)
    return [(label, ms, False) for label, ms in known if not math.isnan(ms)]


def strips_figure(
    made: Comparison, sections: Sequence[Section], prepare: Callable[[Axes, Section], Iterable[Spot]]
) -> Figure:
    """A panel per section, a row per scheme, a mark per run and the median as a bar."""
    schemes, width = made.schemes, made.options.inches
    columns = min(len(sections), 3 if width > WIDTHS["single"] else 1)
    rows = -(-len(sections) // columns)
    height = 0.3 + rows * (0.75 + 0.22 * len(schemes))
    figure = Figure(figsize=(width, height), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in grid[len(sections) :]:
        axes.remove()
    for index, (section, axes) in enumerate(zip(sections, grid, strict=False)):
        spots = list(prepare(axes, section))
        for row, scheme in enumerate(schemes):
            _strip(axes, row, [spot for spot in spots if spot[0] == scheme], made.looks[scheme])
        axes.set_ylim(len(schemes) - 0.5, -0.5)
        axes.set_title(_wrapped(section.title, width))
        axes.set_yticks(range(len(schemes)), [text(s) for s in schemes] if index % columns == 0 else [])
    return figure


def _strip(axes: Axes, row: int, spots: Sequence[Spot], look: Look) -> None:
    colour, marker = look
    if spots:
        middle = float(np.median([value for _, value, _ in spots]))
        axes.plot([middle] * 2, [row - 0.3, row + 0.3], color=colour, linewidth=2.0)
    spread = np.linspace(-0.25, 0.25, len(spots)) if len(spots) > 1 else [0.0]
    for (_, value, censored), shift in zip(spots, spread, strict=False):
        face: Any = {
            "marker": ">" if censored else marker,
            "markerfacecolor": "white" if censored else colour,
        }
        axes.plot(value, row + shift, **face, markersize=4, color=colour, linestyle="none", clip_on=False)


def training_figure(made: Comparison) -> Figure:
    """Loss and exact match on the training lengths over steps; each seed thin, the mean thick."""
    training, width = made.runs.training, made.options.inches
    figure, pairs = panels(len(made.sections), width)
    for section, pair in zip(made.sections, pairs, strict=True):
        here = training[training["protocol"] == section.protocol]
        looked = "exact_match" if section.exact else "token_accuracy"
        if pair is pairs[0] or not section.exact:
            pair[0].set_ylabel("training loss (nats)")
            pair[1].set_ylabel(f"{METRIC_NAMES[looked]} within")
        for axes, column in zip(pair, ("loss", looked), strict=True):
            for label in (row["scheme"] for row in made.rows(section)):
                colour, marker = made.looks[label]
                curves = here[here["label"] == label].dropna(subset=[column])
                for _, seed in curves.groupby("name"):
                    axes.plot(seed["step"], seed[column], color=colour, linewidth=0.4, alpha=0.4)
                mean = curves.groupby("step")[column].mean()
                marks: Any = {"marker": marker, "markevery": max(1, len(mean) // 6), "markersize": 4}
                axes.plot(mean.index, mean, color=colour, **marks)
            axes.set_xlabel("step")
            axes.spines[["top", "right"]].set_visible(False)
            axes.xaxis.set_major_locator(MaxNLocator(4))
        if (here["loss"] > 0).any():
            pair[0].set_yscale("log")
        pair[1].set_ylim(-0.02, 1.03)
        if len(made.sections) > 1:
            pair[0].set_title(_wrapped(section.title, width))
    legend_below(figure, made.looks, sorted(made.schemes))
    return figure


def context_figure(made: Comparison, section: Section, lines: pd.DataFrame) -> Figure:
    """Means over seeds: bits per byte over context length, by index, and of repeated 4-grams; copying."""
    looks, width = made.looks, made.options.inches
    figure = Figure(figsize=(width, 0.72 * width), layout="constrained")
    figure.suptitle(f"{section.title}, trained to {section.max_length}: the same bytes at every length")
    (whole, index), (repeated, copying) = figure.subplots(2, 2)
    sliding = lines[lines["windows"] == "sliding"]
    _lines(whole, sliding[sliding["slice"] == "all"], "length", "bits_per_byte", looks)
    _lines(repeated, sliding[sliding["slice"] == "repeated_near"], "length", "bits_per_byte", looks)
    _lines(repeated, sliding[sliding["slice"] == "repeated_far"], "length", "bits_per_byte", looks, "--")
    _lines(copying, lines[lines["windows"] == "copy"], "length", "accuracy", looks)
    _lines(index, lines[lines["slice"] == "index"], "last_index", "bits_per_byte", looks)
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
    legend_below(figure, looks, sorted(set(lines["label"])))
    return figure


def _lines(axes: Axes, rows: pd.DataFrame, x: str, y: str, looks: Looks, style: str = "-") -> None:
    for label, own in rows.groupby("label"):
        colour, marker = looks[str(label)]
        mean = own.groupby(x)[y].mean()
        every = max(1, len(mean) // 8)
        axes.plot(
            mean.index, mean, color=colour, marker=marker, markersize=3.5, markevery=every, linestyle=style
        )
