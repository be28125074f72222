"""Write the page of an encoding against a bank: figures, and a verdict for every task and baseline."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from pe_experiments.bank.scores import SCORE, factors_by_task
from pe_experiments.bank.verdicts import SIGNS, turning_factors, verdicts_on
from pe_experiments.comparison.runs import Runs
from pe_experiments.drawing import WIDTH, drawing, legend_below, length_axis, render, save, styles, text
from pe_experiments.terminal.console import say
from pe_experiments.terminal.files import make_folder, write_atomically

KEY = (
    "+ better, - worse, = tied (no significant difference), . too few configurations; only one learned the\n"
    "task in three quarters of the configurations: (+) yours, (-) the baseline; 0 neither did"
)
NAMED = 3  # highest baselines, drawn in colour
PALE = "0.75"


Standings = dict[str, pd.DataFrame]  # by task: scores [configurations, encodings], NaN where not learned


def report(versus: Any, standings: Standings) -> None:
    """Write tables, figures and the page of an encoding against the bank, and print its verdicts.

    Args:
        versus: the `versus.Versus` whose runs these are.
        standings: the scores in the configurations that the encoding has run, of the reported tasks.
    """
    folder = versus.results_dir / str(versus.study)
    rows = verdict_rows(versus.label, standings, factors_by_task(versus.banked))
    table = versus.scores()
    figures_folder = make_folder(folder / "figures")
    with drawing():
        _draw_curves(versus, table, standings, figures_folder)
        _draw_scores(versus, standings, figures_folder)
    done = sum(map(len, standings.values()))
    cost = f"{done} configurations were run on {len(standings)} tasks"
    page = render(
        Path(__file__).with_name("versus.html.j2"),
        versus=versus,
        tasks=[(task, task_rows.to_dict("records")) for task, task_rows in rows.groupby("task", sort=False)],
        figures=[(figures_folder / f"{name}.svg").read_bytes() for name in ("curves", "scores")],
        score=versus.metric == SCORE,
        cost=cost,
    )
    write_atomically(folder / "report.html", page)
    for name, frame in (("verdicts.csv", rows), ("scores.csv", table)):
        write_atomically(folder / name, frame.to_csv(index=False))
    rows["sign"] = rows["verdict"].map(SIGNS)
    say(rows.pivot(index="task", columns="baseline", values="sign").to_string(na_rep=""))
    say(f"{KEY}\n{cost}\npage: {folder / 'report.html'}")


def verdict_rows(label: str, standings: Standings, factors: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return one row per task and baseline.

    ``higher`` counts the configurations in which the encoding is higher, of the ``pairs`` that both learned.
    ``turns`` names the factors on which the sign depends.
    """
    rows: list[dict[str, Any]] = []
    for task, scores in standings.items():
        own_scores = scores[label]
        for name, difference in verdicts_on(scores, label).items():
            by_setting = own_scores - scores[name]
            rows.append(
                {
                    "task": task,
                    "baseline": name,
                    "verdict": difference.verdict,
                    "settings": len(scores),
                    "learned": own_scores.count(),
                    "mean": own_scores.mean(),
                    "baseline_learned": scores[name].count(),
                    "baseline_mean": scores[name].mean(),
                    "difference": by_setting.mean(),
                    "low": difference.interval.low,
                    "high": difference.interval.high,
                    "p_holm": difference.p,
                    "higher": (by_setting > 0).sum(),
                    "pairs": by_setting.count(),
                    "turns": "; ".join(turning_factors(by_setting, factors[task])),
                }
            )
    return pd.DataFrame(rows)


