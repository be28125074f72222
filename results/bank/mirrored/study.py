"""Test whether the verdicts from the first twelve configurations hold on twelve new ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy import stats

from pe_experiments.comparison.statistics import ALPHA, bootstrap_ranks, holm, paired_ps
from pe_experiments.comparison.words import number
from pe_experiments.drawing import save
from pe_experiments.studies import read_archive, table
from pe_experiments.studies.pages import load_study
from pe_experiments.studies.scores import FLOORS, SCORE, score_table, scores_by_setting

BANK = Path(__file__).parents[1] / "v2"
bank = load_study(BANK)
TASKS = ["copy", "lag", "induction", "flip_flop"]
MEAN = "mean"  # over `TASKS`
RECOMMENDED = ["fox", "kerple_log"]
# The best encodings on the first twelve configurations.
BEST = {"copy": "kerple_log", "lag": "fox", "induction": "kerple_log", "flip_flop": "fox"}
ALL_SPLITS = 1_000_000  # more than exist, so that the test is exact
LEARNED_AT_A_LEVEL = 4  # learned configurations required at each level of a factor
EFFECTS = [  # task, encoding, measure, factor, and whether the high level is claimed to be better
    ("lag", "kerple_log", SCORE, "training length", True),
    ("copy", "kerple_log", bank.AT_2X, "training length", True),
    ("copy", "alibi", bank.AT_2X, "layers", False),
    ("lag", "rope", SCORE, "heads", False),
]
REPEATED = {22: 11, 23: 10}  # mirrored configurations, and the first ones with the same factors
CONFIRMED, TIED, REFUTED = "confirmed", "tied", "refuted"
NOT_DECIDED = "not decided"

Matrices = dict[str, pd.DataFrame]  # scores [configurations, encodings] by task and of `MEAN`

measure = bank.measure  # writes the floors


def load(folder: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the scores in the first and in the mirrored configurations, with a column per factor."""
    first, mirrored = read_archive(BANK), read_archive(folder)
    metrics = (SCORE, bank.AT_2X, bank.AT_4X)
    halves = []
    for archive, floors in ((first, BANK), (mirrored, folder)):
        scores = score_table(archive, pd.read_csv(floors / FLOORS), metrics)
        halves.append(bank.with_factors(scores[scores["task"].isin(TASKS)], first, mirrored))
    return halves[0], halves[1]


def matrices(scores: pd.DataFrame) -> Matrices:
    """Return the scores by task and their mean over the tasks, unlearned configurations as 0."""
    by_task = {task: scores_by_setting(scores[scores["task"] == task], SCORE, 0.0) for task in TASKS}
    total: Any = sum(by_task.values())
    return {MEAN: total / len(TASKS)} | by_task


def difference_rows(matrix: pd.DataFrame, pairs: Sequence[tuple[str, str]]) -> pd.DataFrame:
    """Return sign-flip tests of the first minus the second encoding of each pair, corrected by Holm."""
    differences = np.array([matrix[first] - matrix[second] for first, second in pairs])
    ps = holm(paired_ps(differences).tolist())
    rows = []
    for (first, second), values, p in zip(pairs, differences, ps, strict=True):
        verdict = TIED
        if p <= ALPHA:
            verdict = CONFIRMED if values.mean() > 0 else REFUTED
        rows.append(
            {
                "encoding": first,
                "other": second,
                "difference": values.mean(),
                "ahead": (values > 0).sum(),
                "settings": len(values),
                "p": p,
                "verdict": verdict,
            }
        )
    return pd.DataFrame(rows)


def confirmatory(scores: pd.DataFrame) -> pd.DataFrame:
    """Return the planned tests of pairs of encodings, a row per pair."""
    by_task = matrices(scores)
    others = [name for name in map(str, by_task[MEAN]) if name not in RECOMMENDED]
    families: dict[tuple[str, str], list[tuple[str, str]]] = {
        ("over the tasks", MEAN): [(best, other) for best in RECOMMENDED for other in others],
        ("FoX and KERPLE", MEAN): [("fox", "kerple_log")],
    }
    for task, best in BEST.items():
        families[task, task] = [(best, other) for other in map(str, by_task[task]) if other != best]
    rows = [
        difference_rows(by_task[task], pairs).assign(family=name) for (name, task), pairs in families.items()
    ]
    return pd.concat(rows, ignore_index=True)


