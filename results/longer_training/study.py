"""Does exact match past the training lengths fall after a task is learned? The rules are in plan.md."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pe_experiments.comparison.sentences import number
from pe_experiments.drawing import legend_below, panel_grid, save, styles
from pe_experiments.studies import Study, read_archive, read_table, table

BANK = Path(__file__).parents[1] / "bank"
LENGTHS = [6, 12, 18, 24]  # at which a model learns
TWICE, FOUR_TIMES = 48, 96
LEARNED = 0.9  # mean exact match over `LENGTHS`, as in the bank
CHANGE = 0.1  # in exact match; smaller ones may be noise
CONSECUTIVE = 3  # evaluations in the mean that finds a fall after a rise
CONFIGURATIONS = {2: "decoder, 40 symbols", 7: "llama, 10 symbols"}  # by the seed of their runs


def judge(before: pd.Series, after: pd.Series) -> np.ndarray:
    """Return what exact match does between two evaluations: it rises, falls or stays, or is at the floor."""
    change = (after - before).round(6)  # evaluations of 200 examples may differ by exactly CHANGE
    verdicts = {"rises": change > CHANGE, "at the floor": before <= CHANGE, "falls": change < -CHANGE}
    return np.select([*verdicts.values()], [*verdicts], "stays")


def by_run(folder: Path) -> pd.DataFrame:
    """Return a row per run: when it learned, exact match then and at the end, and in the bank."""
    runs = read_archive(folder)
    keys = ["task", "configuration", "encoding"]
    rows = runs.runs.set_index("name")[["task", "seed", "label"]].set_axis(keys, axis="columns")
    curves = runs.by_step.pivot(index=["name", "step"], columns="length", values="exact_match")
    has_learned = curves[LENGTHS].mean(axis=1).round(6).ge(LEARNED).groupby("name").cummax()
    since = curves[has_learned].reset_index("step").groupby("name")
    first, last = since.first(), since.last()
    means = since[TWICE].rolling(CONSECUTIVE).mean().groupby(level=0)
    rows["learned"] = first["step"]
    rows["before"], rows["after"] = first[TWICE], last[TWICE]
    rows["verdict"] = judge(rows["before"], rows["after"])
    rows.loc[rows["learned"].isna(), "verdict"] = np.nan
    rows["since_highest"] = means.last() - means.max()
    rows["before_4x"], rows["after_4x"] = first[FOUR_TIMES], last[FOUR_TIMES]
    of_bank = read_table(BANK / "scores.csv").set_index(["task", "configuration", "label"])
    rows = rows.join(of_bank["exact_match_at_2x"].rename("bank"), on=keys)
    rows["end"] = runs.runs.set_index("name")["exact_match_at_2x"]
    rows["against_bank"] = judge(rows["bank"], rows["end"])
    return rows.sort_values(keys, ignore_index=True)


def counts(rows: pd.DataFrame) -> pd.DataFrame:
    """Count the verdicts over all runs, by task and by encoding.

    Only runs that had learned when exact match was above the floor can fall.
    """
    groups = {"all": rows}
    for column in ("task", "encoding"):
        groups |= {f"`{name}`": group for name, group in rows.groupby(column)}
    lines = []
    for name, group in groups.items():
        verdicts = group.loc[group["before"] > CHANGE, "verdict"].value_counts()
        against_bank = group.loc[group["bank"] > CHANGE, "against_bank"]
        lines.append(
            {
                "runs": name,
                "learned": f"{group['learned'].notna().sum()} of {len(group)}",
                "can fall": verdicts.sum(),
                **{verdict: verdicts.get(verdict, 0) for verdict in ("falls", "stays", "rises")},
                "falls against the bank": f"{(against_bank == 'falls').sum()} of {len(against_bank)}",
            }
        )
    return pd.DataFrame(lines)


def copied_at_4x(rows: pd.DataFrame, encoding: str) -> str:
    """Return the range of exact match of copying at the end, at four times the training length."""
    copies = rows[(rows["task"] == "copy") & (rows["encoding"] == encoding)]["after_4x"]
    lowest, highest = number(copies.min()), number(copies.max())
    return lowest if lowest == highest else f"{lowest} to {highest}"


def values(folder: Path) -> dict[str, Any]:
    """Return the tables of the page and the numbers in its text."""
    rows = by_run(folder)
    lines = counts(rows)
    of_all: Any = lines.loc[0]
    able, fallen = of_all["can fall"], of_all["falls"]
    answer = "no" if fallen <= able / 10 else "in some runs"
    if fallen > able / 2:
        answer = "yes"
    against_bank = rows[rows["bank"] > CHANGE]
    worse = against_bank[against_bank["against_bank"] == "falls"]
    return {
        "counts": table(lines),
        "answer": answer,
        "fallen": fallen,
        "able": able,
        "risen": of_all["rises"],
        "learned": rows["learned"].notna().sum(),
        **{f"copied/{label}": copied_at_4x(rows, label) for label in ("rope_nope", "kerple_log")},
        "bank_fallen": len(worse),
        "bank_able": len(against_bank),
        "bank_fallen_runs": ", ".join(
            f"`{row.encoding}` on `{row.task}` from {number(row.bank)} to {number(row.end)}"
            for row in worse.itertuples()
        ),
        "bank_risen": (rows["against_bank"] == "rises").sum(),
    }


def draw_curves(folder: Path, figures: Path) -> None:
    """Draw exact match at two and four times the training length over the steps; a ring marks learning."""
    runs = read_archive(folder)
    points = runs.by_step.merge(runs.runs[["name", "label", "task", "seed"]], on="name")
    curves: Any = points.set_index(["task", "seed", "length", "label", "step"])["exact_match"].sort_index()
    learned = by_run(folder).set_index(["task", "configuration", "encoding"])["learned"]
    style_of = {label: (colour, "") for label, (colour, _) in styles(sorted(set(points["label"]))).items()}
    cases = [*product({TWICE: "2x", FOUR_TIMES: "4x"}.items(), ("copy", "induction"), CONFIGURATIONS)]
    figure, panels = panel_grid(len(cases), 4, 1.9, sharey=True, sharex="col")
    for axes, ((length, times), task, seed) in zip(panels, cases, strict=True):
        for label, (colour, _) in sorted(style_of.items()):
            curve = curves[task, seed, length, label]
            axes.plot(curve.index / 1000, curve, color=colour, linewidth=1)
            start = curve[curve.index == learned[task, seed, label]]
            axes.plot(start.index / 1000, start, "o", color=colour, fillstyle="none")
        axes.set(ylim=(-0.03, 1.03))
        axes.tick_params(labelsize=7)
        axes.set_ylabel(f"exact match at {times}", fontsize=7)
        axes.set_xlabel("thousand steps", fontsize=7)
        axes.label_outer()
        if length == TWICE:
            axes.set_title(f"{task}\n{CONFIGURATIONS[seed]}", fontsize=7)
    legend_below(figure, style_of, style_of)
    save(figure, figures, "curves")


STUDY = Study(sweep=("every",), values=values, figures=(draw_curves,), tables={"changes": by_run})
