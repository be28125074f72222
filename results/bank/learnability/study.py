"""How often an encoding is learned and how soon, and what the choice of a learning rate changes.

All numbers come from runs that `bank/v2`, `bank/new` and `bank/mirrored` publish. A case is a task in a
configuration. Every case was trained at two learning rates, of which the bank counts the one with the lower
loss on fresh examples of the training lengths.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from pe_experiments.comparison import Runs
from pe_experiments.comparison.statistics import share_interval
from pe_experiments.comparison.words import number
from pe_experiments.drawing import legend_below, save, styles
from pe_experiments.evaluation.summary import SOLVED
from pe_experiments.studies import read_archive, table, with_settings
from pe_experiments.studies.archive import select_runs
from pe_experiments.studies.pages import load_study
from pe_experiments.studies.scores import FLOORS, RATE, SCORE, score_table

BANK = Path(__file__).parents[1]
bank = load_study(BANK / "v2")
FLOORS_OF = {"v2": "v2", "new": "v2", "mirrored": "mirrored"}  # the study with the floors, by study
TASKS = ["copy", "lag", "induction", "flip_flop"]
RATES = (0.001, 0.003)
RUNS = len(TASKS) * bank.SETTINGS * len(RATES)  # of an encoding that is complete in a study
CASE = ["label", "task", "setting"]
DRAWN = ["rope", "alibi", "none", "kerple_log", "fox", bank.GATE, "cpb_log"]
FEWEST_UNLEARNED = 3  # pairs of task and encoding with fewer unlearned cases are not split by factor
RULES = {  # the column with the score of each rule, by its name
    "by the training loss": "by loss",
    "by the score elsewhere": "by score",
    "0.001 everywhere": "0.001",
    "0.003 everywhere": "0.003",
}


def read_study(name: str) -> pd.DataFrame:
    """Return a row per run of the encodings that are complete in a study of the bank.

    The columns are those of `score_table`, the ``loss`` by which the bank chooses a rate, the factors of the
    configuration, and from evaluations on fresh examples every 200 steps the ``first`` step at which exact
    match reached `SOLVED` (NaN if never) and ``forgotten``: whether it did and is below at the last one.
    """
    archive = read_archive(BANK / name)
    rows = with_settings(archive, rate=RATE)
    is_asked = rows["task"].isin(TASKS)
    counts = rows[is_asked].groupby("label").size()
    is_asked &= rows["label"].isin(counts[counts == RUNS].index)
    floors = pd.read_csv(BANK / FLOORS_OF[name] / FLOORS)
    at_rates = [select_runs(archive, is_asked & (rows["rate"] == rate)) for rate in RATES]
    runs = pd.concat([score_table(at_rate, floors) for at_rate in at_rates], ignore_index=True)
    runs["loss"] = runs["name"].map(rows.set_index("name")["loss_in_distribution"])
    runs = runs.join(training_of(archive), on="name")
    return bank.with_factors(runs, archive)


def training_of(archive: Runs) -> pd.DataFrame:
    """Return the columns ``first`` and ``forgotten`` by the name of a run; see `read_study`."""
    evaluations = archive.training.sort_values("step")
    reached = evaluations[evaluations["exact_match"] >= SOLVED]
    last = evaluations.groupby("name")["exact_match"].last()
    first = reached.groupby("name")["step"].first().reindex(last.index)
    return pd.DataFrame({"first": first, "forgotten": first.notna() & (last < SOLVED)})


def load() -> pd.DataFrame:
    """Return the runs of the three studies at both rates."""
    runs = pd.concat([read_study(name) for name in FLOORS_OF], ignore_index=True)
    return runs.assign(value=runs[SCORE].where(runs["learned"], 0.0))


def counted(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs at the rate that the bank counts in each case."""
    return runs.sort_values(["loss", "rate"], kind="stable").drop_duplicates(CASE)


