"""Compare five encodings in models of three sizes: does the order at 0.1 million parameters hold?

A case is a task with a seed. It is read once all encodings have run at both learning rates.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from pe_experiments.comparison.statistics import ROUNDING, rank_correlation
from pe_experiments.comparison.words import join_names, number
from pe_experiments.drawing import save, styles
from pe_experiments.studies import read_archive, table, with_settings
from pe_experiments.studies.archive import select_runs
from pe_experiments.studies.pages import load_study
from pe_experiments.studies.scores import FLOORS, SCORE, score_table

bank = load_study(Path(__file__).parents[1] / "v2")
measure = bank.measure  # writes the floors
TASKS = ["copy", "induction", "flip_flop"]
SIZES = {64: 0.1, 128: 0.8, 256: 6.3}  # million parameters, by the width of the model
SMALLEST, LARGEST = min(SIZES), max(SIZES)
RUNS = 60  # of a size: five encodings, three tasks, two seeds, two learning rates
RUNS_OF_A_CASE = 10
RECOMMENDED = ["kerple_log", "fox(initial_bias=4)", "cpb_log"]
OTHERS = ["alibi", "rope"]
HOLDS, CHANGES = 0.9, 0.5  # smallest and largest rho of these answers
METRICS = (SCORE, bank.AT_2X, bank.AT_4X)
FIGURE = "![Rank of five encodings over the number of parameters](figures/answer.png)"
NONE_YET = "No case is complete yet."
LINES = dict(zip(TASKS, ("--", ":", "-."), strict=True))


def load(folder: Path) -> tuple[dict[int, int], dict[int, pd.DataFrame]]:
    """Return the number of runs by width, and the scores of the complete cases of each width that has one."""
    archive = read_archive(folder)
    floors = pd.read_csv(folder / FLOORS)
    rows = with_settings(archive, width="model.d_model")
    of_case = rows.groupby(["width", "task", "seed"])["name"].transform("size")
    counts, scores = {}, {}
    for width in SIZES:
        is_width = rows["width"] == width
        counts[width] = int(is_width.sum())
        is_complete = is_width & (of_case == RUNS_OF_A_CASE)
        if is_complete.any():
            scores[width] = score_table(select_runs(archive, is_complete), floors, METRICS)
    return counts, scores


def values_of(scores: pd.DataFrame, metric: str = SCORE, unlearned: float = 0.0) -> pd.Series:
    """Return a metric of each case and encoding, ``unlearned`` where the case was not learned."""
    return scores[metric].where(scores["learned"], unlearned)


def case_means(scores: pd.DataFrame, metric: str = SCORE, unlearned: float = 0.0) -> pd.Series:
    """Return the mean of each encoding over the cases."""
    return values_of(scores, metric, unlearned).groupby(scores["label"]).mean()


def task_means(scores: pd.DataFrame) -> pd.DataFrame:
    """Return the mean scores [encodings, tasks]."""
    return values_of(scores).groupby([scores["label"], scores["task"]]).mean().unstack()


def decide(smallest: pd.DataFrame, larger: pd.DataFrame) -> dict[str, Any]:
    """Return the decisions of the plan about a larger size."""
    before, after = case_means(smallest), case_means(larger)
    rho, p = rank_correlation(before.to_numpy(), after[before.index].to_numpy())
    order = "is unclear"
    if rho >= HOLDS - ROUNDING:
        order = "holds"
    elif rho <= CHANGES + ROUNDING:
        order = "changes"
    lowest, highest = after[RECOMMENDED].min(), after[OTHERS].max()
    learned = [case_means(scores, unlearned=np.nan) for scores in (smallest, larger)]
    both = pd.concat(learned, axis=1).dropna()
    by_task = [task_means(scores)[TASKS].to_numpy().T for scores in (smallest, larger)]
    task_rhos = {
        f"rho, {task}": rank_correlation(first, second)[0]
        for task, first, second in zip(TASKS, *by_task, strict=True)
    }
    return {
        "rho": rho,
        "p": p,
        "order": order,
        "lowest": lowest,
        "highest": highest,
        "recommendation": "holds" if lowest > highest else "does not hold",
        "rho, learned cases": rank_correlation(*both.T.to_numpy())[0],
        **task_rhos,
    }


def answer(folder: Path) -> str:
    """Return what the runs say about larger models, in sentences for this page and the bank's."""
    counts, scores = load(folder)
    sentences = []
    for width, size in SIZES.items():
        if width == SMALLEST:
            continue
        if counts[width] < RUNS or counts[SMALLEST] < RUNS:
            made = f"{counts[width]} of {RUNS} runs"
            sentences.append(f"Not measured yet at {size} million parameters: {made}.")
            continue
        decision = decide(scores[SMALLEST], scores[width])
        rule = "by the planned rule, which asks for KERPLE, `fox(initial_bias=4)` and `cpb_log` above ALiBi"
        sentences.append(
            f"At {size} million parameters, on three tasks, the recommendation {decision['recommendation']} "
            f"{rule} and RoPE: {listed_means(scores[width])}. The order {decision['order']} (Spearman's rho "
            f"with that at {SIZES[SMALLEST]} million {number(decision['rho'])}, p = {decision['p']:.2f})."
        )
    return " ".join(sentences)


def listed_means(scores: pd.DataFrame) -> str:
    """Return the mean score of each encoding, the best first."""
    means = case_means(scores).sort_values(ascending=False)
    return ", ".join(f"`{label}` {number(mean)}" for label, mean in means.items())


