"""Papers say that one scheme is better than another: both under one protocol, and whether tests agree."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from pe_experiments.comparison.statistics import ALPHA, holm, permutation_p
from pe_experiments.plots import COLOURS, GREY, drawing, save
from pe_experiments.publishing import markdown_table, read_archive, read_table, with_settings

RESULTS = Path(__file__).parents[1]
STUDIES = ("bank/v1", "replications/orderings", "replications/addition")
TEXT = ("paper", "arxiv", "said", "task", "metric", "better", "worse", "command", "deviation", "found")
AGREES, CONTRARY, OPEN = "agrees", "contrary", "open"
NOT_LEARNED, WAITING = "neither learned it", "not run yet"
LEARNED = 0.5  # mean exact match in distribution
WORDS = {
    "exact_match_at_2x": "exact match at 2x",
    "exact_match_extrapolation": "exact match past training",
    "token_accuracy_extrapolation": "token accuracy past training",
}
COLOUR = {AGREES: COLOURS[0], CONTRARY: COLOURS[1], OPEN: GREY, NOT_LEARNED: "#cccccc"}


def scores() -> pd.DataFrame:
    """The runs of the studies that are there, with ``title``: the task, and of copying its symbols."""
    parts = []
    for study in STUDIES:
        if (RESULTS / study / "runs.csv").exists():
            runs = with_settings(read_archive(RESULTS / study), symbols="task.vocab_size")
            runs["title"] = [
                f"copy, {int(symbols)} symbols" if task == "copy" else task
                for task, symbols in zip(runs["task"], runs["symbols"], strict=True)
            ]
            parts.append(runs)
    return pd.concat(parts, ignore_index=True)


def judged(statements: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """The statements with ``means``, ``learned`` (in distribution), ``difference``, ``p`` and ``verdict``.

    A permutation test over seeds per statement, adjusted by Holm's method over the statements of one paper.
    """
    made = pd.DataFrame([_compared(row, runs) for row in statements.to_dict("records")])
    for _, group in made.groupby("arxiv"):
        made.loc[group.index, "p"] = holm(group["p"].tolist())
    made["verdict"] = [_verdict(row) for row in made.to_dict("records")]
    return made


def _compared(row: dict[Any, Any], runs: pd.DataFrame) -> dict[Any, Any]:
    nothing = float("nan")
    own = [
        runs[(runs["title"] == row["task"]) & (runs["label"] == row[side])] for side in ("better", "worse")
    ]
    if any(part.empty for part in own):
        return row | {"means": (nothing,) * 2, "learned": (nothing,) * 2, "difference": nothing, "p": nothing}
    first, second = (part[row["metric"]].to_numpy(float) for part in own)
    return row | {
        "means": (first.mean(), second.mean()),
        "learned": tuple(part["exact_match_in_distribution"].mean() for part in own),
        "difference": first.mean() - second.mean(),
        "p": permutation_p(first, second),
    }


def _verdict(row: dict[Any, Any]) -> str:
    if np.isnan(row["difference"]):
        return WAITING
    if max(row["learned"]) < LEARNED:
        return NOT_LEARNED
    if row["p"] > ALPHA:
        return OPEN
    return AGREES if row["difference"] > 0 else CONTRARY


def draw(made: pd.DataFrame, folder: Path) -> None:
    """A line per statement that was run, between the means of its two schemes."""
    ready = [row for row in made.to_dict("records") if row["verdict"] != WAITING]
    if not ready:
        return
    with drawing():
        figure = Figure(figsize=(7.2, 0.9 + 0.2 * len(ready)), layout="constrained")
        axes = figure.subplots()
        for line, row in enumerate(ready):
            colour, (better, worse) = COLOUR[row["verdict"]], row["means"]
            axes.plot([better, worse], [line, line], color=colour, linewidth=1.2)
            axes.plot(worse, line, "o", color=colour, markerfacecolor="white", markersize=4.5)
            axes.plot(better, line, "o", color=colour, markersize=4.5)
        papers = [re.sub(r" (et al\.|\().*", "", row["paper"]) for row in ready]
        names = [
            f"{paper}: {row['task']}, {row['better']} > {row['worse']}"
            for paper, row in zip(papers, ready, strict=True)
        ]
        axes.set_yticks(range(len(ready)), names, fontsize=6.3)
        axes.set_ylim(len(ready) - 0.5, -0.5)
        axes.set_xlim(-0.02, 1.02)
        axes.set_xlabel("mean accuracy past the training lengths")
        axes.spines[["top", "right"]].set_visible(False)
        figure.legend(handles=_handles(ready), loc="outside lower center", ncols=6, frameon=False)
        save(figure, folder, "statements")


def _handles(ready: list[dict[Any, Any]]) -> list[Line2D]:
    """What the marks and the colours mean."""
    faces = {"said to be better": GREY, "the other": "white"}
    marks = [
        Line2D([], [], marker="o", ls="none", color=GREY, markerfacecolor=face, ms=4.5, label=what)
        for what, face in faces.items()
    ]
    verdicts = {row["verdict"] for row in ready}
    lines = [Line2D([], [], color=COLOUR[one], label=one) for one in COLOUR if one in verdicts]
    return [*marks, *lines]


def section(made: pd.DataFrame) -> str:
    """The second half of ``README.md``."""
    counts = made["verdict"].value_counts()
    said = ", ".join(f"*{verdict}* {counts[verdict]}" for verdict in (*COLOUR, WAITING) if verdict in counts)
    tables = "\n".join(_table(group) for _, group in made.groupby("arxiv", sort=False))
    return f"""# Which scheme is better, as papers say

