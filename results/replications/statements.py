"""Test statements of papers that one encoding is better than another."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pe_experiments.comparison.statistics import ALPHA, holm, permutation_p
from pe_experiments.comparison.words import number
from pe_experiments.studies import format_mean, read_archive, read_table, table, with_settings

HERE = Path(__file__).parent
STUDIES = ("conditions", "ruoss", "ruoss_long")
TEXT = ("paper", "arxiv", "task", "metric", "better", "worse", "command")
AGREES, CONTRARY, OPEN = "agrees", "contrary", "open"
NOT_LEARNED, SAME = "not learned", "could not differ"
LEARNED = 0.5  # smallest share of seeds that solve the training lengths
WITHIN = "exact_match_in_distribution"
WORDS = {
    "exact_match_at_2x": "exact match at 2x",
    "exact_match_extrapolation": "exact match past training",
    "token_accuracy_extrapolation": "token accuracy past training",
}


def published() -> pd.DataFrame:
    """Return the published runs of all studies, with titles."""
    columns = {"layers": "model.num_layers", "symbols": "task.vocab_size", "steps": "training.steps"}
    return pd.concat([with_titles(with_settings(read_archive(HERE / name), **columns)) for name in STUDIES])


def with_titles(runs: pd.DataFrame) -> pd.DataFrame:
    """Add a column ``title`` such as ``copy of 10 symbols to 20, 2 layers``; of reversal also the steps."""
    titles = []
    for run in runs.itertuples():
        symbols = f" of {run.symbols:g} symbols" if run.task == "copy" else ""
        steps = f", {run.steps:,g} steps" if run.task == "reverse" else ""
        titles.append(f"{run.task}{symbols} to {run.max_length:g}, {run.layers:g} layers{steps}")
    return runs.assign(title=titles)


def judge(statements: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Add the means, ``p`` (corrected by Holm within a statement) and the ``verdict`` of each pair."""
    pairs = pd.DataFrame([_judge_pair(row, runs) for row in statements.to_dict("records")])
    for _, statement in pairs.groupby(["arxiv", "task"]):
        pairs.loc[statement.index, "p"] = holm(statement["p"].tolist())
    insignificant = pairs["verdict"].isin([AGREES, CONTRARY]) & ~(pairs["p"] <= ALPHA)
    return pairs.assign(verdict=pairs["verdict"].mask(insignificant, OPEN))


def _judge_pair(row: dict[Any, Any], runs: pd.DataFrame) -> dict[Any, Any]:
    """Add to the row of a pair its means, its uncorrected p-value, and the verdict without the test."""
    runs = runs[runs["title"] == row["task"]]
    first, second = (runs[runs["label"] == row[side]] for side in ("better", "worse"))
    for end, side in (("", first), ("_2", second)):
        row[f"mean{end}"] = side[row["metric"]].mean()
        row[f"within{end}"] = side[WITHIN].mean()
    row["p"] = np.nan
    shares_solved = [side["solved_in_distribution"].eq(True).mean() for side in (first, second)]
    if min(shares_solved) < LEARNED:
        return row | {"verdict": NOT_LEARNED}
    values = [side[row["metric"]] for side in (first, second)]
    row["p"] = permutation_p(*values)
    if pd.concat(values).nunique(dropna=False) == 1:
        return row | {"verdict": SAME}
    return row | {"verdict": AGREES if row["mean"] > row["mean_2"] else CONTRARY}


def verdict_on_statement(verdicts: Collection[str]) -> str:
    """Return the verdict on a statement about several pairs; it agrees only if all pairs agree."""
    if CONTRARY in verdicts:
        return CONTRARY
    return OPEN if len(set(verdicts)) > 1 else next(iter(verdicts))


def blocks() -> dict[str, str]:
    """Return the tables of statements, of the pairs of each paper, and of the initial gates of FoX."""
    runs = published()
    pairs = judge(read_table(HERE / "statements.csv", *TEXT), runs)
    groups = pairs.groupby(["paper", "task"], sort=False)["verdict"]
    statements = groups.agg(pairs="size", here=verdict_on_statement).reset_index()
    tables = {str(arxiv): pair_table(group) for arxiv, group in pairs.groupby("arxiv")}
    return tables | {"statements": table(statements), "gates": gate_table(runs)}


def pair_table(pairs: pd.DataFrame) -> str:
    cells = {
        "task": pairs["task"],
        "pair": "`" + pairs["better"] + "` over `" + pairs["worse"] + "`",
        "metric": pairs["metric"].map(WORDS),
        "first (in distribution)": pairs["mean"].map(number) + " (" + pairs["within"].map(number) + ")",
        "second (in distribution)": pairs["mean_2"].map(number) + " (" + pairs["within_2"].map(number) + ")",
        "p": [number(p, ".3f") for p in pairs["p"]],
        "here": pairs["verdict"],
    }
    return table(pd.DataFrame(cells))


def gate_table(runs: pd.DataFrame) -> str:
    """Return a table of exact match by task and initial gate of FoX."""
    groups = runs[runs["label"].str.startswith("fox")].groupby(["title", "label"])
    means = groups[[WITHIN, "exact_match_at_2x"]].agg(format_mean).reset_index()
    means["label"] = "`" + means["label"] + "`"
    return table(means.set_axis(["task", "encoding", "exact match in distribution", "at 2x"], axis=1))