def blocks(folder: Path) -> dict[str, Any]:
    """Return the tables and the numbers of the page."""
    counts, scores = load(folder)
    runs_made = [f"{counts[width]} of {RUNS} runs at {size} million" for width, size in SIZES.items()]
    return {
        "answer": answer(folder),
        "runs": join_names(runs_made),
        "figure": FIGURE if scores else NONE_YET,
        "means": mean_table(counts, scores) if scores else NONE_YET,
        "by_task": by_task_table(scores) if scores else NONE_YET,
        "decisions": decision_table(counts, scores),
    }


def size_name(width: int, counts: dict[int, int]) -> str:
    """Return a size in words, with its number of runs if some are missing."""
    return f"{SIZES[width]} M" + ("" if counts[width] == RUNS else f" ({counts[width]} of {RUNS} runs)")


def mean_table(counts: dict[int, int], scores: dict[int, pd.DataFrame]) -> str:
    """Return means over the complete cases by size and encoding."""
    lines = []
    for width, rows in scores.items():
        means = {metric: case_means(rows, metric) for metric in METRICS}
        learned_only = case_means(rows, unlearned=np.nan)
        cases = rows.groupby("label")["learned"].agg(["sum", "size"])
        for label in means[SCORE].sort_values(ascending=False).index:
            lines.append(
                {
                    "parameters": size_name(width, counts),
                    "encoding": f"`{label}`",
                    "mean score": number(means[SCORE][label]),
                    "at 2x": number(means[bank.AT_2X][label]),
                    "at 4x": number(means[bank.AT_4X][label]),
                    "learned": f"{cases.loc[label, 'sum']} of {cases.loc[label, 'size']} cases",
                    "mean score, learned cases": number(learned_only[label]),
                }
            )
    return table(pd.DataFrame(lines))


def by_task_table(scores: dict[int, pd.DataFrame]) -> str:
    """Return the mean score of each task by encoding and size, with the scores of single seeds."""
    cells: dict[str, dict[str, str]] = {}
    for width, rows in scores.items():
        for (label, task), by_seed in values_of(rows).groupby([rows["label"], rows["task"]]):
            seeds = " and ".join(map(number, by_seed))
            cells.setdefault(f"`{label}`", {})[f"`{task}`, {SIZES[width]} M"] = seeds
    lines = pd.DataFrame.from_dict(cells, orient="index").fillna("–")
    columns = [f"`{task}`, {SIZES[width]} M" for task in TASKS for width in scores]
    lines = lines.reindex(columns=[column for column in columns if column in lines])
    lines.insert(0, "score by seed", lines.index)
    return table(lines)


def decision_table(counts: dict[int, int], scores: dict[int, pd.DataFrame]) -> str:
    """Return the decisions about the larger sizes; a size with missing runs has none."""
    lines = []
    for width in SIZES:
        if width == SMALLEST:
            continue
        line: dict[str, Any] = {"parameters": size_name(width, counts)}
        if counts[width] == counts[SMALLEST] == RUNS:
            decision = decide(scores[SMALLEST], scores[width])
            line["rho with 0.1 M"] = f"{number(decision['rho'])} (p = {decision['p']:.2f})"
            line["the order"] = decision["order"]
            line["lowest of three / higher of two"] = (
                f"{number(decision['lowest'])} / {number(decision['highest'])}"
            )
            line["the recommendation"] = decision["recommendation"]
            line |= {name: number(decision[name]) for name in decision if name.startswith("rho, ")}
        lines.append(line)
    rows = pd.DataFrame(lines)
    if len(rows.columns) == 1:
        rows["the order"] = "not decided"
    return table(rows.fillna("not decided"))


def pages(folder: Path) -> None:
    """Write ``scores.csv`` and draw the rank of each encoding over the number of parameters."""
    counts, scores = load(folder)
    if not scores:
        return
    pd.concat([rows.assign(width=width) for width, rows in scores.items()]).to_csv(
        folder / "scores.csv", index=False
    )
    labels = [*RECOMMENDED, *OTHERS]
    style_by_label = styles(labels)
    figure = Figure(figsize=(7.2, 2.5), layout="constrained")
    panels = figure.subplots(1, len(labels), sharey=True)
    sizes = [SIZES[width] for width in scores]
    ranks = [
        task_means(rows)
        .reindex(columns=TASKS)
        .assign(mean=case_means(rows) if counts[width] == RUNS else np.nan)
        .rank(ascending=False)
        for width, rows in scores.items()
    ]
    for axes, label in zip(panels, labels, strict=True):
        colour, marker = style_by_label[label]
        by_size = pd.DataFrame([rank.loc[label] for rank in ranks])
        for task, line in LINES.items():
            axes.plot(sizes, by_size[task], line, color=colour, marker=".", linewidth=0.9, label=task)
        axes.plot(sizes, by_size["mean"], color=colour, marker=marker, linewidth=2.4, label="mean")
        axes.set(title=label, xscale="log", xlim=(0.07, 9), xlabel="million parameters")
        axes.set_xticks(list(SIZES.values()), [f"{size:g}" for size in SIZES.values()])
        axes.minorticks_off()
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set(ylim=(len(labels) + 0.3, 0.7), ylabel="rank by score")
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4, frameon=False)
    save(figure, folder / "figures", "answer")