def confirmatory_without(by_task: Matrices, left_out: str) -> pd.DataFrame:
    """Return the tests over the tasks, without one of them."""
    kept: Any = [by_task[task] for task in TASKS if task != left_out]
    matrix = sum(kept) / len(kept)
    others = [label for label in map(str, matrix) if label not in RECOMMENDED]
    return difference_rows(matrix, [(best, other) for best in RECOMMENDED for other in others])


def effect_rows(scores: pd.DataFrame) -> pd.DataFrame:
    """Return the planned tests of `EFFECTS`: the means at the better and at the other level, and p."""
    rows, ps = [], []
    for task, encoding, metric, factor, higher in EFFECTS:
        learned = scores[(scores["task"] == task) & (scores["label"] == encoding) & scores["learned"]]
        better = learned.loc[learned[factor] == higher, metric].to_numpy(float)
        worse = learned.loc[learned[factor] == (not higher), metric].to_numpy(float)
        p = np.nan
        if min(len(better), len(worse)) >= LEARNED_AT_A_LEVEL:
            test = stats.permutation_test(
                (better, worse),
                lambda x, y, axis: x.mean(axis) - y.mean(axis),
                vectorized=True, n_resamples=ALL_SPLITS, alternative="greater",
            )  # fmt: skip
            p = float(test.pvalue)
        ps.append(p)
        rows.append(
            {
                "task": task,
                "encoding": encoding,
                "measure": metric,
                "factor": factor,
                "better": bank.FACTORS[factor][2 if higher else 1],
                "mean": better.mean() if len(better) else np.nan,
                "other mean": worse.mean() if len(worse) else np.nan,
                "learned": f"{len(better)} and {len(worse)}",
            }
        )
    adjusted = np.array(holm(ps))
    verdicts = np.select([np.isnan(adjusted), adjusted <= ALPHA], [NOT_DECIDED, CONFIRMED], TIED)
    return pd.DataFrame(rows).assign(p=adjusted, verdict=verdicts)


def main_effects(scores: pd.DataFrame) -> pd.DataFrame:
    """Return least-squares effects of the factors on the score over both halves, with standard errors.

    Args:
        scores: rows of both halves, with a column ``half``, 0 or 1.

    Returns:
        A row per task, encoding and factor whose task was learned in enough configurations at both levels.
    """
    rows = []
    factors = [*bank.FACTORS]
    for (task, label), group in scores[scores["learned"]].groupby(["task", "label"]):
        columns = group[[*factors, "half"]].to_numpy(float) - 0.5
        design = np.column_stack([np.ones(len(group)), columns])
        rank = np.linalg.matrix_rank(design)
        degrees_of_freedom = len(group) - rank
        if rank < design.shape[1] or degrees_of_freedom < 1:
            continue
        group_scores = group[SCORE].to_numpy(float)
        solution, *_ = np.linalg.lstsq(design, group_scores)
        residuals = group_scores - design @ solution
        variances = np.diag(np.linalg.inv(design.T @ design)) * (residuals @ residuals) / degrees_of_freedom
        errors = np.sqrt(variances)
        for column, factor in enumerate(factors, start=1):
            counts = group[factor].value_counts().reindex([False, True], fill_value=0)
            if counts.min() >= LEARNED_AT_A_LEVEL:
                rows.append(
                    {
                        "task": task,
                        "encoding": label,
                        "factor": factor,
                        "effect": solution[column],
                        "error": errors[column],
                    }
                )
    return pd.DataFrame(rows)


