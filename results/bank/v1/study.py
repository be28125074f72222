"""The first bank: schemes x tasks under one protocol, each tuned, eight seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from pe_experiments.comparison import Runs
from pe_experiments.comparison.statistics import ALPHA, holm
from pe_experiments.comparison.words import listed, number, seeds_in_words
from pe_experiments.drawing import save
from pe_experiments.evaluation.summary import SOLVED
from pe_experiments.published import compare_archived, markdown_table, read_archive
from pe_experiments.published.pages import mean_in_words, rate_in_words, titled

METRIC = "exact_match_at_2x"
CONTROL = "majority"
HALF = 0.5
LEAST = 0.01  # a mean that is worth naming
# What a sentence is about: a task under its title in the figure.
QUESTIONS = {
    "induction": "recall what followed a mark",
    "flip_flop": "recall the bit that was written last",
    "lag": "repeat the symbol three back",
    "kth": "find the third symbol",
    "copy, 10 symbols": "copy, over a vocabulary of ten",
    "copy, 100 symbols": "copy, over a vocabulary of a hundred",
    "reverse": "copy backwards",
}


def pages(folder: Path) -> None:
    """The comparison, and the figure of the answer."""
    compare_archived(folder, METRIC)
    table = titled(read_archive(folder))
    matrix(table, *order(table), folder / "figures")


def matrix(table: pd.DataFrame, schemes: list[str], tasks: list[str], folder: Path) -> None:
    """Colour: the mean over seeds at twice the training length; in the cell: k of n seeds that reach 0.9."""
    means = np.full((len(schemes), len(tasks)), np.nan)
    figure = Figure(figsize=(1.9 + 0.62 * len(tasks), 1.1 + 0.24 * len(schemes)), layout="constrained")
    axes = figure.subplots()
    axes.set_facecolor("0.85")  # not learned
    cells: Any = table.groupby(["title", "label"])
    for (task, scheme), runs in cells:
        row, column = schemes.index(scheme), tasks.index(task)
        learned = runs["solved_in_distribution"].eq(True).mean() >= HALF
        means[row, column] = mean = runs[METRIC].mean() if learned else np.nan
        text = f"{(runs[METRIC] >= SOLVED).sum()} of {len(runs)}" if learned else "not\nlearned"
        look: Any = {"style": "normal" if learned else "italic", "color": "white" if mean > 0.55 else "black"}
        axes.text(column, row, text, ha="center", va="center", fontsize=6, linespacing=0.9, **look)
    image = axes.imshow(means, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(len(tasks)), [task.replace(", ", "\n") for task in tasks], rotation=30, ha="right")
    axes.set_yticks(range(len(schemes)), schemes)
    axes.xaxis.tick_bottom()
    figure.colorbar(image, ax=axes, label="exact match at 2x, mean over seeds")
    save(figure, folder, "answer")


def blocks(folder: Path) -> dict[str, str]:
    """The answer, all values and rates, and what it took."""
    runs = read_archive(folder)
    table = titled(runs)
    schemes, tasks = order(table)
    pairs = pd.read_csv(folder / "pairs.csv")
    said = [sentence(title, table[table["title"] == title], pairs) for title in QUESTIONS if title in tasks]
    seeds = seeds_in_words(table.groupby(["label", "title"]).size())
    steps = pd.Series([saved["identity"]["trained"]["training"]["steps"] for saved in runs.saved.values()])
    seconds = (table.set_index("name")["seconds_per_step"][list(runs.saved)].to_numpy() * steps).mean()
    tuned = sum(len(choice["losses"]) for choice in runs.tuning)
    low = [one for one in said if "no scheme reaches" in one]  # in one line
    said = [*(one for one in said if one not in low), "- " + " ".join(one[2:] for one in low)]
    scope = f"{len(schemes)} schemes, {len(tasks)} tasks (`{CONTROL}` is a control), {seeds} each:"
    return {
        "answer": "\n".join([scope, "", *said]),
        "values": values_table(table, schemes, tasks),
        "rates": tuning_table(runs, schemes, tasks),
        "effort": f"{len(table):,} runs reported ({seconds:.0f} s of one core each, on average) and {tuned:,} to tune.",
    }


def order(table: pd.DataFrame) -> tuple[list[str], list[str]]:
    """Schemes, the best first, and tasks, the easiest last."""
    means = table.groupby(["label", "title"])[METRIC].mean().unstack()
    schemes = means.mean(axis=1).sort_values(ascending=False, kind="stable").index
    return [str(name) for name in schemes], [str(name) for name in means.mean().sort_values().index]


def sentence(title: str, runs: pd.DataFrame, pairs: pd.DataFrame) -> str:
    """The schemes with the highest means on a task, which of them the tests do not separate."""
    pairs = pairs[pairs["protocol"] == runs["protocol"].iloc[0]]
    solved = runs.groupby("label")["solved_in_distribution"].apply(lambda seeds: seeds.eq(True).mean())
    means = runs.groupby("label")[METRIC].mean().sort_values(ascending=False, kind="stable")
    unlearned = [str(name) for name in means.index if solved[name] < HALF]
    means = means.drop(unlearned)
    start = f"- *{QUESTIONS[title]}* (`{title}`): "
    end = f". Not learned: {_named(unlearned)}." if unlearned else "."
    if means.empty:
        return start + "no scheme learned it."
    if means.iloc[0] < HALF:
        highest = f"; `{means.index[0]}` is highest ({number(means.iloc[0])})"
        return f"{start}no scheme reaches {HALF:g}{highest if means.iloc[0] > LEAST else ''}{end}"
    two = pairs[["scheme", "other"]]
    tests = pairs[two.eq(means.index[0]).any(axis=1) & two.isin(means.index).all(axis=1)]
    apart = {
        *tests.loc[[p <= ALPHA for p in holm(tests["p"].tolist())], ["scheme", "other"]].to_numpy().ravel()
    }
    best = [str(name) for name in means.index if name not in apart or name == means.index[0]]
    span = " to ".join(dict.fromkeys(number(means[name]) for name in (best[-1], best[0])))
    lowest = runs.loc[runs["label"].isin(best), METRIC].min()
    span += f", the lowest seed {number(lowest)}" if number(lowest) != number(means[best[-1]]) else ""
    rest = means.drop(best)
    then = f"; significantly lower: `{rest.index[0]}` ({number(rest.iloc[0])})" if len(rest) else ""
    then += f" and the {len(rest) - 1} others that learned it" if len(rest) > 1 else ""
    return f"{start}**{_named(best)}** ({span}){then}{end}"


def _named(schemes: Sequence[str]) -> str:
    return listed([f"`{scheme}`" for scheme in schemes])


def tuning_table(runs: Runs, schemes: Sequence[str], tasks: Sequence[str]) -> str:
    """The learning rate chosen per scheme and task; an asterisk where it is the edge of those tried."""
    cells = {}
    for choice in runs.tuning:
        title = choice["task"]
        if title not in tasks:
            title += f", {choice['settings']['vocab_size']} symbols"
        cells[choice["scheme"], title] = rate_in_words(choice)
    return _table("learning rate", cells, schemes, tasks)


def values_table(table: pd.DataFrame, schemes: Sequence[str], tasks: Sequence[str]) -> str:
    """Exact match at 2x: the mean with its interval."""
    cells = {key: mean_in_words(values) for key, values in table.groupby(["label", "title"])[METRIC]}
    return _table("exact match at 2x", cells, schemes, tasks)


def _table(what: str, cells: Mapping[Any, str], schemes: Sequence[str], tasks: Sequence[str]) -> str:
    rows = [[scheme, *(cells.get((scheme, task), "–") for task in tasks)] for scheme in schemes]
    return markdown_table([what, *tasks], rows)