def scores_by_rule(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the mean scores [encodings, `RULES`] over the first twelve configurations.

    *By the score elsewhere* takes for each case the rate with the higher mean score on this task in the other
    configurations, so that no run is chosen by its own score.
    """
    cases = runs[runs["setting"] < bank.SETTINGS].pivot(index=CASE, columns="rate", values="value")
    elsewhere = cases.groupby(["label", "task"]).transform("sum") - cases
    by_loss = counted(runs).set_index(CASE)["value"].reindex(cases.index)
    by_score = cases.to_numpy()[np.arange(len(cases)), elsewhere.to_numpy().argmax(axis=1)]
    rules = pd.DataFrame({"by loss": by_loss, "by score": by_score}, index=cases.index)
    return rules.join(cases.rename(columns=str))


def blocks(folder: Path) -> dict[str, Any]:
    """Return the tables and the numbers of the page, such as ``learned/fox`` and ``lag/rope/by loss``."""
    runs = load()
    best = counted(runs)
    rules = scores_by_rule(runs)
    means = rules.groupby("label").mean()
    tied = bank.ranking.rank(bank.with_newer_encodings(pd.read_csv(BANK / "v2" / "scores.csv"))[0])["tied"]
    six = means.index.isin(tied.index[tied])
    learned = best.groupby("label")["learned"].agg(["sum", "size"])
    either = runs.groupby(CASE)["learned"].any()
    values: dict[str, Any] = {}
    for (task, label), rows in rules.groupby(["task", "label"]):
        values |= {f"{task}/{label}/{rule}": rows[rule].mean() for rule in RULES.values()}
    values |= learned_at_levels(best)
    values |= {f"learned/{label}": count for label, count in learned["sum"].items()}
    return values | {
        "rescued": int(either.sum() - best["learned"].sum()),
        "unlearned": int((~best["learned"]).sum()),
        "runs": len(runs),
        "forgotten": int(runs["forgotten"].sum()),
        "reached": int(runs["first"].notna().sum()),
        "separate": int((means[six].min() > means[~six].max()).sum()),
        "lowest of six": means[six].min().min(),
        "highest of others": means[~six].max().max(),
        "table": learned_table(runs),
        "factors": factor_table(best),
        "rules": rule_table(means),
    }


def learned_table(runs: pd.DataFrame) -> str:
    """Return how often each encoding was learned, by task and rate, and how soon, most often first."""
    best = counted(runs)
    lines = []
    for label, rows in best.groupby("label"):
        interval = share_interval(int(rows["learned"].sum()), len(rows))
        at_rate = runs[runs["label"] == label].groupby("rate")["learned"].sum()
        by_task = rows.groupby("task")["learned"].agg(["sum", "size"])
        steps = rows[rows["learned"]].groupby("task")["first"].median()
        lines.append(
            {
                "share": interval.estimate,
                "encoding": f"`{label}`",
                "learned": f"{rows['learned'].sum()} of {len(rows)}",
                "95% interval": f"[{number(interval.low)}, {number(interval.high)}]",
                **{f"at {rate:g}": at_rate[rate] for rate in RATES},
                **{f"`{task}`": by_task.loc[task, "sum"] for task in TASKS},
                "median steps": " / ".join(f"{steps[task]:,.0f}" for task in TASKS),
            }
        )
    rows = pd.DataFrame(lines).sort_values(["share", "encoding"], ascending=[False, True])
    return table(rows.drop(columns="share"))


def learned_at_levels(best: pd.DataFrame) -> dict[str, str]:
    """Return how many cases were learned at each level of a factor, as ``copy/fox/2 layers``: ``6 of 12``."""
    counts = {}
    for (task, label), rows in best.groupby(["task", "label"]):
        for factor, (_, *levels) in bank.FACTORS.items():
            for is_high, level in enumerate(levels):
                learned = rows.loc[rows[factor] == is_high, "learned"]
                counts[f"{task}/{label}/{level}"] = f"{learned.sum()} of {len(learned)}"
    return counts


def factor_table(best: pd.DataFrame) -> str:
    """Return how many cases were learned at each level of the factors, where several were not."""
    counts = learned_at_levels(best)
    lines = []
    for (label, task), rows in best.groupby(["label", "task"]):
        if (~rows["learned"]).sum() >= FEWEST_UNLEARNED:
            line = {"encoding": f"`{label}`", "task": f"`{task}`"}
            for _, low, high in bank.FACTORS.values():
                line[f"{low}, {high}"] = ", ".join(counts[f"{task}/{label}/{level}"] for level in (low, high))
            lines.append(line)
    return table(pd.DataFrame(lines))


def rule_table(means: pd.DataFrame) -> str:
    """Return the mean scores by rule, sorted by the bank's."""
    ordered = means.sort_values("by loss", ascending=False)
    cells = {name: ordered[column].map(number) for name, column in RULES.items()}
    return table(pd.DataFrame({"encoding": "`" + ordered.index + "`", **cells}))


def pages(folder: Path) -> None:
    """Draw the share of cases at or above `SOLVED` over the steps, by task."""
    best = counted(load())
    best = best[best["label"].isin(DRAWN)]
    training = pd.concat([read_archive(BANK / name).training for name in FLOORS_OF])
    evaluations = training[training["name"].isin(best["name"])].copy()
    evaluations["solved"] = evaluations["exact_match"] >= SOLVED
    style_of = styles(DRAWN)
    figure = Figure(figsize=(7.2, 2.6), layout="constrained")
    for axes, task in zip(figure.subplots(1, len(TASKS), sharey=True), TASKS, strict=True):
        shares = (
            evaluations[evaluations["task"] == task].groupby(["step", "label"])["solved"].mean().unstack()
        )
        for label in DRAWN:
            colour, marker = style_of[label]
            axes.plot(shares.index, shares[label], color=colour, marker=marker, markersize=3, linewidth=1.2,
                      markevery=max(1, len(shares) // 6), clip_on=False)  # fmt: skip
        axes.set(title=task, xlabel="step", ylim=(0, 1), xlim=(0, None))
        axes.spines[["top", "right"]].set_visible(False)
        axes.label_outer()
    figure.axes[0].set_ylabel("share of cases learned")
    legend_below(figure, style_of, DRAWN)
    save(figure, folder / "figures", "answer")