def pages(folder: Path) -> None:
    """Draw the figures and write ``scores.csv`` and ``verdicts.csv``."""
    first, mirrored = load(folder)
    mirrored.to_csv(folder / "scores.csv", index=False)
    confirmatory(mirrored).to_csv(folder / "verdicts.csv", index=False)
    draw_halves(matrices(first), matrices(mirrored), folder / "figures")
    effects = main_effects(pd.concat([first.assign(half=0), mirrored.assign(half=1)]))
    order = matrices(first)[MEAN].mean().sort_values(ascending=False).index
    bank.ranking.draw_effects(effects, [*map(str, order)], folder / "figures")


def draw_halves(first: Matrices, mirrored: Matrices, folder: Path) -> None:
    """Draw the mean score of every encoding in both halves with its 95 % interval, one panel per task."""
    order = first[MEAN].mean().sort_values().index
    figure = Figure(figsize=(7.2, 3.6), layout="constrained")
    for axes, task in zip(figure.subplots(1, len(first), sharey=True), first, strict=True):
        for half, shift, colour in ((first[task], 0.18, "0.6"), (mirrored[task], -0.18, "C0")):
            for place, label in enumerate(order):
                low, high = bank.ranking.interval_of_mean(half[label].to_numpy())
                axes.plot([low, high], [place + shift] * 2, color=colour, linewidth=1.2)
                axes.plot(half[label].mean(), place + shift, "o", color=colour, markersize=3.2)
        axes.set(title=task, xlim=(-0.05, 1.05), xlabel="score", yticks=range(len(order)), yticklabels=order)
        axes.spines[["top", "right"]].set_visible(False)
    save(figure, folder, "answer")


def blocks(folder: Path) -> dict[str, Any]:
    """Return the tables and the numbers of the page."""
    first, mirrored = load(folder)
    by_task, mirrored_by_task = matrices(first), matrices(mirrored)
    values: dict[str, Any] = {
        "settings": len(mirrored_by_task[MEAN]),
        "halves": halves_table(by_task, mirrored_by_task),
    }
    for task in (MEAN, *TASKS):
        before, after = by_task[task].mean(), mirrored_by_task[task].mean()
        values[f"rho/{task}"] = stats.spearmanr(before, after[before.index]).statistic
        for half, means in zip(("first", "mirrored"), (before, after), strict=True):
            values |= {f"{half}/{task}/{label}": mean for label, mean in means.items()}
    unlearned = (mirrored["task"] + "/" + mirrored["label"])[~mirrored["learned"]].value_counts()
    values |= {f"unlearned/{name}": count for name, count in unlearned.items()}
    changes_by_task = []  # between configurations with the same factors and different seeds
    for task in TASKS:
        repeated = mirrored_by_task[task].reindex([*REPEATED])
        original = by_task[task][repeated.columns].reindex([*REPEATED.values()])
        changes_by_task.append(repeated.to_numpy() - original.to_numpy())
    seed_changes = np.array(changes_by_task)
    values |= {"seed": np.sqrt((seed_changes**2).mean() / 2), "seed/most": np.abs(seed_changes).max()}
    tests = confirmatory(mirrored)
    confirmed = tests[(tests["family"] == "over the tasks") & (tests["verdict"] == CONFIRMED)]
    values |= {f"confirmed/{best}": confirmed["encoding"].eq(best).sum() for best in RECOMMENDED}
    (between,) = tests[tests["family"] == "FoX and KERPLE"].to_dict("records")
    values |= {f"between/{key}": between[key] for key in ("difference", "p")}
    new_ones = confirmatory(mirrored[~mirrored["setting"].isin(REPEATED)])
    over_tasks = new_ones[new_ones["family"] == "over the tasks"]
    values |= {
        "ten/confirmed": (over_tasks["verdict"] == CONFIRMED).sum(),
        "ten/tests": len(over_tasks),
        "ten/p": over_tasks["p"].max(),
        "ten/fox": mirrored_by_task[MEAN].drop(index=[*REPEATED])["fox"].mean(),
        "ten/kerple_log": mirrored_by_task[MEAN].drop(index=[*REPEATED])["kerple_log"].mean(),
        "both/top": bank.ranking.resample(pd.concat([first, mirrored])).share_on_top(RECOMMENDED),
        "mirrored/top": bank.ranking.resample(mirrored).share_on_top(RECOMMENDED),
    }
    for task in TASKS:
        without_it = confirmatory_without(mirrored_by_task, task)
        values[f"without {task}/confirmed"] = (without_it["verdict"] == CONFIRMED).sum()
    for metric, name in ((bank.AT_2X, "2x"), (bank.AT_4X, "4x")):
        matrix = bank.ranking.over_tasks(mirrored, metric)
        others = [label for label in map(str, matrix) if label not in RECOMMENDED]
        tests_at = difference_rows(matrix, [(best, other) for best in RECOMMENDED for other in others])
        values[f"at {name}/confirmed"] = (tests_at["verdict"] == CONFIRMED).sum()
        values |= {f"at {name}/{label}": mean for label, mean in matrix.mean().items()}
    for key, rows in (("twelve", tests), ("ten", new_ones)):
        alibi = rows[(rows["family"] == "induction") & (rows["other"] == "alibi")]
        values[f"{key}/induction/alibi/p"] = alibi["p"].item()
    return values | {
        "overall": overall_table(tests),
        "tasks": task_table(tests),
        "effects": effect_table(mirrored),
    }


