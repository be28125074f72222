"""Test statements of papers that one encoding is better than another."""

from pathlib import Path

import numpy as np
import pandas as pd

from pe_experiments.comparison.statistics import ALPHA, holm, permutation_p
from pe_experiments.studies import read_archive, read_table, with_options

HERE = Path(__file__).parent
STUDIES = ("conditions", "ruoss", "ruoss_long")
AGREES, CONTRARY, OPEN = "agrees", "contrary", "open"
NOT_LEARNED, SAME = "not learned", "could not differ"
LEARNED = 0.5  # smallest share of seeds that solve the training lengths
WITHIN = "exact_match_in_distribution"


def judged_pairs() -> pd.DataFrame:
    """Return each pair of ``statements.csv`` with its means, its verdict and ``p``.

    Holm's method corrects ``p`` within a statement.
    """
    columns = {"layers": "model.num_layers", "symbols": "task.vocab_size", "steps": "training.steps"}
    runs = pd.concat([with_options(read_archive(HERE / name), **columns) for name in STUDIES])
    titles = []  # such as "copy of 10 symbols to 20, 2 layers"
    for run in runs.itertuples():
        symbols = f" of {run.symbols:g} symbols" if run.task == "copy" else ""
        steps = f", {run.steps:,g} steps" if run.task == "reverse" else ""
        titles.append(f"{run.task}{symbols} to {run.max_length:g}, {run.layers:g} layers{steps}")
    runs["title"] = titles
    rows = []
    for row in read_table(HERE / "statements.csv", "arxiv").to_dict("records"):
        of_task = runs[runs["title"] == row["task"]]
        first, second = (of_task[of_task["label"] == row[side]] for side in ("better", "worse"))
        metric = row["metric"]
        row |= {"mean": first[metric].mean(), "within": first[WITHIN].mean()}
        row |= {"mean_2": second[metric].mean(), "within_2": second[WITHIN].mean(), "p": np.nan}
        shares_solved = [side["solved_in_distribution"].eq(True).mean() for side in (first, second)]
        row["verdict"] = NOT_LEARNED
        if min(shares_solved) >= LEARNED:
            row["p"] = permutation_p(first[metric], second[metric])
            row["verdict"] = AGREES if row["mean"] > row["mean_2"] else CONTRARY
            if pd.concat([first[metric], second[metric]]).nunique(dropna=False) == 1:
                row["verdict"] = SAME
        rows.append(row)
    pairs = pd.DataFrame(rows)
    pairs["p"] = pairs.groupby(["arxiv", "task"])["p"].transform(lambda ps: holm(ps.tolist()))
    is_open = pairs["verdict"].isin([AGREES, CONTRARY]) & ~(pairs["p"] <= ALPHA)
    return pairs.assign(verdict=pairs["verdict"].mask(is_open, OPEN))


def verdicts() -> dict[str, str]:
    """Return the verdicts on the statements of each paper, by the first word of its name.

    A statement about several pairs agrees only if all pairs agree.
    """
    words = {}
    for paper, pairs in judged_pairs().groupby("paper"):
        by_task = {}
        for task, of_pairs in pairs.groupby("task")["verdict"]:
            verdict = of_pairs.iloc[0] if of_pairs.nunique() == 1 else OPEN
            by_task[str(task)] = CONTRARY if CONTRARY in of_pairs.tolist() else verdict
        texts = [*by_task.values()]
        if len(texts) > 1:
            texts = sorted(f"{task.rpartition(', ')[2]}: {verdict}" for task, verdict in by_task.items())
        words[str(paper).split()[0].lower()] = "; ".join(texts)
    return words
