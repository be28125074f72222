"""Figures for papers: accuracy over length, schemes x tasks, horizons, costs, training curves."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from pe_experiments.comparison.runs_table import Runs
from pe_experiments.comparison.table import finite
from pe_experiments.comparison.text import context_figures
from pe_experiments.comparison.words import digits, learned, metric_in_words, number, rows_of
from pe_experiments.comparison.words import mean as mean_in_words
from pe_experiments.console import Display
from pe_experiments.identity import safe_name
from pe_experiments.losses import lower_is_better
from pe_experiments.plots import (
    ACCURACY_NAMES,
    METRIC_NAMES,
    WIDTHS,
    Look,
    dark,
    draw_bounds,
    drawing,
    handles,
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

Looks = Mapping[str, Look]
Rows = Sequence[Mapping[Any, Any]]  # of the table, of one section
Spot = tuple[str, float, bool]  # scheme, value of a run, and whether it is "at least that"


def draw_all(
    runs: Runs,
    sections: Sequence[Section],
    table: pd.DataFrame,
    attention: pd.DataFrame,
    looks: Looks,
    width: float,
    folder: Path,
    display: Display | None = None,
) -> list[Path]:
    """Draw and write everything there is data for, ``width`` inches wide."""
    display = display or Display()
    paths: list[Path] = []
    display.start("drawing figures", len(sections) + 5 + attention["run"].nunique())
    with drawing():
        for done, (slug, figure) in enumerate(
            _figures(runs, sections, table, attention, looks, width), start=1
        ):
            paths += save(figure, folder, slug)
            display.step(done)
    display.stop()
    return paths


def _figures(
    runs: Runs,
    sections: Sequence[Section],
    table: pd.DataFrame,
    attention: pd.DataFrame,
    looks: Looks,
    width: float,
) -> Iterator[tuple[str, Figure]]:
    schemes = [str(scheme) for scheme in dict.fromkeys(table["scheme"])]
    by_section = [(section, rows_of(table, section)) for section in sections]
    yield "matrix", matrix_figure(by_section, schemes, width)
    for section, rows in by_section:
        yield section.slug, section_figure(section, rows, looks, width)
    if len(sections) > 1:
        yield "tasks", tasks_figure(by_section, looks, width)
    if exact := [section for section in sections if section.exact]:
        yield "horizon", strips_figure(exact, schemes, looks, width, _horizons)
    if runs.runs["seconds_per_step"].notna().any():
        yield "costs", strips_figure(sections, schemes, looks, width, _costs)
    if not runs.training.empty:
        yield "training", training_figure(by_section, runs.training, looks, width)
    yield from context_figures(runs, list(sections), looks, width)
    for run in attention["run"].unique():
        about = runs.runs.set_index("name").loc[run]
        slug = safe_name("-".join(map(str, about[["task", "model", "label"]])))[:80]
        yield f"attention-{slug}-s{about['seed']}", attention_figure(attention, run, width)


def section_figure(section: Section, rows: Rows, looks: Looks, width: float) -> Figure:
    """One section: a line per scheme, the mean over seeds, with each seed as a dot.

    Schemes most of whose runs did not solve the training lengths are dashed, and said so.
    """
    figure, [(left, right)] = panels(1, width)
    metrics = section.shown(str(rows[0]["metric"]))
    if len(metrics) == 1:
        right.remove()
        grid = left.get_gridspec()
        assert grid is not None
        left.set_subplotspec(grid[:, :])
    title = f"{section.title}, trained to {section.max_length}; {_seeds(rows)}"
    figure.suptitle("\n".join(wrap(text(title, 200), int(16 * width))))
    fits = len(rows) <= LABELS_FIT and width > WIDTHS["single"]
    for axes, metric in zip((left, right), metrics, strict=False):
        _draw_curves(axes, section, rows, metric, looks)
        axes.set_ylabel(METRIC_NAMES[metric])
        training_note(axes, section.max_length)
        if fits:
            _label_ends(axes, section, rows, metric, looks)
    if not fits:
        said = {str(row["scheme"]): NOT_LEARNED for row in rows if not learned(row)}
        legend_below(figure, handles(looks, [str(row["scheme"]) for row in rows], said))
    return figure


def tasks_figure(by_section: Sequence[tuple[Section, Rows]], looks: Looks, width: float) -> Figure:
    """Small multiples: exact match above token accuracy (where it is another), a column per task."""
    figure, pairs = panels(len(by_section), width)
    named = list(ACCURACY_NAMES)
    for (section, rows), pair in zip(by_section, pairs, strict=True):
        shown = section.shown(str(rows[0]["metric"]))
        named = list(shown) if pair is pairs[0] and len(shown) == 2 else named
        for axes, metric, usual in zip(pair, shown, named, strict=False):
            _draw_curves(axes, section, rows, metric, looks, bound_names=False)
            if pair is pairs[0] or metric != usual:
                axes.set_ylabel(METRIC_NAMES[metric])
        pair[0].set_title(_wrapped(section.title, width))
        if len(shown) == 1:
            pair[1].remove()
        else:
            pair[0].set_xlabel("")
    legend_below(
        figure, handles(looks, sorted({row["scheme"] for _, rows in by_section for row in rows}), {})
    )
    return figure


def _wrapped(title: str, width: float) -> str:
    return "\n".join(wrap(text(title, 60), max(14, int(3.6 * width))))


def _draw_curves(
    axes: Axes, section: Section, rows: Rows, metric: str, looks: Looks, bound_names: bool = True
) -> None:
    length_axis(axes, section.curves["content_length"], section.max_length, "", metric != "loss")
    for index, row in enumerate(rows):
        colour, marker = looks[str(row["scheme"])]
        curves = section.curves[section.curves["label"] == row["scheme"]]
        seeds: Any = {"color": colour, "markersize": 3, "alpha": 0.5, "clip_on": False}
        axes.plot(curves["content_length"], curves[metric], ".", **seeds)
        mean = curves.groupby("content_length")[metric].mean()
        size = 3.0 + 1.0 * min(6, len(rows) - 1 - index)  # of lines that coincide every marker stays visible
        dashes = "-" if learned(row) else (0, (4, 2))
        line: Any = {
            "linestyle": dashes,
            "color": colour,
            "marker": marker,
            "markersize": size,
            "linewidth": 1.6,
        }
        axes.plot(mean.index, mean, **line, clip_on=False, zorder=3)
    if metric == "token_accuracy":
        draw_bounds(axes, section.curves, bound_names)


def _seeds(rows: Rows) -> str:
    counts = sorted({int(row["seeds"]) for row in rows})
    shown = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    words = f"{shown} seed{'s' if counts[-1] > 1 else ''} per scheme"
    diverged = [f"{row['diverged']} of {row['scheme']}" for row in rows if row["diverged"]]
    drawn = "at 0" if finite(rows[0]["solved"]) else "as a uniform guess"
    return words + (f"; diverged (drawn {drawn}): {', '.join(diverged)}" if diverged else "")


def _label_ends(axes: Axes, section: Section, rows: Rows, metric: str, looks: Looks) -> None:
    """Names at the right ends of the lines, moved apart; those of lines that coincide are one label."""
    groups: list[tuple[pd.Series, list[str]]] = []
    for row in rows:
        name = text(str(row["scheme"]), 24) + ("" if learned(row) else NOT_LEARNED)
        curves = section.curves[section.curves["label"] == row["scheme"]]
        mean = curves.groupby("content_length")[metric].mean()
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


def matrix_figure(by_section: Sequence[tuple[Section, Rows]], schemes: Sequence[str], width: float) -> Figure:
    """Schemes x tasks: the mean over seeds, and below it its 95 % interval where there is one and it fits."""
    metric = str(by_section[0][1][0]["metric"])
    width = max(width, 1.6 + 0.34 * len(by_section))
    figure = Figure(figsize=(width, 1.3 + 0.3 * len(schemes)), layout="constrained")
    axes = figure.subplots()
    values = np.full((len(schemes), len(by_section)), np.nan)
    fits = (width - 2.2) / len(by_section) > INTERVALS_FIT
    pale, full = 0.0, 1.0
    if lower_is_better(metric):  # then the lowest is the darkest
        means = [row[metric] for _, rows in by_section for row in rows if finite(row[metric])] or [0.0]
        pale, full = max(means) + 1e-9, min(means)
    for column, (_, rows) in enumerate(by_section):
        for row in rows:
            index, mean = schemes.index(row["scheme"]), row[metric]
            values[index, column] = mean
            ends = "\n" + mean_in_words(row, metric).partition(" ")[2]
            shown = number(mean, digits(metric)) + (ends if fits and finite(row[f"{metric}_low"]) else "")
            colour = "white" if finite(mean) and (mean - pale) / (full - pale) > 0.55 else "black"
            axes.text(column, index, shown, ha="center", va="center", fontsize=6, color=colour)
    colours = "Blues" if full > pale else "Blues_r"
    image = axes.imshow(values, cmap=colours, vmin=min(pale, full), vmax=max(pale, full), aspect="auto")
    titles = [_wrapped(section.title, 5) for section, _ in by_section]
    axes.set_xticks(range(len(by_section)), titles, rotation=40 if len(titles) > 4 else 0,
                    ha="right" if len(titles) > 4 else "center", rotation_mode="anchor")  # fmt: skip
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
    sections: Sequence[Section],
    schemes: Sequence[str],
    looks: Looks,
    width: float,
    prepare: Callable[[Axes, Section], Iterable[Spot]],
) -> Figure:
    """A panel per section, a row per scheme, a mark per run and the median as a bar."""
    columns = min(len(sections), 3 if width > WIDTHS["single"] else 1)
    rows = -(-len(sections) // columns)
    height = 0.3 + rows * (0.75 + 0.22 * len(schemes))
    figure = Figure(figsize=(width, height), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in grid[len(sections) :]:
        axes.remove()
    for index, (section, axes) in enumerate(zip(sections, grid, strict=False)):
        runs: dict[str, list[tuple[float, bool]]] = {}
        for scheme, value, censored in prepare(axes, section):
            runs.setdefault(scheme, []).append((value, censored))
        for row, scheme in enumerate(schemes):
            _strip(axes, row, runs.get(scheme, []), looks[scheme])
        axes.set_ylim(len(schemes) - 0.5, -0.5)
        axes.set_title(_wrapped(section.title, width))
        axes.set_yticks(range(len(schemes)), [text(s) for s in schemes] if index % columns == 0 else [])
    return figure


def _strip(axes: Axes, row: int, runs: Sequence[tuple[float, bool]], look: Look) -> None:
    colour, marker = look
    if runs:
        middle = float(np.median([value for value, _ in runs]))
        axes.plot([middle] * 2, [row - 0.3, row + 0.3], color=colour, linewidth=2.0)
    spread = np.linspace(-0.25, 0.25, len(runs)) if len(runs) > 1 else [0.0]
    for (value, censored), shift in zip(runs, spread, strict=False):
        face: Any = {
            "marker": ">" if censored else marker,
            "markerfacecolor": "white" if censored else colour,
        }
        axes.plot(value, row + shift, **face, markersize=4, color=colour, linestyle="none", clip_on=False)


def training_figure(
    by_section: Sequence[tuple[Section, Rows]], training: pd.DataFrame, looks: Looks, width: float
) -> Figure:
    """Loss and exact match on the training lengths over steps; each seed thin, the mean thick."""
    figure, pairs = panels(len(by_section), width)
    for (section, rows), pair in zip(by_section, pairs, strict=True):
        here = training[training["protocol"] == section.protocol]
        looked = "exact_match" if section.exact else "token_accuracy"
        if pair is pairs[0] or not section.exact:
            pair[0].set_ylabel("training loss (nats)")
            pair[1].set_ylabel(f"{METRIC_NAMES[looked]} within")
        for axes, column in zip(pair, ("loss", looked), strict=True):
            for label in (str(row["scheme"]) for row in rows):
                colour, marker = looks[label]
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
        if len(by_section) > 1:
            pair[0].set_title(_wrapped(section.title, width))
    legend_below(
        figure, handles(looks, sorted({row["scheme"] for _, rows in by_section for row in rows}), {})
    )
    return figure
