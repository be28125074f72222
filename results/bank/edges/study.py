"""Test whether other learning rates or more steps would change the verdicts of the bank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from pe_experiments.comparison import Runs
from pe_experiments.comparison.words import number
from pe_experiments.drawing import legend_below, save, styles
from pe_experiments.studies import read_archive, table, verdicts, with_settings
from pe_experiments.studies.archive import select_runs
from pe_experiments.studies.scores import FLOORS, RATE, SCORE, score_table, scores_by_setting

BANK = Path(__file__).parents[1] / "v2"
VIEWS = {"left out": float("nan"), "0": 0.0}  # the score of an unlearned configuration
WORDS = {  # the verdict relative to the best encoding
    verdicts.BETTER: "lower",
    verdicts.NOT_SEPARATED: "tied",
    verdicts.WORSE: "higher",
}


def load(folder: Path) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Return the scores of the bank's runs, of runs at a new rate, and of runs with more steps.

    The columns are those of `score_table`, and steps, loss and exact match at the training lengths.
    """
    bank = scored(read_archive(BANK), ["rate"])
    further = scored(read_archive(folder), ["task", "label", "rate", "steps"])
    usual = further["task"].map(bank.groupby("task")["steps"].first())
    return bank, further[further["steps"] == usual], further[further["steps"] > usual]


def scored(runs: Runs, groups: list[str]) -> pd.DataFrame:
    """Return the scores of all runs, not only of those at the better learning rate.

    Runs with the same values of ``groups`` are scored together. Configurations that some encodings of a group
    lack are left out.
    """
    floors = pd.read_csv(BANK / FLOORS)
    rows = with_settings(runs, rate=RATE, steps="training.steps")
    tables = []
    for _, group in rows.groupby(groups):
        selected = select_runs(runs, runs.runs["name"].isin(group["name"]))
        tables.append(score_table(selected, floors))
    columns = rows.set_index("name")[["steps", "loss_in_distribution", "exact_match_in_distribution"]]
    return pd.concat(tables, ignore_index=True).join(columns, on="name")


def better_rate(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the run with the lowest loss at the training lengths, by task, encoding and configuration."""
    rows = rows.sort_values(["loss_in_distribution", "rate"], kind="stable")
    return rows.drop_duplicates(["task", "label", "setting"])


def verdict_words(rows: pd.DataFrame, unlearned: float) -> dict[str, str]:
    """Return the verdict on each encoding on a task, such as ``tied``; the best encoding comes first."""
    best, differences = verdicts.best(scores_by_setting(rows, SCORE, unlearned))
    by_name = {best: "best"}
    for name, difference in differences.items():
        by_name[name] = WORDS.get(difference.verdict, "not compared")
    return by_name


def rate_rows(bank: pd.DataFrame, rates: pd.DataFrame) -> pd.DataFrame:
    """Return a row per task, encoding and new rate: mean scores without and with the new rate."""
    before = better_rate(bank)
    after = better_rate(pd.concat([bank, rates]))
    rows = []
    for (task, label, rate), group in rates.groupby(["task", "label", "rate"]):
        chosen = after[after["name"].isin(group["name"])]
        means = []
        for chosen_runs in (before, after):
            of_encoding = chosen_runs[(chosen_runs["task"] == task) & (chosen_runs["label"] == label)]
            means.append(of_encoding[SCORE].where(of_encoding["learned"], 0).mean())
        rows.append(
            {
                "task": task,
                "encoding": f"`{label}`",
                "new rate": f"{rate:g}",
                "lower loss": f"{len(chosen)} of {len(group)}",
                "score": number(means[0]),
                "with the new rate": number(means[1]),
            }
        )
    return pd.DataFrame(rows)


def changed_verdicts(bank: pd.DataFrame, rates: pd.DataFrame) -> pd.DataFrame:
    """Return a row per task and view: the best encodings and the verdicts that change."""
    before = better_rate(bank)
    after = better_rate(pd.concat([bank, rates]))
    rows = []
    for task in rates["task"].unique():
        for view, unlearned in VIEWS.items():
            old = verdict_words(before[before["task"] == task], unlearned)
            new = verdict_words(after[after["task"] == task], unlearned)
            changes = [f"`{name}`: {old[name]}, now {new[name]}" for name in old if old[name] != new[name]]
            rows.append(
                {
                    "task": task,
                    "unlearned": view,
                    "best": f"`{next(iter(old))}`",
                    "best with the new rate": f"`{next(iter(new))}`",
                    "verdicts that change": "; ".join(changes) or "–",
                }
            )
    return pd.DataFrame(rows)


def step_rows(bank: pd.DataFrame, longer: pd.DataFrame) -> pd.DataFrame:
    """Return a row per task and encoding: exact match with the bank's steps and with more."""
    rows = []
    for (task, label, steps), group in longer.groupby(["task", "label", "steps"]):
        same = bank.merge(group[["task", "label", "setting", "rate"]])
        learned = int(group["learned"].sum())
        rows.append(
            {
                "task": task,
                "encoding": f"`{label}`",
                "steps": f"{steps:,}",
                "exact match": listed(group["exact_match_in_distribution"]),
                "with half the steps": listed(same["exact_match_in_distribution"]),
                "learned": f"{learned} of {len(group)}",
                "so it is": "slow" if learned > len(group) / 2 else "not learned with twice the steps",
            }
        )
    return pd.DataFrame(rows)


def listed(values: pd.Series) -> str:
    return ", ".join(map(number, values))


def pages(folder: Path) -> None:
    """Draw the mean score over the learning rate, one panel per task."""
    bank, rates, _ = load(folder)
    scores = pd.concat([bank, rates])
    scores = scores.assign(score=scores[SCORE].where(scores["learned"], 0))
    tasks = [*rates["task"].unique()]
    looks = styles(sorted(set(rates["label"])))
    figure = Figure(figsize=(7.2, 2.6), layout="constrained")
    for axes, task in zip(figure.subplots(1, len(tasks), sharey=True), tasks, strict=True):
        new = rates.loc[rates["task"] == task, "label"].unique()
        for label, rows in scores[scores["task"] == task].groupby("label"):
            means = rows.groupby("rate")["score"].mean()
            if label in new:
                colour, marker = looks[label]
                axes.plot(means.index, means, color=colour, marker=marker, markersize=4, zorder=3)
            else:
                axes.plot(means.index, means, color="0.75", marker="", markersize=4, zorder=2)
        ticks = sorted(scores.loc[scores["task"] == task, "rate"].unique())
        axes.set(title=task, xscale="log", xlabel="learning rate", ylim=(0, 1.02))
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks], fontsize=6)
        axes.minorticks_off()
    figure.axes[0].set_ylabel("mean score, unlearned as 0")
    legend_below(figure, looks, looks)
    save(figure, folder / "figures", "answer")


def blocks(folder: Path) -> dict[str, Any]:
    """Return the tables and the numbers of the page."""
    bank, rates, longer = load(folder)
    scores = rate_rows(bank, rates)
    values: dict[str, Any] = {}
    for row in scores.to_dict("records"):
        name = f"{row['task']}/{row['encoding'].strip('`')}"
        values |= {name: row["score"], f"{name}/new": row["with the new rate"]}
    return values | {
        "rates": table(scores),
        "verdicts": table(changed_verdicts(bank, rates)),
        "steps": table(step_rows(bank, longer)),
    }
