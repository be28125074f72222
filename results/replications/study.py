"""Published values beside ours: whether value or order is reproduced. In `statements`: which encoding is better."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from pe_experiments.comparison.statistics import mean_interval, t_interval
from pe_experiments.drawing import legend_below, save, styles
from pe_experiments.published import markdown_table, read_table

from . import kazemnejad, statements

HERE = Path(__file__).parent
PATH, HUANG, TEXT = "2505.16381", "2410.02140", "2505.17083"
ERROR, BITS = "error, %", "bits per byte"
UNITS = {PATH: (ERROR, ERROR), HUANG: (ERROR, ERROR), TEXT: ("nats per token", BITS)}  # published and ours
TIED = {ERROR: 1.0, BITS: 0.03}  # values at most this far apart, published or ours, have no order
CLOSE, FAR = 1.0, 5.0  # percentage points; see the page
LENGTHS = {256: "as trained", 1024: "4x", 2048: "16x"}  # bytes of context that stand for the paper's
RANGES = {"up to 50": (1, 50), "51 to 100": (51, 100), "101 to 150": (101, 150)}  # symbols
STEPS, RATE = 3000, 0.003  # steps and learning rate of PaTH's table
LEARNED = 10.0  # error, %, at the training lengths; above it an encoding has no rank
REPRODUCED, ORDER, OPEN, NOT = "value", "order", "open", "no"
SURE = "could not fail"
ANSWER = """\
Of {all} published values, {judged} could be judged here: **{value} agree in value, {order} in their order\
 among the encodings, and {turned} do not agree**. Of the others, {unlearned} belong to encodings that did\
 not learn the task here, and {sure} could not fail, because everything in their column, published and \
ours, lies within a point of 0."""
KEYS = ["arxiv", "task", "setting", "encoding"]

Found = dict[Any, np.ndarray]  # by `KEYS` a value per seed


def ours() -> Found:
    """Our values: wrong reads of flip-flop, wrong answers of Huang's tasks, bits per byte of text."""
    flips = read_table(HERE / "path" / "errors.csv", "setting")
    flips = flips[flips["steps"].eq(STEPS) & flips["learning_rate"].eq(RATE)]
    flips = flips.assign(arxiv=PATH, task="flip-flop", value=flips["error"])
    curves = read_table(HERE / "huang" / "curves.csv")
    curves["encoding"] = curves["label"].str.replace(r"\([^)]*\)", "", regex=True)
    answers = []
    for setting, (first, last) in RANGES.items():
        own = curves[curves["content_length"].between(first, last)]
        right = own.groupby(["task", "encoding", "seed"], as_index=False)["exact_match"].mean()
        answers.append(right.assign(arxiv=HUANG, setting=setting, value=100 * (1 - right["exact_match"])))
    runs, lines = (read_table(HERE.parent / "text" / f"{name}.csv") for name in ("runs", "text"))
    lines = lines[(lines["windows"] == "non_overlapping") & (lines["slice"] == "all")]
    bits = lines.merge(runs[["name", "label"]], on="name")
    bits = bits.rename(columns={"label": "encoding", "bits_per_byte": "value"})
    bits = bits.assign(arxiv=TEXT, task="next token", setting=bits["length"].map(LENGTHS))
    everything: Any = pd.concat([flips, *answers, bits]).groupby(KEYS)
    return {key: own["value"].to_numpy() for key, own in everything}


def ledger() -> pd.DataFrame:
    """``ledger.csv``, judged."""
    table = read_table(HERE / "ledger.csv", "arxiv", "table", "setting", "command", "paper")
    return judged(table, ours())


def judged(ledger: pd.DataFrame, found: Found) -> pd.DataFrame:
    """The ledger with columns ``values_`` (ours, by seed), ``mean``, ``trained`` (as trained, listed first), ``verdict``."""
    values: Any = [found[key] for key in ledger[KEYS].itertuples(index=False, name=None)]
    made = ledger.assign(values_=values, mean=[np.mean(v) for v in values])
    made["trained"] = made.groupby(["arxiv", "task", "encoding"])["mean"].transform("first")
    groups = dict(list(made.groupby(KEYS[:3])))
    verdicts = [
        _verdict(groups[row["arxiv"], row["task"], row["setting"]], row) for _, row in made.iterrows()
    ]
    return made.assign(verdict=verdicts)


