"""Papers say that one encoding is better than others: tested under conditions near the paper's."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pe_experiments.comparison.statistics import ALPHA, holm, permutation_p
from pe_experiments.published import markdown_table, mean_in_words, read_archive, read_table, with_settings

HERE = Path(__file__).parent
STUDIES = ("conditions", "ruoss", "ruoss_long")
TEXT = ("paper", "arxiv", "task", "metric", "better", "worse", "command")
AGREES, CONTRARY, OPEN = "agrees", "contrary", "open"
NOT_LEARNED, WAITING = "not learned", "not run yet"
SEEDS = 5  # of each encoding; fewer are not judged
LEARNED = 0.5  # share of the seeds that solved the training lengths
WORDS = {"exact_match_at_2x": "exact match at 2x", "exact_match_extrapolation": "exact match past training",
         "token_accuracy_extrapolation": "token accuracy past training"}  # fmt: skip
HEADING = ("task", "pair", "metric", "first (in distribution)", "second (in distribution)", "p", "here")

Row = dict[Any, Any]


def published() -> pd.DataFrame:
    """The runs of the studies that are published, `titled`."""
    columns = {"layers": "model.num_layers", "symbols": "task.vocab_size", "steps": "training.steps"}
    return pd.concat([titled(with_settings(read_archive(HERE / name), **columns)) for name in STUDIES])


def read() -> pd.DataFrame:
    """``statements.csv`` judged by the `published` runs."""
    return judged(read_table(HERE / "statements.csv", *TEXT), published())


def gates() -> str:
    """Exact match with each initial gate of FoX, by task."""
    runs, measured = published(), ["exact_match_in_distribution", "exact_match_at_2x"]
    groups: Any = runs[runs["label"].str.startswith("fox")].groupby(["title", "label"])
    rows = [[of, f"`{name}`", *map(mean_in_words, own[measured].T.values)] for (of, name), own in groups]
    heading = ["task", "encoding", "exact match in distribution", "at 2x"]
    return markdown_table(heading, rows)


def titled(runs: pd.DataFrame) -> pd.DataFrame:
    """With a column ``title``: ``copy of 10 symbols to 20, 2 layers``, of reversal with the steps."""
    of = runs["symbols"].map(" of {:g} symbols".format).where(runs["task"] == "copy", "")
    rest = runs["max_length"].map(" to {:g}, ".format) + runs["layers"].map("{:g} layers".format)
    steps = runs["steps"].map(", {:,g} steps".format).where(runs["task"] == "reverse", "")
    return runs.assign(title=runs["task"] + of + rest + steps)


def judged(statements: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """By pair, with ``means``, ``within`` the training lengths, ``p`` (Holm, by statement), ``verdict``."""
    made = pd.DataFrame([_compared(row, runs) for row in statements.to_dict("records")])
    for _, group in made.groupby(["arxiv", "task"]):
        made.loc[group.index, "p"] = holm(group["p"].tolist())
    tested = made["verdict"].isin([AGREES, CONTRARY])
    return made.assign(verdict=made["verdict"].mask(tested & ~(made["p"] <= ALPHA), OPEN))


def _compared(row: Row, runs: pd.DataFrame) -> Row:
    of = runs[runs["title"] == row["task"]]
    first, second = (of[of["label"] == row[side]] for side in ("better", "worse"))
    if min(len(first), len(second)) < SEEDS:
        return row | {"means": (), "within": (), "p": np.nan, "verdict": WAITING}
    columns = {"means": row["metric"], "within": "exact_match_in_distribution"}
    made = row | {name: (first[of].mean(), second[of].mean()) for name, of in columns.items()}
    if min(part["solved_in_distribution"].eq(True).mean() for part in (first, second)) < LEARNED:
        return made | {"p": np.nan, "verdict": NOT_LEARNED}
    made["p"] = permutation_p(*(part[row["metric"]].to_numpy(float) for part in (first, second)))
    return made | {"verdict": AGREES if made["means"][0] > made["means"][1] else CONTRARY}


def as_one(pairs: Collection[str]) -> str:
    """The verdict on a statement about several pairs, once all have run: it agrees only if all do."""
    for one in (WAITING, CONTRARY):
        if one in pairs:
            return one
    return OPEN if len(set(pairs)) > 1 else next(iter(pairs))


def blocks(made: pd.DataFrame) -> dict[str, str]:
    """How the statements turn out, and a table of pairs per paper."""
    groups: Any = made.groupby(["paper", "task"], sort=False)["verdict"]
    rows = [[paper, task, str(len(own)), as_one(own.tolist())] for (paper, task), own in groups]
    whole = markdown_table(["paper", "task", "pairs", "here"], rows)
    papers = {str(paper): _table(group) for paper, group in made.groupby("arxiv")}
    return {"statements": whole, "gates": gates()} | papers


def _table(statements: pd.DataFrame) -> str:
    return markdown_table(HEADING, map(_row, statements.to_dict("records")))


def _row(row: Row) -> list[str]:
    both = zip(row["means"], row["within"], strict=True)
    p = "–" if np.isnan(row["p"]) else f"{row['p']:.3f}"
    measured = [*(f"{mean:.2f} ({within:.2f})" for mean, within in both), p] if row["means"] else "–––"
    about = [row["task"], f"`{row['better']}` over `{row['worse']}`", WORDS[row["metric"]]]
    return [*about, *measured, row["verdict"]]