def curves_figure(
    runs: Runs,
    scores: pd.DataFrame,
    in_colour: Mapping[str, Sequence[str]],
    thick: str = "",
    shortest: float = 0.0,
    columns: int = 3,
) -> Figure:
    """Draw mean exact match over relative input length, a panel per task.

    Args:
        runs: contains the curves of all drawn runs.
        scores: the rows of `scores.score_table` to draw; a length is drawn if all of them have it.
        in_colour: the encodings in colour, by task; the others are grey.
        thick: the encoding drawn with a thick line.
        shortest: the first length drawn, in training lengths.
    """
    figure, panels = _panels(len(in_colour), 1.9, columns)
    coloured = dict.fromkeys(label for labels in in_colour.values() for label in reversed(labels))
    looks = styles(coloured) | {"others": (PALE, "")}
    curves = runs.curves.merge(runs.runs[["name", "max_length"]], on="name")
    curves["times"] = curves["content_length"] / curves["max_length"]
    curves = curves[curves["times"] >= shortest]
    for axes, (task, labels) in zip(panels, in_colour.items(), strict=True):
        names = scores.loc[scores["task"] == task, "name"]
        points = curves[curves["name"].isin(names)]
        counts = points["times"].value_counts()
        points = points[points["times"].isin(counts[counts == len(names)].index)]
        means = points.groupby(["label", "times"])["exact_match"].mean().unstack("label")
        grey = [str(label) for label in means if label not in labels]
        for label in (*grey, *labels):
            colour, marker = looks[label] if label in labels else (PALE, "")
            width = 2.4 if label == thick else 1.2
            axes.plot(means.index, means[label], color=colour, marker=marker, markersize=3, linewidth=width)
        first, last = np.log2([means.index.min(), means.index.max()])
        powers = 2.0 ** np.arange(np.floor(first), np.ceil(last) + 1)
        length_axis(axes, powers, 1, "exact match")
        axes.xaxis.set_major_formatter(lambda times, _: f"{times:g}x")
        axes.set(title=task, xlabel="input length / longest in training")
        axes.label_outer()
    legend_below(figure, looks, [*coloured, "others"])
    return figure


def _panels(count: int, height: float, most_columns: int = 3) -> tuple[Figure, list[Any]]:
    columns = min(most_columns, count)
    lines = math.ceil(count / columns)
    figure = Figure(figsize=(min(3.6 * columns, WIDTH), height * lines), layout="constrained")
    panels = list(figure.subplots(lines, columns, squeeze=False).ravel())
    for axes in panels[count:]:
        axes.set_visible(False)
    return figure, panels[:count]


def _draw_curves(versus: Any, table: pd.DataFrame, standings: Standings, folder: Path) -> None:
    """Draw means over the configurations that the encoding has run, with the highest baselines in colour."""
    rows = []
    in_colour = {}
    for task, scores in standings.items():
        rows.append(table[(table["task"] == task) & table["setting"].isin(scores.index)])
        highest = scores.drop(columns=versus.label).mean().nlargest(NAMED).index
        in_colour[task] = [*map(str, highest[::-1]), versus.label]
    save(curves_figure(versus.together(), pd.concat(rows), in_colour, versus.label), folder, "curves")


def _draw_scores(versus: Any, standings: Standings, folder: Path) -> None:
    """Draw a point per configuration and a bar for the mean, the highest encoding first."""
    figure, panels = _panels(len(standings), 0.6 + 0.15 * (1 + len(versus.baselines)))
    colour, _ = styles([versus.label, *versus.baselines])[versus.label]
    for axes, (task, scores) in zip(panels, standings.items(), strict=True):
        order = scores.mean().sort_values(na_position="first").index
        for row, label in enumerate(order):
            points, bar = (colour, colour) if label == versus.label else (PALE, "0.3")
            axes.plot(scores[label], [row] * len(scores), "o", color=points, markersize=3, alpha=0.6)
            axes.plot([scores[label].mean()], [row], "|", color=bar, markersize=9)
        axes.set_yticks(range(len(order)), [text(str(label), 24) for label in order])
        axes.tick_params(axis="y", labelsize=6)
        axes.set(title=task, xlim=(-0.03, 1.03), xlabel=versus.metric.replace("_", " "))
        axes.spines[["top", "right"]].set_visible(False)
    save(figure, folder, "scores")
