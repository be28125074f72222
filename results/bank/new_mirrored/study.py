"""Compare four newer encodings with the bank's twelve in the mirrored configurations (plan, part D).

Means can be published at any time. The tests are made once, when all configurations are complete.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from pe_experiments.comparison.statistics import ALPHA
from pe_experiments.comparison.words import join_names, number
from pe_experiments.drawing import save
from pe_experiments.store.published import PROVENANCE
from pe_experiments.studies import read_archive, table
from pe_experiments.studies.archive import select_runs
from pe_experiments.studies.pages import load_study
from pe_experiments.studies.scores import FLOORS, SCORE, score_table

MIRRORED = Path(__file__).parents[1] / "mirrored"
mirrored = load_study(MIRRORED)
bank = mirrored.bank
NEW = ["fox(initial_bias=4)", "cpb_log", "cope", "cpb_linear"]
RECOMMENDED = ["fox", "kerple_log"]
CONFIGURATIONS = 12
RUNS = len(NEW) * len(bank.TELLING) * 2  # of a configuration, at two learning rates
FEWEST = 9  # complete configurations needed for the tests if the computing time has ended
TIME_HAS_ENDED = False  # set to True if no further configuration will be run
METRICS = (SCORE, bank.AT_2X, bank.AT_4X)
FIGURE = "![Scores of sixteen encodings over four tasks, and exact match at 2x and 4x](figures/answer.png)"
NONE_YET = "No configuration is complete yet."


def load(folder: Path) -> pd.DataFrame:
    """Return the scores of all sixteen encodings in the complete configurations; none without runs."""
    if not (folder / PROVENANCE).exists():
        return pd.DataFrame(columns=["task", "label", "setting", "name", "rate", "learned", *METRICS])
    archive = read_archive(folder)
    counts = archive.runs.groupby("seed")["name"].size()
    complete = counts.index[counts == RUNS]
    floors = pd.read_csv(MIRRORED / FLOORS)
    chosen = select_runs(archive, archive.runs["seed"].isin(complete))
    new = score_table(chosen, floors, METRICS)
    earlier = score_table(read_archive(MIRRORED), floors, METRICS)
    earlier = earlier[earlier["setting"].isin(complete) & earlier["task"].isin(bank.TELLING)]
    return pd.concat([new, earlier], ignore_index=True)


def is_tested(scores: pd.DataFrame) -> bool:
    """Return whether the plan allows tests with these configurations."""
    complete = scores["setting"].nunique()
    return complete == CONFIGURATIONS or (TIME_HAS_ENDED and complete >= FEWEST)


def against_recommended(scores: pd.DataFrame) -> pd.DataFrame:
    """Return the eight planned tests, with the interval over samples of tasks and configurations."""
    pairs = [*product(NEW, RECOMMENDED)]
    rows: pd.DataFrame = mirrored.difference_rows(bank.ranking.over_tasks(scores), pairs)
    means = bank.ranking.resample(scores).means
    ends = [np.quantile(means[new] - means[old], [ALPHA / 2, 1 - ALPHA / 2]) for new, old in pairs]
    return rows.assign(low=[low for low, _ in ends], high=[high for _, high in ends])


def pages(folder: Path) -> None:
    """Draw the means of all encodings and write ``scores.csv``, and ``verdicts.csv`` once there are tests."""
    scores = load(folder)
    if scores.empty:
        return
    scores.to_csv(folder / "scores.csv", index=False)
    tied: list[str] = []
    if is_tested(scores):
        rows = bank.ranking.rank(scores)
        tied = [*rows.index[rows["tied"]]]
        rows.rename_axis("encoding").to_csv(folder / "ranking.csv")
        against_recommended(scores).to_csv(folder / "verdicts.csv", index=False)
    matrices = {
        words: bank.ranking.over_tasks(scores, metric) for metric, words in bank.ranking.MEASURES.items()
    }
    order = [*matrices[bank.ranking.MEASURES[SCORE]].mean().sort_values(ascending=False).index]
    figure = Figure(figsize=(7.2, 0.9 + 0.19 * len(order)), layout="constrained")
    bank.ranking.draw_means(figure.subplots(1, len(matrices), sharey=True), matrices, order, tied, NEW)
    save(figure, folder / "figures", "answer")


def blocks(folder: Path) -> dict[str, Any]:
    """Return the tables and the numbers of the page, for any number of complete configurations."""
    scores = load(folder)
    complete = scores["setting"].nunique()
    values: dict[str, Any] = {"settings": complete, "outcome": NONE_YET, "figure": NONE_YET}
    values |= dict.fromkeys(("means", "halves", "differences", "ranking"), NONE_YET)
    if scores.empty:
        return values
    rows = mean_rows(scores)
    means = rows["mean"]
    highest = join_names([f"`{label}` ({number(mean)})" for label, mean in means.head(6).items()])
    values["outcome"] = f"In these, the highest mean scores are those of {highest}."
    values["figure"] = FIGURE
    values["means"] = bank.ranking.ranking_table(rows)
    values["halves"] = halves_table(scores)
    untested = f"No test is made before all {CONFIGURATIONS} configurations are complete."
    values |= {"differences": untested, "ranking": untested}
    if not is_tested(scores):
        values["outcome"] += f" {untested}"
        return values
    ranked = bank.ranking.rank(scores)
    tied = [f"`{label}`" for label in ranked.index[ranked["tied"]][1:]]
    tests = against_recommended(scores)
    counts = tests["verdict"].value_counts()
    ties = f"{join_names(tied)} tie with it" if tied else "none ties with it"
    higher, lower = counts.get(mirrored.CONFIRMED, 0), counts.get(mirrored.REFUTED, 0)
    values["outcome"] = (
        f"The highest mean score has `{ranked.index[0]}` ({number(ranked['mean'].iloc[0])}); {ties}, and the "
        f"{(~ranked['tied']).sum()} others are significantly lower. Of the eight planned differences between "
        f"newer encodings and FoX or KERPLE, {higher} are significantly above 0 and {lower} below."
    )
    return values | {"differences": difference_table(tests), "ranking": bank.ranking.difference_table(ranked)}


def mean_rows(scores: pd.DataFrame) -> pd.DataFrame:
    """Return a row per encoding with the columns that `ranking_table` shows, without a test."""
    rows = pd.DataFrame({"mean": bank.ranking.over_tasks(scores).mean()}).assign(tied=True)
    if is_tested(scores):
        rows["tied"] = bank.ranking.rank(scores)["tied"]
    for task, matrix in bank.ranking.by_task(scores).items():
        rows[task] = matrix.mean()
    for metric in (bank.AT_2X, bank.AT_4X):
        rows[metric] = bank.ranking.over_tasks(scores, metric).mean()
    cases = scores.groupby("label")["learned"]
    return rows.assign(learned=cases.sum(), cases=cases.size()).sort_values("mean", ascending=False)


def halves_table(scores: pd.DataFrame) -> str:
    """Return mean scores in the first twelve configurations, here, and here without the repeats."""
    first, _ = bank.with_newer_encodings(pd.read_csv(mirrored.BANK / "scores.csv"))
    new_ones = scores[~scores["setting"].isin(mirrored.REPEATED)]
    columns = {"first twelve": first, "mirrored": scores, "mirrored, without repeats": new_ones}
    means = pd.DataFrame(
        {name: bank.ranking.over_tasks(rows).mean() for name, rows in columns.items() if len(rows)}
    )
    means = means.dropna(subset=["mirrored"]).sort_values("mirrored", ascending=False)
    cells = means.map(number)
    cells.insert(0, "mean score", [f"`{label}`" for label in means.index])
    return table(cells)


def difference_table(tests: pd.DataFrame) -> str:
    """Return the tests against FoX and KERPLE as a Markdown table."""
    words = {mirrored.CONFIRMED: "higher", mirrored.TIED: "tied", mirrored.REFUTED: "lower"}
    rows = [
        {
            "encoding": f"`{row['encoding']}`",
            "minus": f"`{row['other']}`",
            "difference": f"{row['difference']:+.2f} (ahead in {row['ahead']} of {row['settings']})",
            "p": f"{row['p']:.3f}",
            "so it is": words[row["verdict"]],
            "interval over tasks and configurations": f"[{row['low']:+.2f}, {row['high']:+.2f}]",
        }
        for row in tests.to_dict("records")
    ]
    return table(pd.DataFrame(rows))
