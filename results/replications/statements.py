"""Test statements of papers that one encoding is better than another."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pe_experiments.comparison.statistics import ALPHA, holm, permutation_p
from pe_experiments.studies import read_archive, read_table, with_settings

HERE = Path(__file__).parent
STUDIES = ("conditions", "ruoss", "ruoss_long")
TEXT = ("paper", "arxiv", "task", "metric", "better", "worse", "command")
AGREES, CONTRARY, OPEN = "agrees", "contrary", "open"
NOT_LEARNED, SAME = "not learned", "could not differ"
LEARNED = 0.5  # smallest share of seeds that solve the training lengths
WITHIN = "exact_match_in_distribution"


def runs_with_titles() -> pd.DataFrame:
    """Return the published runs of all studies, with titles such as ``copy of 10 symbols to 20, 2 layers``.

    The titles of reversal also name the steps.
    """
    columns = {"layers": "model.num_layers", "symbols": "task.vocab_size", "steps": "training.steps"}
    runs = pd.concat([with_settings(read_archive(HERE / name), **columns) for name in STUDIES])
    titles = []
    for run in runs.itertuples():
        symbols = f" of {run.symbols:g} symbols" if run.task == "copy" else ""
        steps = f", {run.steps:,g} steps" if run.task == "reverse" else ""
        titles.append(f"{run.task}{symbols} to {run.max_length:g}, {run.layers:g} layers{steps}")
    return runs.assign(title=titles)


def judged_pairs() -> pd.DataFrame:
    """Return each pair of ``statements.csv`` with its means, its verdict and ``p``.

    Holm's method corrects ``p`` within a statement.
    """
    runs = runs_with_titles()
    rows = read_table(HERE / "statements.csv", *TEXT).to_dict("records")
    pairs = pd.DataFrame([_judge_pair(row, runs) for row in rows])
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


def verdicts() -> dict[str, str]:
    """Return the verdicts on the statements of each paper, by the first word of its name.

    A statement about several pairs agrees only if all pairs agree.
    """
    words: dict[str, str] = {}
    for paper, pairs in judged_pairs().groupby("paper"):
        by_task: dict[str, str] = {}
        for task, of_pairs in pairs.groupby("task")["verdict"]:
            by_task[str(task)] = OPEN if of_pairs.nunique() > 1 else of_pairs.iloc[0]
            if (of_pairs == CONTRARY).any():
                by_task[str(task)] = CONTRARY
        texts = list(by_task.values())
        if len(texts) > 1:
            texts = sorted({f"{task.rpartition(', ')[2]}: {verdict}" for task, verdict in by_task.items()})
        words[str(paper).split()[0].lower()] = "; ".join(texts)
    return words
