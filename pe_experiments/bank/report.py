"""The page of an encoding against a bank: figures, then a verdict for every task and baseline."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from pe_experiments.drawing import WIDTH, drawing, legend_below, length_axis, render, save, styles, text
from pe_experiments.published.scores import SCORE, factors_of
from pe_experiments.published.verdicts import SIGNS, turning, verdicts_on
from pe_experiments.terminal.console import say
from pe_experiments.terminal.files import make_folder, write_atomically

KEY = (
    "+ better, - worse, = not separated, . too few settings; (+) only yours learned the task in three\n"
    "quarters of the settings, (-) only the other, 0 neither"
)
NAMED = 3  # baselines in colour, the highest
PALE = "0.75"


@dataclass(frozen=True)
class Standing:
    """A task whose settings have been run."""

    task: str
    mine: pd.Series  # by setting that was run: the score, NaN where the task was not learned
    others: pd.DataFrame  # of the baselines, [settings, encodings], in the same settings


def report(versus: Any, standings: Sequence[Standing]) -> None:
    """Write tables, figures and page of an encoding beside the bank, and print what the page says.

    Args:
        versus: the `versus.Versus` whose runs these are.
        standings: the tasks that are reported.
    """
    folder = versus.results_dir / str(versus.study)
    rows, table = verdict_rows(standings, factors_of(versus.banked)), versus.scored()
    figures_folder = make_folder(folder / "figures", versus.results_dir)
    with drawing():
        _draw_curves(versus, table, standings, figures_folder)
        _draw_scores(versus, standings, figures_folder)
    done = sum(len(one.mine) for one in standings)
    cost = f"{done} settings were run on {len(standings)} tasks"
    figures = [(folder / "figures" / f"{name}.svg").read_bytes() for name in ("curves", "scores")]
    page = render(
        Path(__file__).with_name("versus.html.j2"),
        versus=versus,
        tasks=[(task, own.to_dict("records")) for task, own in rows.groupby("task", sort=False)],
        figures=[base64.b64encode(one).decode() for one in figures],
        score=versus.metric == SCORE,
        cost=cost,
    )
    write_atomically(folder / "report.html", page)
    for name, frame in (("verdicts.csv", rows), ("scores.csv", table)):
        write_atomically(folder / name, frame.to_csv(index=False))
    rows["sign"] = rows["verdict"].map(SIGNS)
    say(rows.pivot(index="task", columns="baseline", values="sign").to_string(na_rep=""))
    say(f"{KEY}\n{cost}\npage: {folder / 'report.html'}")


def verdict_rows(standings: Sequence[Standing], factors: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return one row per task and baseline.

    ``higher`` counts the settings in which the encoding is higher, of the ``pairs`` that both learned;
    ``turns`` names the factors on which that depends.
    """
    rows: list[dict[str, Any]] = []
    for one in standings:
        apart = -one.others.sub(one.mine, axis=0)
        for name, test in verdicts_on(one.others.assign(**{"": one.mine}), "").items():
            other, d = one.others[name], apart[name]
            row = {"task": one.task, "baseline": name, "verdict": test.verdict, "settings": len(one.mine)}
            row |= {"learned": one.mine.count(), "mean": one.mine.mean()}
            row |= {"baseline_learned": other.count(), "baseline_mean": other.mean(), "difference": d.mean()}
            row |= {"low": test.interval.low, "high": test.interval.high, "p_holm": test.p}
            row |= {"higher": (d > 0).sum(), "pairs": d.count()}
            rows.append(row | {"turns": "; ".join(turning(d, factors[one.task]))})
    return pd.DataFrame(rows)


def _panels(count: int, height: float) -> tuple[Figure, list[Any]]:
    columns = min(3, count)
    lines = math.ceil(count / columns)
    figure = Figure(figsize=(min(3.6 * columns, WIDTH), height * lines), layout="constrained")
    panels = list(figure.subplots(lines, columns, squeeze=False).ravel())
    for axes in panels[count:]:
        axes.set_visible(False)
    return figure, panels[:count]


def _draw_curves(versus: Any, table: pd.DataFrame, standings: Sequence[Standing], folder: Path) -> None:
    """Draw exact match over relative input length: the mean over the settings that the encoding has run."""
    figure, panels = _panels(len(standings), 1.9)
    highest = {one.task: [*map(str, one.others.mean().nlargest(NAMED).index)] for one in standings}
    named = dict.fromkeys([versus.label, *(name for those in highest.values() for name in those)])
    looks, runs = styles(named), versus.together()
    curves = runs.curves.merge(runs.runs[["name", "max_length"]], on="name")
    curves["times"] = curves["content_length"] / curves["max_length"]
    for axes, one in zip(panels, standings, strict=True):
        rows = table[(table["task"] == one.task) & table["setting"].isin(one.mine.index)]
        points = curves[curves["name"].isin(rows["name"])]
        counts = points["times"].value_counts()
        points = points[points["times"].isin(counts[counts == len(rows)].index)]  # measured in all settings
        means = points.groupby(["label", "times"])["exact_match"].mean().unstack("label")
        shown = [*highest[one.task][::-1], versus.label]
        for label in (*(name for name in means if name not in shown), *shown):
            colour, marker = looks[label] if label in shown else (PALE, "")
            width = 2.4 if label == versus.label else 1.0
            axes.plot(means.index, means[label], color=colour, marker=marker, markersize=3, linewidth=width)
        length_axis(axes, means.index, 1, "exact match")
        axes.set(title=one.task, xlabel="input length / longest in training")
    legend_below(figure, looks, named)
    save(figure, folder, "curves")


def _draw_scores(versus: Any, standings: Sequence[Standing], folder: Path) -> None:
    """A point per setting that the encoding has run, a bar for the mean; the highest encoding first."""
    figure, panels = _panels(len(standings), 0.6 + 0.15 * (1 + len(versus.baselines)))
    colour, _ = styles([versus.label, *versus.baselines])[versus.label]
    for axes, one in zip(panels, standings, strict=True):
        scores = one.others.assign(**{versus.label: one.mine})
        order = scores.mean().sort_values(na_position="first").index
        for row, label in enumerate(order):
            own, dark = (colour, colour) if label == versus.label else (PALE, "0.3")
            axes.plot(scores[label], [row] * len(scores), "o", color=own, markersize=3, alpha=0.6)
            axes.plot([scores[label].mean()], [row], "|", color=dark, markersize=9)
        axes.set_yticks(range(len(order)), [text(str(label), 24) for label in order])
        axes.tick_params(axis="y", labelsize=6)
        axes.set(title=one.task, xlim=(-0.03, 1.03), xlabel=versus.metric.replace("_", " "))
        axes.spines[["top", "right"]].set_visible(False)
    save(figure, folder, "scores")
