"""Does exact match past the training lengths fall after a task is learned? The rules are in plan.md."""

from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from pe_experiments.comparison.sentences import number
from pe_experiments.drawing import legend_below, save, styles
from pe_experiments.studies import Study, read_archive, read_table, table

BANK = Path(__file__).parents[1] / "bank"
LENGTHS = [6, 12, 18, 24]  # at which a model learns
TWICE, FOUR_TIMES = 48, 96
LEARNED = 0.9  # mean exact match over `LENGTHS`, as in the bank
CHANGE = 0.1  # in exact match; smaller ones may be noise
CONSECUTIVE = 3  # evaluations in the mean that finds a fall after a rise
CONFIGURATIONS = {2: "decoder, 40 symbols", 7: "llama, 10 symbols"}  # by the seed of their runs


def judge(before: float, after: float) -> str:
    """Return what exact match does between two evaluations: it rises, falls or stays, or is at the floor."""
    change = round(after - before, 6)  # evaluations of 200 examples may differ by exactly CHANGE
    if change > CHANGE:
        return "rises"
    if before <= CHANGE:
        return "at the floor"
    return "falls" if change < -CHANGE else "stays"


def by_run(folder: Path) -> pd.DataFrame:
    """Return a row per run: when it learned, exact match then and at the end, and in the bank."""
    runs = read_archive(folder)
    bank_scores = read_table(BANK / "scores.csv").set_index(["task", "label", "configuration"])["name"]
    bank_curves = exact_match(read_table(BANK / "curves.csv"))
    ends = exact_match(runs.curves)
    rows = []
    run: Any
    for run in runs.runs.itertuples():
        evaluations = runs.by_step[runs.by_step["name"] == run.name]
        curve = evaluations.pivot(index="step", columns="length", values="exact_match")
        learned = curve.index[curve[LENGTHS].mean(axis=1).round(6) >= LEARNED]
        row: dict[str, Any] = {"task": run.task, "configuration": run.seed, "encoding": run.label}
        row["learned"] = learned[0] if len(learned) else None
        if len(learned):
            since = curve.loc[learned[0] :]
            at_2x, at_4x = since[TWICE], since[FOUR_TIMES]
            means = at_2x.rolling(CONSECUTIVE).mean()
            row["before"], row["after"] = at_2x.iloc[0], at_2x.iloc[-1]
            row["verdict"] = judge(row["before"], row["after"])
            row["since_highest"] = means.iloc[-1] - means.max()
            row["before_4x"], row["after_4x"] = at_4x.iloc[0], at_4x.iloc[-1]
        row["bank"] = bank_curves[bank_scores[run.task, run.label, run.seed], TWICE]
        row["end"] = ends[run.name, TWICE]
        row["against_bank"] = judge(row["bank"], row["end"])
        rows.append(row)
    return pd.DataFrame(rows).sort_values(["task", "configuration", "encoding"], ignore_index=True)


def exact_match(curves: pd.DataFrame) -> pd.Series:
    """Return exact match by run and length of the input."""
    return curves.set_index(["name", "content_length"])["exact_match"]


def can_fall(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the runs that had learned when exact match at twice the training length was above the floor."""
    return rows[rows["before"] > CHANGE]


def counts(rows: pd.DataFrame) -> pd.DataFrame:
    """Count the verdicts over all runs, by task and by encoding."""
    groups = {"all": rows}
    for column in ("task", "encoding"):
        groups |= {f"`{name}`": group for name, group in rows.groupby(column)}
    lines = []
    for name, group in groups.items():
        verdicts = can_fall(group)["verdict"].value_counts()
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


def change_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a line for each run: exact match when it learned and at the end, and the verdicts."""
    lines = []
    row: Any
    for row in rows.itertuples():
        has_learned = pd.notna(row.learned)
        lines.append(
            {
                "task": f"`{row.task}`",
                "model": CONFIGURATIONS[row.configuration],
                "encoding": f"`{row.encoding}`",
                "learned at step": f"{row.learned:,.0f}" if has_learned else "not",
                "at 2x": f"{number(row.before)} to {number(row.after)}" if has_learned else "–",
                "": row.verdict if has_learned else "–",
                "since its highest": f"{row.since_highest:+.2f}" if has_learned else "–",
                "at 4x": f"{number(row.before_4x)} to {number(row.after_4x)}" if has_learned else "–",
                "from the bank": f"{number(row.bank)} to {number(row.end)}, {row.against_bank}",
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
    able = can_fall(rows)
    from_bank = rows[rows["bank"] > CHANGE]
    fallen = (able["verdict"] == "falls").sum()
    answer = "no" if fallen <= len(able) / 10 else "in some runs"
    if fallen > len(able) / 2:
        answer = "yes"
    return {
        "counts": table(counts(rows)),
        "changes": table(change_table(rows)),
        "answer": answer,
        "fallen": fallen,
        "able": len(able),
        "risen": (able["verdict"] == "rises").sum(),
        "learned": rows["learned"].notna().sum(),
        **{f"copied/{label}": copied_at_4x(rows, label) for label in ("rope_nope", "kerple_log")},
        "bank_fallen": (from_bank["against_bank"] == "falls").sum(),
        "bank_able": len(from_bank),
        "bank_fallen_runs": ", ".join(
            f"`{row.encoding}` on `{row.task}` from {number(row.bank)} to {number(row.end)}"
            for row in from_bank[from_bank["against_bank"] == "falls"].itertuples()
        ),
        "bank_risen": (rows["against_bank"] == "rises").sum(),
    }


def draw_curves(folder: Path, figures: Path) -> None:
    """Draw exact match at two and four times the training length over the steps; a ring marks learning."""
    runs = read_archive(folder)
    rows = by_run(folder)
    points = runs.by_step.merge(runs.runs[["name", "label", "task", "seed"]], on="name")
    cases = [(task, seed) for task in sorted(set(rows["task"])) for seed in CONFIGURATIONS]
    style_of = styles(sorted(set(rows["encoding"])))
    figure = Figure(figsize=(7.2, 3.8), layout="constrained")
    panels = figure.subplots(2, len(cases), sharey=True, sharex="col")
    for line, (length, times) in zip(panels, ((TWICE, "2x"), (FOUR_TIMES, "4x")), strict=True):
        for axes, (task, seed) in zip(line, cases, strict=True):
            case = points[(points["task"] == task) & (points["seed"] == seed) & (points["length"] == length)]
            for label, curve in case.groupby("label"):
                colour = style_of[str(label)][0]
                axes.plot(curve["step"] / 1000, curve["exact_match"], color=colour, linewidth=1)
                learned = rows.query("task == @task and configuration == @seed and encoding == @label")
                start = curve[curve["step"] == learned["learned"].iloc[0]]
                axes.plot(start["step"] / 1000, start["exact_match"], "o", color=colour, fillstyle="none")
            axes.set(ylim=(-0.03, 1.03))
            axes.spines[["top", "right"]].set_visible(False)
            axes.tick_params(labelsize=7)
        line[0].set_ylabel(f"exact match at {times}", fontsize=7)
    for axes, (task, seed) in zip(panels[0], cases, strict=True):
        axes.set_title(f"{task}\n{CONFIGURATIONS[seed]}", fontsize=7)
    for axes in panels[1]:
        axes.set_xlabel("thousand steps", fontsize=7)
    legend_below(figure, {label: (colour, "") for label, (colour, _) in style_of.items()}, [*style_of])
    save(figure, figures, "curves")


STUDY = Study(sweep=("every",), values=values, figures=(draw_curves,), tables={"changes": by_run})