def _verdict(group: pd.DataFrame, row: pd.Series) -> str:
    unit = UNITS[row["arxiv"]][1]
    if unit == ERROR and group[["published", "mean"]].to_numpy().max() <= TIED[unit]:
        return SURE
    if unit == ERROR and row["trained"] > LEARNED:
        return f"{NOT}: not learned"
    near = max(CLOSE, min(FAR, row["published"] / 4))
    if unit == ERROR and abs(row["mean"] - row["published"]) <= near:
        return REPRODUCED
    others = group[group["encoding"] != row["encoding"]]
    others = others[~(others["trained"] > LEARNED)] if unit == ERROR else others
    apart = others[(others["published"] - row["published"]).abs() > TIED[unit]]
    if apart.empty:
        return f"{NOT}: in value; it has no order" if unit == ERROR else OPEN
    mine, theirs = apart["mean"] - row["mean"], apart["published"] - row["published"]
    if turned := apart["encoding"][(mine * theirs < 0) & (mine.abs() > TIED[unit])].tolist():
        return f"{NOT}: against {', '.join(turned)}"
    return OPEN if (mine.abs() <= TIED[unit]).any() else ORDER


def pages(folder: Path) -> None:
    """Published errors and ours, hollow where the encoding did not learn the task; Kazemnejad et al.'s curves."""
    made = ledger()
    made = made[[UNITS[paper][1] == ERROR for paper in made["arxiv"]]]
    figure, looks = Figure(figsize=(4.6, 3.6), layout="constrained"), styles(sorted(set(made["encoding"])))
    axes = figure.subplots()
    axes.axline((0, 0), (1, 1), color="0.7", linewidth=1)
    for (encoding, bad), own in made.groupby(["encoding", made["trained"] > LEARNED]):
        colour, marker = looks[str(encoding)]
        face = "none" if bad else colour
        axes.scatter(own["published"], own["mean"], s=28, c=face, marker=marker, edgecolors=colour)
    axes.set(xscale="symlog", yscale="symlog", xlim=(-0.3, 100), ylim=(-0.3, 100), aspect="equal")
    axes.set(xticks=(ticks := [0, 1, 10, 100]), xticklabels=ticks, yticks=ticks, yticklabels=ticks)
    axes.set(xlabel="published error (%)", ylabel="our error (%)")
    legend_below(figure, looks, looks)
    save(figure, folder / "figures", "answer")
    kazemnejad.draw(folder / "figures")


def in_words(row: pd.Series) -> list[str]:
    """Our mean with its 95 % interval, Gaffke's of errors, Student's of losses; and the number of seeds."""
    scale = 100 if UNITS[row["arxiv"]][1] == ERROR else 1
    made = (mean_interval if scale > 1 else t_interval)(row["values_"] / scale)
    return [f"{row['mean']:.2f} [{scale * made.low:.2f}, {scale * made.high:.2f}]", str(len(row["values_"]))]


def table(group: pd.DataFrame) -> str:
    """One paper."""
    theirs, mine = UNITS[group["arxiv"].iloc[0]]
    heading = ["task", "inputs", "encoding", f"published ({theirs})", f"ours ({mine})", "seeds", "agrees"]
    rows = [
        [row["task"], row["setting"], f"`{row['encoding']}`", f"{row['published']:g}", *in_words(row), row["verdict"]]
        for _, row in group.iterrows()
    ]  # fmt: skip
    return markdown_table(heading, rows)


def blocks(folder: Path) -> dict[str, str]:
    """How many values are reproduced, a table per paper; and the same of the statements."""
    del folder
    made = ledger()
    return {
        "answer": ANSWER.format_map(counts(made)),
        **{str(arxiv): table(group) for arxiv, group in made.groupby("arxiv")},
        **statements.blocks(statements.read()),
        **kazemnejad.blocks(),
    }


def counts(made: pd.DataFrame) -> dict[str, int]:
    """How many published values have which verdict."""
    verdicts, unlearned = made["verdict"], made["verdict"].str.endswith("not learned")
    found = {"all": len(made), "value": (verdicts == REPRODUCED).sum(), "order": (verdicts == ORDER).sum()}
    found |= {
        "unlearned": unlearned.sum(),
        "sure": (verdicts == SURE).sum(),
        "open": (verdicts == OPEN).sum(),
    }
    found["turned"] = (verdicts.str.startswith(NOT) & ~unlearned).sum()
    return found | {"judged": found["value"] + found["order"] + found["turned"]}