![One line per pair of schemes, of which a paper says that one is better](figures/statements.png)

{len(made)} statements, each of one scheme over another on one task, tested at our size: {said}.
*Agrees* and *contrary*: a permutation test over seeds separates the means (p at most {ALPHA:g} by Holm's
method over the statements of one paper). *Open*: it does not. *Neither learned it*: exact match in
distribution is below {LEARNED:g} for both. Runs: those of [the bank](../bank/v1/README.md) (eight seeds
per scheme; results known when the statements were chosen) and, for schemes or tasks not in it, new runs
(five seeds). Learning rates are tuned in the same way, except on addition (the default rate).

{tables}
All statements and commands: [statements.csv](statements.csv). Left out: in-context recall of MAD
([arXiv:2403.17844](https://arxiv.org/abs/2403.17844)), whose values we could not access; CoPE's
selective copying, which is not among our tasks; and Selective RoPE's copying at width 512
([arXiv:2511.17388](https://arxiv.org/abs/2511.17388)), which is too large for two cores.
"""


def _table(group: pd.DataFrame) -> str:
    first = group.iloc[0]
    heading = [
        "task",
        "statement",
        "metric",
        "first (in distribution)",
        "second (in distribution)",
        "p",
        "here",
    ]
    found = f"\n{first['found']}\n" if first["found"] else ""
    return f"""## {first["paper"]}

[arXiv:{first["arxiv"]}](https://arxiv.org/abs/{first["arxiv"]}), {first["said"]}. Differences from the
recipe: {first["deviation"]}.

{markdown_table(heading, map(_row, group.to_dict("records")))}
{found}"""


def _row(row: dict[Any, Any]) -> list[str]:
    both = zip(row["means"], row["learned"], strict=True)
    means = [f"{mean:.2f} ({learned:.2f})" for mean, learned in both]
    measured = ["–"] * 3 if row["verdict"] == WAITING else [*means, f"{row['p']:.3f}"]
    schemes = f"`{row['better']}` over `{row['worse']}`"
    return [row["task"], schemes, WORDS[row["metric"]], *measured, row["verdict"]]


def read(folder: Path) -> pd.DataFrame:
    """``statements.csv`` judged by the studies' runs."""
    statements = read_table(folder / "statements.csv", *TEXT).fillna("")
    return judged(statements, scores())
