"""What the bank says: per task the best schemes, and the tables behind it."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from pe_experiments.bank.bank import METRIC
from pe_experiments.comparison import Runs
from pe_experiments.comparison.protocols import sections_of
from pe_experiments.comparison.statistics import mean_interval
from pe_experiments.comparison.words import listed, number
from pe_experiments.publishing import markdown_table

HALF = 0.5
LEAST = 0.01  # a mean that is worth naming
# What a sentence is about: a task under its title in the figure.
QUESTIONS = {
    "lag": "repeat the symbol three back",
    "induction": "recall what followed a mark",
    "flip_flop": "recall the bit that was written last",
    "kth": "find the third symbol",
    "copy, 10 symbols": "copy, over a vocabulary of ten",
    "copy, 100 symbols": "copy, over a vocabulary of a hundred",
    "reverse": "copy backwards",
}


def titled(runs: Runs) -> pd.DataFrame:
    """The runs with the title of their task, ``copy, 100 symbols``."""
    titles = {s.protocol: ", ".join([s.task, *map(_in_words, s.told_apart_by)]) for s in sections_of(runs)}
    return runs.runs.assign(title=runs.runs["protocol"].map(titles))


def _in_words(setting: str) -> str:
    key, _, value = setting.partition("=")
    return f"{value} symbols" if key == "vocab_size" else setting


def order(table: pd.DataFrame) -> tuple[list[str], list[str]]:
    """Schemes, the best first, and tasks, the easiest last."""
    means = table.groupby(["label", "title"])[METRIC].mean().unstack()
    schemes = means.mean(axis=1).sort_values(ascending=False, kind="stable").index
    return [str(name) for name in schemes], [str(name) for name in means.mean().sort_values().index]


def sentences(table: pd.DataFrame, pairs: pd.DataFrame) -> str:
    """Per task the schemes with the highest means, and which of them the tests do not separate."""
    said = [
        _sentence(title, question, runs, pairs[pairs["protocol"] == runs["protocol"].iloc[0]])
        for title, question in QUESTIONS.items()
        if len(runs := table[table["title"] == title])
    ]
    return "\n".join(said)


def _sentence(title: str, question: str, runs: pd.DataFrame, pairs: pd.DataFrame) -> str:
    solved = runs.groupby("label")["solved_in_distribution"].apply(lambda seeds: seeds.eq(True).mean())
    means = runs.groupby("label")[METRIC].mean().sort_values(ascending=False, kind="stable")
    unlearned = [str(name) for name in means.index if solved[name] < HALF]
    means = means.drop(unlearned)
    start = f"- *{question}* (`{title}`): "
    end = f". Not learned: {_named(unlearned)}." if unlearned else "."
    if means.empty:
        return start + "no scheme learned it."
    if means.iloc[0] < HALF:
        highest = (
            f"; `{means.index[0]}` is highest ({number(means.iloc[0])})" if means.iloc[0] > LEAST else ""
        )
        return f"{start}no scheme reaches {HALF:g}{highest}{end}"
    with_best = pairs[(pairs["scheme"] == means.index[0]) | (pairs["other"] == means.index[0])]
    apart = {*with_best.loc[with_best["separated"].eq(True), ["scheme", "other"]].to_numpy().ravel()}
    best = [str(name) for name in means.index if name not in apart or name == means.index[0]]
    span = " to ".join(dict.fromkeys(number(means[name]) for name in (best[-1], best[0])))
    rest = means.drop(best)
    then = f"; the best of the others: `{rest.index[0]}` ({number(rest.iloc[0])})" if len(rest) else ""
    return f"{start}**{_named(best)}** ({span}){then}{end}"


def _named(schemes: Sequence[str]) -> str:
    return listed([f"`{scheme}`" for scheme in schemes])


def tuning_table(runs: Runs, schemes: Sequence[str], tasks: Sequence[str]) -> str:
    """The learning rate chosen per scheme and task; an asterisk where it is the edge of those tried."""
    names = {}
    for choice in runs.tuning:
        tried = sorted(map(float, choice["tried"]))
        edge = "*" if float(choice["chosen"]) in (tried[0], tried[-1]) else ""
        title = choice["task"]
        if title not in tasks:
            title += f", {choice['settings']['vocab_size']} symbols"
        names[choice["scheme"], title] = f"{float(choice['chosen']):g}{edge}"
    rows = [[scheme, *(names.get((scheme, task), "–") for task in tasks)] for scheme in schemes]
    return markdown_table(["learning rate", *tasks], rows)


def values_table(table: pd.DataFrame, schemes: Sequence[str], tasks: Sequence[str]) -> str:
    """Exact match at 2x: the mean with its interval."""
    cells = {key: _with_interval(v) for key, v in table.groupby(["label", "title"])[METRIC]}
    rows = [[scheme, *(cells.get((scheme, task), "–") for task in tasks)] for scheme in schemes]
    return markdown_table(["exact match at 2x", *tasks], rows)


def _with_interval(values: pd.Series) -> str:
    interval = mean_interval(values.to_numpy(float))
    return f"{number(interval.estimate)} [{number(interval.low)}, {number(interval.high)}]"
