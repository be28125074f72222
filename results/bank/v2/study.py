"""The second bank: schemes x tasks over paired settings; what holds over them, and which setting turns the order around."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from pe_experiments.comparison import Runs
from pe_experiments.comparison.words import listed, number
from pe_experiments.drawing import save
from pe_experiments.published import markdown_table, read_archive, with_settings
from pe_experiments.published.settings import FLOORS, NOT_LEARNED, NOT_SEPARATED, best, outcomes
from pe_experiments.tasks.state import FlipFlop

CONTROL = "majority"
QUESTIONS = {
    "copy": "copy all symbols",
    "lag": "repeat the symbol three back",
    "kth": "find the third symbol",
    "induction": "recall what followed a mark",
    "flip_flop": "recall the bit written last",
}
FACTORS = {"layers": "model.num_layers", "symbols": "", "training length": "training.max_length",
           "blocks": "model.norm", "heads": "model.num_heads"}  # fmt: skip
SYMBOLS = ("task.vocab_size", "task.fillers", "task.ignore")  # more of them is harder
DRAWN, TURNS, BOOTSTRAPS = 20_000, 0.02, 10_000


def measure(folder: Path, runs: Runs, results_dir: Path) -> None:
    """The floors of every task, setting and length."""
    del results_dir
    points = runs.curves.drop_duplicates(["task", "seed", "content_length"])
    points = points.merge(with_settings(runs, ignore="task.ignore")[["name", "ignore"]], on="name")
    rows = [
        {"task": p.task, "setting": p.seed, "content_length": p.content_length, "floor": _floor(p)}
        for p in points.itertuples()
    ]
    pd.DataFrame(rows).to_csv(folder / FLOORS, index=False)


def _floor(point: Any) -> float:
    """Exact match without order where an answer is one token; on `flip_flop` that of the majority of bits so far."""
    if point.task == "flip_flop":
        return majority_of_bits(point.ignore, point.content_length)
    one = point.answer_tokens == 1 and point.task != CONTROL  # which a bag of tokens solves
    return float(point.bag_ceiling) if one else 0.0


def majority_of_bits(ignore: float, length: int) -> float:
    """Estimated exact match of answering every read with the bit written more often so far; ties are guessed."""
    task, draw = FlipFlop(ignore), torch.Generator().manual_seed(0)
    inputs, targets = (x.view(DRAWN, -1, 2) for x in task.sample(length, DRAWN, draw))
    written, reads = inputs[..., 0] == task.write, targets[..., 0] >= 0
    lead = ((2 * inputs[..., 1] - 1) * written).cumsum(dim=1)  # ones less zeros
    right = torch.where(lead == 0, 0.5, ((lead > 0) == (targets[..., 0] == 1)).double())
    return float(torch.where(reads, right, 1.0).prod(dim=1).mean())


def found(folder: Path) -> tuple[Runs, pd.DataFrame]:
    """The runs, and the outcomes with a column per factor, 0 or 1."""
    runs = read_archive(folder)
    table = outcomes(runs, pd.read_csv(folder / FLOORS))
    keys = {name: key for name, key in FACTORS.items() if key} | {key: key for key in SYMBOLS}
    levels = with_settings(runs, **keys).set_index("name")
    levels["symbols"] = levels[[*SYMBOLS]].bfill(axis=1).iloc[:, 0]
    for name in FACTORS:  # the higher of its two values; of blocks those of Llama
        levels[name] = levels.groupby("task")[name].transform(
            lambda own: own.map(str).rank(method="dense") > 1
        )
    return runs, table.join(levels[[*FACTORS]], on="name")


def order(table: pd.DataFrame) -> tuple[list[str], list[str]]:
    """Schemes by name, since no mean over tasks ranks them; tasks, the control last."""
    return sorted(set(table["label"])), [t for t in (*QUESTIONS, CONTROL) if t in set(table["task"])]


def pages(folder: Path) -> None:
    """Two figures: scores with how many settings were learned, and what each factor does to them."""
    _, table = found(folder)
    schemes, tasks = order(table)
    figure = Figure(figsize=(7.2, 0.9 + 0.27 * len(schemes)), layout="constrained")
    axes, means = figure.subplots(), np.full((len(schemes), len(tasks)), np.nan)
    cells: Any = table.groupby(["label", "task"])
    for (scheme, task), own in cells:
        row, column, known = schemes.index(scheme), tasks.index(task), own[own["learned"]]["score"]
        means[row, column] = mean = known.mean() if len(known) else np.nan
        some = "" if len(known) == len(own) else f" ({len(known)} of {len(own)})"
        text = f"{number(mean)}{some}".removeprefix("– ")
        axes.text(
            column, row, text, ha="center", va="center", fontsize=7, color="white" if mean > 0.55 else "black"
        )
    image = axes.imshow(means, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(len(tasks)), tasks)
    axes.set_yticks(range(len(schemes)), schemes)
    figure.colorbar(image, ax=axes, label="score, 1x to 8x")
    save(figure, folder / "figures", "answer")
    _draw_factors(table, schemes, [task for task in tasks if task != CONTROL], folder / "figures")


def effect(rows: pd.DataFrame, factor: str) -> float:
    """Mean score at the higher value of a factor less that at the lower, of settings that were learned."""
    means = rows[rows["learned"]].groupby(factor)["score"].mean()
    return float(means.get(True, np.nan) - means.get(False, np.nan))


def _draw_factors(table: pd.DataFrame, schemes: Sequence[str], tasks: Sequence[str], folder: Path) -> None:
    figure = Figure(figsize=(7.2, 1.1 + 0.2 * len(schemes)), layout="constrained")
    several = figure.subplots(1, len(tasks), sharey=True, squeeze=False)[0]
    for axes, task in zip(several, tasks, strict=True):
        rows = table[table["task"] == task]
        made = [[effect(rows[rows["label"] == scheme], factor) for factor in FACTORS] for scheme in schemes]
        image = axes.imshow(np.array(made), cmap="RdBu", vmin=-1, vmax=1, aspect="auto")
        axes.set_title(task)
        axes.set_xticks(range(len(FACTORS)), FACTORS, rotation=90)
    several[0].set_yticks(range(len(schemes)), schemes)
    figure.colorbar(image, ax=several, label="score: high less low")
    save(figure, folder, "factors")


def blocks(folder: Path) -> dict[str, str]:
    """The answer per task, all scores, what was learned, what turns the order around, and what it took."""
    runs, table = found(folder)
    schemes, tasks = order(table)
    settings = table["setting"].nunique()
    said = [sentence(task, table[table["task"] == task]) for task in tasks if task != CONTROL]
    scope = f"{len(schemes)} schemes, {len(tasks)} tasks (`{CONTROL}` is a control), {settings} of 12 settings, two rates each:"
    seconds = (runs.runs["seconds_per_step"] * with_settings(runs, s="training.steps")["s"]).mean()
    learned = table["learned"].mean()
    effort = f"{len(runs.runs):,} runs ({seconds:.0f} s of training each on one core, on average); {learned:.0%} of the cells are learned."
    return {
        "answer": "\n".join([scope, "", *said]),
        "effort": effort.replace("%", " %"),
        **{column: _values(table, column, words, schemes, tasks) for column, words in MEASURES.items()},
        "differences": _differences(table, tasks),
    }


MEASURES = {"score": "score, 1x to 8x", "at_2x": "exact match at 2x", "at_4x": "exact match at 4x"}


def _values(
    table: pd.DataFrame, column: str, words: str, schemes: Sequence[str], tasks: Sequence[str]
) -> str:
    """Mean over the settings that were learned, the lowest and the highest; learned in how many."""
    cells: dict[Any, str] = {}
    for key, own in table.groupby(["label", "task"]):
        known = own.loc[own["learned"], column]
        span = (
            f"{number(known.mean())} ({number(known.min())} to {number(known.max())})" if len(known) else "–"
        )
        cells[key] = span + (
            "" if own["learned"].all() else f", learned in {own['learned'].sum()} of {len(own)}"
        )
    rows = [[scheme, *(cells.get((scheme, task), "–") for task in tasks)] for scheme in schemes]
    return markdown_table([words, *tasks], rows)


def sentence(task: str, rows: pd.DataFrame) -> str:
    """The highest mean on a task, what is not separated from it, and which factor turns it around."""
    first, others = best(rows)
    start = f"- *{QUESTIONS[task]}* (`{task}`): "
    if not first:
        return f"{start}no scheme learned it in three quarters of the settings."
    own = rows[(rows["label"] == first) & rows["learned"]]["score"]
    text = f"{start}`{first}` is highest, {number(own.mean())} ({number(own.min())} to {number(own.max())})"
    for verdict, words in (
        (NOT_SEPARATED, "not separated from it"),
        (NOT_LEARNED, "not learned often enough to compare"),
    ):
        if names := [f"`{name}`" for name, one in others.items() if one.verdict == verdict]:
            text += f"; {words}: {listed(names)}"
    return f"{text}.{_turned(rows, first)}"


def _turned(rows: pd.DataFrame, first: str) -> str:
    """Whether the sign of the difference between the two highest means depends on a factor."""
    means = rows[rows["learned"]].groupby("label")["score"].mean().drop(first).sort_values()
    if means.empty:
        return ""
    second = str(means.index[-1])
    wide = rows[rows["learned"]].pivot_table("score", ["setting", *FACTORS], "label").reset_index()
    wide = wide.assign(apart=wide[first] - wide.get(second, np.nan)).dropna(subset="apart")
    turning = []
    for factor in FACTORS:
        by = wide.groupby(factor)["apart"].mean()
        if len(by) == 2 and by.min() < -TURNS and by.max() > TURNS:
            turning.append(factor)
    return f" Whether it or `{second}` is higher depends on {listed(turning)}." if turning else ""


def _differences(table: pd.DataFrame, tasks: Sequence[str]) -> str:
    rows = []
    for task in tasks:
        first, others = best(table[table["task"] == task])
        for name, one in others.items() if task != CONTROL else ():
            shown = " ".join(
                [number(one.interval.estimate), f"[{number(one.interval.low)}, {number(one.interval.high)}]"]
            )
            tested = one.verdict != NOT_LEARNED
            rows.append(
                [
                    task,
                    first,
                    name,
                    shown if tested else "–",
                    str(one.settings),
                    f"{one.p:.2g}" if tested else "–",
                    one.verdict,
                ]
            )
    return markdown_table(["task", "highest", "other", "difference", "settings", "p", "verdict"], rows)
