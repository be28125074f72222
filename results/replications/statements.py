"""Papers say that one scheme is better than another: both under one protocol, and whether tests agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pe_experiments.comparison.statistics import ALPHA, holm, permutation_p
from pe_experiments.published import markdown_table, read_archive, read_table, titled

RESULTS = Path(__file__).parents[1]
STUDIES = ("bank/v1", "replications/orderings", "replications/addition")
TEXT = ("paper", "arxiv", "task", "metric", "better", "worse", "command")
AGREES, CONTRARY, OPEN = "agrees", "contrary", "open"
NOT_LEARNED, WAITING = "not learned", "not run yet"
LEARNED = 0.5  # share of the seeds that solved the training lengths
WORDS = {
    "exact_match_at_2x": "exact match at 2x",
    "exact_match_extrapolation": "exact match past training",
    "token_accuracy_extrapolation": "token accuracy past training",
}
HEADING = (
    "task", "statement", "metric", "first (in distribution)", "second (in distribution)", "p", "here"
)  # fmt: skip

Row = dict[Any, Any]


def read() -> pd.DataFrame:
    """``statements.csv`` judged by the runs of the studies."""
    runs = pd.concat([titled(read_archive(RESULTS / study)) for study in STUDIES], ignore_index=True)
    return judged(read_table(RESULTS / "replications" / "statements.csv", *TEXT), runs)


def judged(statements: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """With ``means``, ``within`` the training lengths, ``p`` (by Holm per paper) and ``verdict``."""
    made = pd.DataFrame([_compared(row, runs) for row in statements.to_dict("records")])
    for _, group in made.groupby("arxiv"):
        made.loc[group.index, "p"] = holm(group["p"].tolist())
    return made.assign(verdict=made["verdict"].mask(made["p"] > ALPHA, OPEN))


def _compared(row: Row, runs: pd.DataFrame) -> Row:
    of = runs[runs["title"] == row["task"]]
    first, second = (of[of["label"] == row[side]] for side in ("better", "worse"))
    if first.empty or second.empty:
        return row | {"means": (), "within": (), "p": np.nan, "verdict": WAITING}
    columns = {"means": row["metric"], "within": "exact_match_in_distribution"}
    made = row | {name: (first[of].mean(), second[of].mean()) for name, of in columns.items()}
    if min(part["solved_in_distribution"].eq(True).mean() for part in (first, second)) < LEARNED:
        return made | {"p": np.nan, "verdict": NOT_LEARNED}
    made["p"] = permutation_p(*(part[row["metric"]].to_numpy(float) for part in (first, second)))
    return made | {"verdict": AGREES if made["means"][0] > made["means"][1] else CONTRARY}


def blocks(made: pd.DataFrame) -> dict[str, str]:
    """How many can be decided, these, and a table per paper."""
    counts = made["verdict"].value_counts()
    said = [f"*{verdict}* {counts[verdict]}" for verdict in (AGREES, CONTRARY, OPEN) if verdict in counts]
    left = [f"in {counts[verdict]} *{verdict}*" for verdict in (NOT_LEARNED, WAITING) if verdict in counts]
    decided = made[made["p"].notna()]
    tables = {str(paper): _table(group) for paper, group in made.groupby("arxiv")}
    head = f"Of {len(made)} statements {len(decided)} can be decided ({', '.join(said)}); {', '.join(left)}."
    return tables | {"statements": f"{head}\n\n{_table(decided)}"}


def _table(statements: pd.DataFrame) -> str:
    return markdown_table(HEADING, map(_row, statements.to_dict("records")))


def _row(row: Row) -> list[str]:
    both = zip(row["means"], row["within"], strict=True)
    p = "–" if np.isnan(row["p"]) else f"{row['p']:.3f}"
    measured = [*(f"{mean:.2f} ({within:.2f})" for mean, within in both), p] if row["means"] else "–––"
    pair = f"`{row['better']}` over `{row['worse']}`"
    return [row["task"], pair, WORDS[row["metric"]], *measured, row["verdict"]]
