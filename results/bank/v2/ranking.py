"""Rank encodings by one rule: the encoding with the highest mean against each of the others.

All encodings share the same tasks and configurations, and an encoding scores 0 where it did not learn the
task. Shapes: T tasks, S configurations, E encodings.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from pe_experiments.comparison.statistics import ALPHA, holm
from pe_experiments.comparison.words import number
from pe_experiments.drawing import save
from pe_experiments.studies import table, verdicts
from pe_experiments.studies.scores import SCORE, scores_by_setting

TASKS = ["copy", "lag", "induction", "flip_flop"]  # the tasks that tell encodings apart
AT_2X, AT_4X = "exact_match_at_2x", "exact_match_at_4x"
MEASURES = {SCORE: "score, 1x to 8x", AT_2X: "exact match at 2x", AT_4X: "exact match at 4x"}
DRAWS = 10_000  # bootstrap samples


class Bootstrap(NamedTuple):
    """Means of encodings in samples of tasks and configurations, both drawn with replacement."""

    best: str  # the encoding with the highest mean in the data
    means: pd.DataFrame  # [DRAWS, E]

    def first(self) -> pd.Series:
        """Return the share of samples in which each encoding has the highest mean."""
        shares = self.means.round(9).idxmax(axis=1).value_counts(normalize=True)
        return shares.reindex(self.means.columns, fill_value=0.0)

    def differences(self) -> pd.DataFrame:
        """Return the ends of the 95 % interval of the best minus each encoding, [E, (low, high)]."""
        below_best = (-self.means).add(self.means[self.best], axis=0)
        return below_best.quantile([ALPHA / 2, 1 - ALPHA / 2]).set_axis(["low", "high"]).T

    def share_on_top(self, encodings: Collection[str]) -> float:
        """Return the share of samples in which all of these encodings are above all others."""
        others = self.means.drop(columns=[*encodings])
        return float((self.means[[*encodings]].min(axis=1) > others.max(axis=1)).mean())


def by_task(scores: pd.DataFrame, metric: str = SCORE) -> dict[str, pd.DataFrame]:
    """Return the values of a metric [S, E] by task, 0 where an encoding did not learn the task."""
    return {task: scores_by_setting(scores[scores["task"] == task], metric, 0.0) for task in TASKS}


def over_tasks(scores: pd.DataFrame, metric: str = SCORE) -> pd.DataFrame:
    """Return the mean of a metric over `TASKS` [S, E], 0 where an encoding did not learn a task."""
    total: Any = sum(by_task(scores, metric).values())
    return total / len(TASKS)


def against_best(matrix: pd.DataFrame) -> pd.DataFrame:
    """Return a row per encoding with the test of the best encoding against it, sorted by the mean.

    Signs of differences are flipped within configurations, Holm's method adjusts p for the number of
    encodings, and `verdicts.calibrated_p` for the choice of the best.

    Args:
        matrix: scores [S, E] without missing values.

    Returns:
        The columns ``mean, difference, low, high, p, calibrated_p, tied``; those of the best are 0 or 1.
    """
    best, differences = verdicts.best(matrix)
    rows = {best: {"difference": 0.0, "low": 0.0, "high": 0.0, "p": 1.0, "calibrated_p": 1.0}}
    for encoding, difference in differences.items():
        interval = difference.interval
        rows[encoding] = {
            "difference": interval.estimate,
            "low": interval.low,
            "high": interval.high,
            "p": difference.p,
            "calibrated_p": verdicts.calibrated_p(difference.p, matrix.shape[1], len(matrix)),
        }
    tests = pd.DataFrame.from_dict(rows, orient="index")
    tests.insert(0, "mean", matrix.mean())
    tests["tied"] = tests["calibrated_p"] > ALPHA
    return tests.sort_values("mean", ascending=False)


def resample(scores: pd.DataFrame, metric: str = SCORE) -> Bootstrap:
    """Return means in samples of tasks and configurations: both are random factors, encodings are not."""
    matrices = by_task(scores, metric)
    encodings = matrices[TASKS[0]].columns
    values_TSE = np.stack([matrices[task][encodings].to_numpy() for task in TASKS])
    random = np.random.default_rng(0)
    weights = [random.multinomial(n, np.full(n, 1 / n), DRAWS) / n for n in values_TSE.shape[:2]]
    means = pd.DataFrame(np.einsum("nt,ns,tse->ne", *weights, values_TSE, optimize=True), columns=encodings)
    best = str(encodings[values_TSE.mean(axis=(0, 1)).argmax()])
    return Bootstrap(best, means)


def rank(scores: pd.DataFrame) -> pd.DataFrame:
    """Return a row per encoding, sorted by the mean score over `TASKS`.

    The columns are those of `against_best`, the mean score of each task, exact match at 2x and 4x, in how
    many ``cases`` (a task in a configuration) the encoding ``learned`` the task, and from `resample` the
    share of samples in which it is ``first`` and the ends of its difference from the best.
    """
    rows = against_best(over_tasks(scores))
    for task, matrix in by_task(scores).items():
        rows[task] = matrix.mean()
    for metric in (AT_2X, AT_4X):
        rows[metric] = over_tasks(scores, metric).mean()
    cases = scores[scores["task"].isin(TASKS)].groupby("label")["learned"]
    bootstrap = resample(scores)
    return rows.assign(learned=cases.sum(), cases=cases.size(), first=bootstrap.first()).join(
        bootstrap.differences().add_prefix("both_")
    )


def ranking_table(rows: pd.DataFrame) -> str:
    """Return the result of `rank` as a Markdown table."""
    cells = pd.DataFrame({"encoding": [f"`{label}`" for label in rows.index]}, index=rows.index)
    cells["mean score"] = rows["mean"].map(number) + np.where(rows["tied"], "", " (lower)")
    for name, column in {**{task: task for task in TASKS}, "at 2x": AT_2X, "at 4x": AT_4X}.items():
        cells[name] = rows[column].map(number)
    cells["learned"] = [f"{row.learned} of {row.cases}" for row in rows.itertuples()]
    return table(cells)


def summary_table(rows: pd.DataFrame) -> str:
    """Return the result of `rank` as a short Markdown table in two halves; tied means are bold."""
    cells = pd.DataFrame({"encoding": [f"`{label}`" for label in rows.index]})
    means = rows["mean"].map(number).to_numpy()
    cells["mean score"] = np.where(rows["tied"], "**" + means + "**", means)
    for name, column in (("at 2x", AT_2X), ("at 4x", AT_4X)):
        cells[name] = rows[column].map(number).to_numpy()
    cells["learned"] = rows["learned"].astype(str).to_numpy()
    half = (len(cells) + 1) // 2
    right = cells.iloc[half:].reset_index(drop=True).reindex(range(half), fill_value="")
    return table(pd.concat([cells.iloc[:half], right], axis=1))


def difference_table(rows: pd.DataFrame) -> str:
    """Return the differences from the best encoding as a Markdown table, with tasks fixed and random."""
    lines = []
    for label, row in rows.iloc[1:].iterrows():
        over_configurations = f"{row['difference']:.2f} [{row['low']:+.2f}, {row['high']:+.2f}]"
        lines.append(
            {
                f"`{rows.index[0]}` minus": f"`{label}`",
                "difference, interval over configurations": over_configurations,
                "p": f"{row['p']:.3f}",
                "p, calibrated": f"{row['calibrated_p']:.3f}",
                "so it is": "tied" if row["tied"] else "lower",
                "over tasks and configurations": f"[{row['both_low']:+.2f}, {row['both_high']:+.2f}]",
                "first": f"{row['first']:.0%}",
            }
        )
    return table(pd.DataFrame(lines))


def verdict_table(scores: pd.DataFrame) -> str:
    """Return a table of the best encoding and those tied with it, by measure over `TASKS` and by task."""
    matrices = {(words, "four tasks"): over_tasks(scores, metric) for metric, words in MEASURES.items()}
    matrices |= {(MEASURES[SCORE], f"`{task}`"): matrix for task, matrix in by_task(scores).items()}
    lines = []
    for (words, tasks), matrix in matrices.items():
        rows = against_best(matrix)
        tied = rows[rows["tied"]].iloc[1:]["mean"]
        names = [f"`{label}` {number(mean)}" for label, mean in tied.items()]
        lines.append(
            {
                "measure": words,
                "on": tasks,
                "best": f"`{rows.index[0]}` {number(rows['mean'].iloc[0])}",
                "tied with it": ", ".join(names) or "–",
                "lower": (~rows["tied"]).sum(),
            }
        )
    return table(pd.DataFrame(lines))


def over_task_tests(scores: pd.DataFrame, best: str) -> pd.Series:
    """Return adjusted p-values [E] of t tests of the best encoding with each task's mean as one observation.

    Holm's method adjusts them for the number of encodings. With four tasks the tests have little power.
    """
    means = pd.DataFrame({task: matrix.mean() for task, matrix in by_task(scores).items()})
    others = means.drop(index=best)
    ps = [float(stats.ttest_rel(means.loc[best], row).pvalue) for _, row in others.iterrows()]
    return pd.Series(holm(ps), others.index)


def draw_ranking(scores: pd.DataFrame, new: Collection[str], folder: Path, slug: str) -> None:
    """Draw `rank`: every configuration, and the mean with its interval, by measure.

    Encodings above the dotted line are not significantly different from the best; ``new`` ones are bold.
    """
    rows = rank(scores)
    matrices = {words: over_tasks(scores, metric) for metric, words in MEASURES.items()}
    figure = Figure(figsize=(7.2, 0.9 + 0.19 * len(rows)), layout="constrained")
    panels = figure.subplots(1, len(matrices), sharey=True)
    order = [*map(str, rows.index)]
    draw_means(panels, matrices, order, [*rows.index[rows["tied"]]], new)
    for axes in panels:
        axes.axhline(rows["tied"].sum() - 0.5, color="0.5", linewidth=0.7, linestyle=":")
    for place, row in enumerate(rows.itertuples()):
        panels[-1].text(1.06, place, f"{row.learned} of {row.cases}", fontsize=7, va="center")
    panels[-1].text(1.06, -0.9, "learned", fontsize=7, va="center")
    save(figure, folder, slug)


def draw_means(
    panels: Sequence[Axes],
    matrices: Mapping[str, pd.DataFrame],
    order: Sequence[str],
    in_colour: Collection[str],
    bold: Collection[str] = (),
) -> None:
    """Draw scores [S, E] as pale dots, with the mean and its 95 % interval over configurations.

    Args:
        panels: one for each matrix, with a shared y axis.
        matrices: scores by the label of the x axis; an encoding without a column is left out.
        order: the encodings, from top to bottom.
        in_colour: encodings whose means are blue, the others are dark grey.
        bold: encodings whose names are bold.
    """
    for axes, (words, matrix) in zip(panels, matrices.items(), strict=True):
        for place, label in enumerate(order):
            if label not in matrix:
                continue
            values = matrix[label]
            low, high = interval_of_mean(values.to_numpy())
            colour = "C0" if label in in_colour else "0.25"
            axes.plot(values, [place] * len(values), "o", color="0.72", markersize=2.5)
            axes.plot([low, high], [place, place], color=colour, linewidth=2.2)
            axes.plot(values.mean(), place, "o", color=colour, markersize=4.5)
        axes.set(xlim=(-0.04, 1.04), xlabel=words)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_yticks(range(len(order)), order)
    panels[0].set_ylim(len(order) - 0.4, -0.6)
    for tick_label, label in zip(panels[0].get_yticklabels(), order, strict=True):
        tick_label.set_fontweight("bold" if label in bold else "normal")


def interval_of_mean(values: np.ndarray) -> tuple[float, float]:
    """Return the ends of the 95 % bootstrap interval of the mean over configurations."""
    size = len(values)
    counts = np.random.default_rng(0).multinomial(size, np.full(size, 1 / size), DRAWS)
    low, high = np.quantile(counts @ values / size, [ALPHA / 2, 1 - ALPHA / 2])
    return float(low), float(high)


def draw_effects(effects: pd.DataFrame, order: Sequence[str], folder: Path) -> None:
    """Draw the effect of each factor on the score, with two standard errors to each side.

    Args:
        effects: a row per effect, with the columns ``task, encoding, factor, effect, error``.
        order: the encodings, from top to bottom.
        folder: where ``factors.png`` is written.
    """
    factors = [*dict.fromkeys(effects["factor"])]
    figure = Figure(figsize=(7.2, 1.75 * len(TASKS) + 0.3), layout="constrained")
    grid = figure.subplots(len(TASKS), len(factors), sharex=True, sharey=True)
    for (row, column), axes in np.ndenumerate(grid):
        chosen = (effects["task"] == TASKS[row]) & (effects["factor"] == factors[column])
        of_panel = effects[chosen].set_index("encoding")
        axes.axvline(0, color="0.7", linewidth=0.8)
        for place, label in enumerate(order):
            if label in of_panel.index:
                effect, error = of_panel.loc[label, ["effect", "error"]]
                colour = "C0" if abs(effect) > max(0.02, 2 * error) else "0.6"
                axes.errorbar(
                    effect, place, xerr=2 * error, fmt="o", color=colour, markersize=2.8, elinewidth=1.1
                )
        axes.set(xlim=(-0.85, 0.85), ylim=(len(order) - 0.4, -0.6), xticks=[-0.5, 0, 0.5])
        axes.spines[["top", "right"]].set_visible(False)
        if row == 0:
            axes.set_title(factors[column])
        if column == 0:
            axes.set_ylabel(TASKS[row])
            axes.set_yticks(range(len(order)), order, fontsize=5.5)
    figure.supxlabel("score: high level minus low level", fontsize=8)
    save(figure, folder, "factors")