def halves_table(first: Matrices, mirrored: Matrices) -> str:
    """Return a table of mean scores in the first and in the mirrored configurations, with ranks."""
    order = first[MEAN].mean().sort_values(ascending=False).index
    cells = pd.DataFrame({"first / mirrored": [f"`{label}`" for label in order]}, index=order)
    for task in (MEAN, *TASKS):
        pair = (half[task][order].mean().map(number) for half in (first, mirrored))
        cells[task] = [f"{before} / {after}" for before, after in zip(*pair, strict=True)]
    ranks, _ = bootstrap_ranks(mirrored[MEAN][order].to_numpy())
    cells["rank, mirrored"] = [f"{rank.estimate:.2g} ({rank.low:.2g} to {rank.high:.2g})" for rank in ranks]
    return table(cells)


def overall_table(tests: pd.DataFrame) -> str:
    """Return a table of the differences of FoX and KERPLE from each other encoding over the four tasks."""
    cells: dict[str, dict[str, str]] = {}
    for row in tests[tests["family"] == "over the tasks"].to_dict("records"):
        text = f"{row['difference']:+.2f} (ahead in {row['ahead']}), p = {row['p']:.3f}: {row['verdict']}"
        cells.setdefault(f"`{row['other']}`", {})[f"`{row['encoding']}` minus it"] = text
    return table(pd.DataFrame([{"encoding": label} | row for label, row in cells.items()]))


def task_table(tests: pd.DataFrame) -> str:
    """Return a table of the verdicts on the best encodings of the first configurations, by task."""
    rows = []
    for task, best in BEST.items():
        of_task = tests[tests["family"] == task]
        row = {"task": task, "best on the first twelve": f"`{best}`"}
        for verdict in (CONFIRMED, TIED, REFUTED):
            row[verdict] = bank.listed(of_task.loc[of_task["verdict"] == verdict, "other"])
        rows.append(row)
    return table(pd.DataFrame(rows))


def effect_table(scores: pd.DataFrame) -> str:
    """Return a table of the tests of `EFFECTS`."""
    rows = []
    for row in effect_rows(scores).to_dict("records"):
        metric = "score" if row["measure"] == SCORE else "exact match at 2x"
        rows.append(
            {
                "statement": f"`{row['encoding']}` on `{row['task']}`: {metric} is higher, {row['better']}",
                "mean": f"{number(row['mean'])}, else {number(row['other mean'])}",
                "learned in": row["learned"],
                "p": "–" if np.isnan(row["p"]) else f"{row['p']:.3f}",
                "here": row["verdict"],
            }
        )
    return table(pd.DataFrame(rows))
