"""Which encoding for longer inputs? Encodings on tasks that need order, in the same configurations.

A *configuration* sets layers, symbols, training length, blocks, heads and the seed, which numbers it: 0 to 11
come first, 12 to 23 have the other value of every factor. A *case* is a task in a configuration. Scores are
those of `pe_experiments.studies.scores`; an unlearned case counts as 0.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from pe_experiments.comparison.sentences import number
from pe_experiments.comparison.statistics import ALPHA
from pe_experiments.drawing import legend_below, length_axis, panel_grid, save, styles
from pe_experiments.studies import (
    encoding_markdown,
    format_test,
    read_archive,
    read_table,
    table,
    with_options,
)
from pe_experiments.studies.archive import select_runs
from pe_experiments.studies.inference import rank_correlation
from pe_experiments.studies.pages import Study
from pe_experiments.studies.scores import AT_2X, AT_4X, RATE, SCORE, at_counted_rates, score_runs
from pe_experiments.studies.verdicts import against_best, draw_means, sign_tests

TASKS = {  # what a model does, and the training steps
    "copy": ("copying:\nall symbols", 8000),
    "lag": ("a local pattern:\nthe symbol three back", 6000),
    "induction": ("recall:\nwhat followed a mark", 4000),
    "flip_flop": ("state:\nthe bit written last", 2000),
}
CONFIGURATIONS = 12  # in each half
FURTHER = ["repeat_copy", "needle", "precedence", "blocks", "parity_scratchpad", "dyck_depth", "bucket_sort"]
RATES = (0.003, 0.001)
METRICS = (SCORE, AT_2X, AT_4X)
GATE = "fox(initial_bias=4)"
EARLIEST = ["none", "sinusoidal", "learned", "rope", "alibi", "t5", "fire", "kerple_log", "p_rope", "fox",
            "learned+random_offset", "rope+random_subset"]  # fmt: skip
EARLY = ["fox", "kerple_log"]  # recommended from the first twelve encodings, before the others ran
IN_COLOUR = ("sinusoidal", "rope", "alibi", "kerple_log", GATE, "rope_nope")  # those that README names
PATTERN = "rope_nope"
VARIANTS = {  # of the pattern by label: its name, what is changed, and the expectation against `rope_nope`
    "rope_nope(encodings=rope+none)": ("pattern/rope_full_nope", "no window", "lower"),
    "rope_nope(encodings=sliding_window+none)": ("pattern/window_nope", "no RoPE", "lower"),
    "rope_nope(encodings=kerple_log+none)": ("pattern/kerple_nope", "KERPLE for RoPE in a window", "tied"),
    "rope_nope(encodings=none+rope_ssmax(encodings=rope+sliding_window))": (
        "pattern/nope_rope", "layers exchanged", "lower",
    ),
}  # fmt: skip
APART = [*VARIANTS, "stick_breaking"]  # not ranked: each further encoding costs all others power
SHIFTED = ["rope", "alibi", "kerple_log", GATE]  # also ran with a convolution of the last tokens, at one rate
WITH_SHIFT = "+token_shift"  # ends the labels of these runs
SUFFICIENT = 0.9  # mean score on `lag` with which that option does what CPB and CoPE do
TRUNCATED = "rope+truncation"  # RoPE that reads only its last tokens
# Drawn from the mirrored configurations by label: whose colour, the panel with room for the words, where.
DASHED = {
    TRUNCATED: ("rope", "induction", (1.1, 0.06), "dashed: RoPE, only\nits last N tokens"),
    GATE + WITH_SHIFT: (GATE, "copy", (2.3, 0.9), "dashed: FoX with\na convolution"),
}
MIRRORED = {  # models in the table of the mirrored configurations, in words
    PATTERN: f"`{PATTERN}`",
    "rope": "RoPE, all tokens",
    TRUNCATED: "RoPE, its last tokens",
    "kerple_log": "KERPLE",
    "fox": "FoX",
}
CHALLENGED = ["fox", "kerple_log", TRUNCATED]  # by the best pattern, in the mirrored configurations
SIZES = {64: "0.1", 128: "0.8", 256: "6.3"}  # width, and millions of parameters
MANY = 4  # tied encodings that are counted, not named
OFTEN = 0.9  # share of cases; encodings that learned fewer are listed
GREY = "0.75"  # encodings that are not in colour
SCALED = ["kerple_log", GATE, "cpb_log", "alibi", "rope"]  # three recommended then, and two others


class Bank(NamedTuple):
    """What the page is generated from.

    The column ``part`` of scores is ``ranked`` for encodings in configurations 0 to 11, ``apart`` for those
    that are not ranked and ``shifted`` for those with a convolution of the last tokens; ``mirrored`` for all
    in configurations 12 to 23; ``further`` for tasks that joined later, and ``early`` for tasks that left.
    """

    curves: pd.DataFrame  # exact match by label, run and length as a multiple of the training length
    all_scores: pd.DataFrame  # a row per run
    scores: pd.DataFrame  # a row per task, encoding and configuration: the run at the rate that counts
    scale: pd.DataFrame  # scores of the larger models [(task, configuration), (width, label)]

    def cases(self, *parts: str, metric: str = SCORE) -> pd.DataFrame:
        """Return `cases` of the scores in these parts."""
        return cases(self.scores[self.scores["part"].isin(parts)], metric)


def cases(scores: pd.DataFrame, metric: str = SCORE) -> pd.DataFrame:
    """Return a metric [(task, configuration), labels]: the best run's, 0 where the task was not learned."""
    learned = scores.assign(value=scores[metric].where(scores["learned"], 0.0))
    return learned.pivot_table("value", ["task", "configuration"], "label", aggfunc="max")


def over_tasks(cases: pd.DataFrame) -> pd.DataFrame:
    """Return the means of `cases` over tasks [configurations, labels]."""
    return cases.groupby("configuration").mean()


def load(folder: Path) -> Bank:
    """Read the runs and score them, part by part."""
    runs = read_archive(folder)
    rows = with_options(
        runs, rate=RATE, steps="training.steps", width="model.d_model", shift="model.token_shift"
    )
    is_shifted = rows["shift"].eq(True)
    half = rows["seed"] // CONFIGURATIONS
    # Larger models; no configuration has their options.
    is_scale = (rows["model"] == "decoder") & rows["seed"].isin([0, 1]) & (rows["max_length"] == 24)
    usual_steps = rows["task"].map({task: steps for task, (_, steps) in TASKS.items()})
    is_usual = rows["rate"].isin(RATES) & (rows["steps"].eq(usual_steps) | usual_steps.isna())
    is_usual &= ~is_scale & ~is_shifted
    for table_of_runs in (runs.runs, runs.curves):
        has_shift = table_of_runs["name"].isin(rows.loc[is_shifted, "name"])
        table_of_runs["label"] += np.where(has_shift, WITH_SHIFT, "")
    parts = {
        "shifted": is_shifted & (half == 0),
        # Newer encodings have some runs there, too: their study was withdrawn.
        "mirrored": is_shifted | is_usual & (half == 1) & rows["label"].isin([*EARLIEST, PATTERN]),
        "further": is_usual & (half == 2),
        "early": is_usual & usual_steps.isna(),
        "apart": is_usual & rows["label"].isin(APART),
        "ranked": is_usual & (half == 0),
    }
    rows["part"] = np.select([*parts.values()], [*parts], "")
    all_scores = score_runs(select_runs(runs, rows["part"] != ""), METRICS)
    all_scores = all_scores.merge(rows[["name", "part"]], on="name")

    exact_match = pd.read_csv(folder / "truncated.csv")[["name", "content_length", "exact_match"]]
    in_window = select_runs(runs, rows["name"].isin(exact_match["name"]))
    truncated = in_window.curves.drop(columns="exact_match").merge(exact_match, on=["name", "content_length"])
    scores = score_runs(replace(in_window, curves=truncated), METRICS)
    all_scores = pd.concat([all_scores, scores.assign(label=TRUNCATED, part="mirrored")])
    curves = pd.concat([runs.curves, truncated.assign(label=TRUNCATED)])
    curves = curves.merge(rows[["name", "max_length"]], on="name")
    curves["times"] = curves["content_length"] / curves["max_length"]

    scale = {}
    for width in SIZES:
        scores = score_runs(select_runs(runs, is_scale & (rows["width"] == width)))
        scale[width] = cases(at_counted_rates(scores))
    by_width = pd.concat(scale, axis="columns", names=["width", "label"])
    return Bank(curves, all_scores, at_counted_rates(all_scores), by_width)


def early_scores() -> pd.DataFrame:
    """Return the scores of the first twelve encodings in configurations 0 to 11, on all six tasks."""
    scores = read_table(Path(__file__).with_name("scores.csv"))
    return scores[(scores["configuration"] < CONFIGURATIONS) & scores["label"].isin(EARLIEST)]


def values(bank: Bank) -> dict[str, Any]:
    """Return the tables and the numbers of the page."""
    patterns = pattern_rows(bank)
    return {
        **dict(zip(patterns["encoding"], patterns["mean"], strict=True)),  # such as ``pattern/window_nope``
        **ranking_values(bank),
        **later_numbers(bank),
        **shift_values(bank),
        **task_numbers(bank),
        **mirrored_values(bank),
        **training_values(bank),
        **scale_values(bank.scale),
    }


# The ranking


def rank(bank: Bank) -> pd.DataFrame:
    """Return a row per encoding, sorted by the mean score: its test, scores by task, cases learned, cost.

    The cost is the time of a training step relative to that without an encoding.
    """
    cases = bank.cases("ranked")
    rows = against_best(over_tasks(cases)).join(cases.groupby("task").mean().T[[*TASKS]])
    rows[AT_2X] = bank.cases("ranked", metric=AT_2X).mean()
    learned = bank.scores[bank.scores["part"] == "ranked"].groupby("label")["learned"].sum()
    times = read_table(Path(__file__).parents[1] / "benchmark" / "table.csv")
    times = times[(times["part"] == "encodings") & (times["setting"] == "defaults")]
    costs = times.set_index("case")["ratio"]
    costs[GATE] = costs["fox"]
    return rows.assign(learned=learned, cost=costs)


def ranking_values(bank: Bank) -> dict[str, Any]:
    """Return the ranking, what it is by other measures, and numbers such as ``rank/tied``."""
    ranked = rank(bank)
    cases, at_2x = bank.cases("ranked"), bank.cases("ranked", metric=AT_2X)
    pairs = [(GATE, label) for label in map(str, at_2x) if label != GATE]
    test = sign_tests(over_tasks(at_2x), pairs).set_index("second").loc["rope"]
    without_lag = [GATE, "kerple_log", "learned_relative", "cpb_log", "alibi", "cope", "cpb_linear"]
    return {
        "ranking": ranking_table(ranked),
        "robust": robustness_table(bank),
        "rank/encodings": len(ranked),
        "rank/tied": ranked["tied"].sum(),
        "rank/widest tie": ranked.loc[ranked["tied"], "high"].max(),
        "without lag": means_in_words(cases.drop("lag").mean()[without_lag]),
        "2x/rope/difference": test["difference"],
        "2x/rope/p": test["p"],
    }


def ranking_table(ranked: pd.DataFrame) -> str:
    """Return the ranking with the test of the best encoding against each other; tied means are bold."""
    cells = ranked[["mean", *TASKS, AT_2X, "learned", "cost"]].map(number)
    cells["mean"] = cells["mean"].mask(ranked["tied"], "**" + cells["mean"] + "**")
    cells["learned"] = ranked["learned"]
    cells["p"] = ["–", *ranked["calibrated_p"].iloc[1:].map("{:.3f}".format)]
    return encoding_markdown(cells.rename(columns={AT_2X: "at 2x"}))


def robustness_table(bank: Bank) -> str:
    """Return the best encoding and those tied with it by other measures, and with any task left out."""
    measures = {
        "score of the better rate": at_better_rates(bank),
        "exact match at 2x": bank.cases("ranked", metric=AT_2X),
    }
    measures |= {f"score without `{task}`": bank.cases("ranked").drop(task) for task in TASKS}
    lines = []
    for words, values in measures.items():
        rows = against_best(over_tasks(values))
        others = rows.index[rows["tied"]][1:]
        tied = ", ".join(f"`{label}`" for label in others) if len(others) < MANY else f"{len(others)} others"
        best = f"`{rows.index[0]}` {number(rows['mean'].iloc[0])}"
        lines.append({"by": words, "best": best, "tied with it": tied})
    return table(pd.DataFrame(lines))


def means_in_words(means: pd.Series) -> str:
    """Return encodings with their means, as "`fox` 0.66 and `alibi` 0.58"."""
    *others, last = [f"`{label}` {number(mean)}" for label, mean in means.items()]
    return f"{', '.join(others)} and {last}"


def later_numbers(bank: Bank) -> dict[str, Any]:
    """Return the planned tests of each encoding that joined later against FoX and against KERPLE."""
    matrix = over_tasks(bank.cases("ranked", "apart")).drop(columns=[*VARIANTS])
    later = [label for label in map(str, matrix) if label not in EARLIEST]
    tests = {label: sign_tests(matrix, [(label, other) for other in EARLY]) for label in later}
    above = [f"`{label}`" for label, rows in tests.items() if (rows["verdict"] == "higher").all()]
    means = matrix.mean()
    return {
        "stick_breaking/mean": means["stick_breaking"],
        "stick_breaking/above it": (means > means["stick_breaking"]).sum(),
        "later/encodings": len(later),
        "later/above both": ", ".join(above) or "none",
        "later/p": min(rows["p"].max() for rows in tests.values() if (rows["difference"] > 0).all()),
    }


# Patterns of layers


def pattern_rows(bank: Bank) -> pd.DataFrame:
    """Return the pattern and its variants: means, cases learned, and the planned test of each variant."""
    scores = bank.scores[bank.scores["part"].isin(["ranked", "apart"])]
    matrix = over_tasks(cases(scores))
    columns = ["encoding", "changed", "expected"]
    rows = pd.DataFrame([(PATTERN, "nothing", np.nan), *VARIANTS.values()], [PATTERN, *VARIANTS], columns)
    rows.insert(2, "mean", matrix.mean())
    rows.insert(3, "copied_at_2x", cases(scores, AT_2X).loc["copy"].mean())
    rows.insert(4, "learned", scores.groupby("label")["learned"].sum())
    tests = sign_tests(matrix, [(PATTERN, label) for label in VARIANTS]).set_index("second")
    rows = rows.join(tests[["difference", "low", "high", "p"]])
    rows["found"] = tests["verdict"].map({"higher": "lower", "lower": "higher", "tied": "tied"})
    return rows


# One option for the last tokens


def shift_values(bank: Bank) -> dict[str, Any]:
    """Return the table of the option, for which encodings it suffices on `lag`, and its confirmation.

    The table has mean scores at the rate of the runs with it, and the planned tests of the difference.
    """
    is_compared = bank.all_scores["part"].isin(["ranked", "shifted"]) & (bank.all_scores["rate"] == RATES[0])
    at_one_rate = cases(bank.all_scores[is_compared])
    shown = [*SHIFTED, "cpb_log", PATTERN]
    cells = pd.DataFrame(index=shown)
    suffices: list[str] = []
    for task in ("lag", "copy"):
        matrix: Any = at_one_rate.loc[task]
        tests = sign_tests(matrix, [(label + WITH_SHIFT, label) for label in SHIFTED]).set_index("second")
        with_it = matrix.mean().reindex([label + WITH_SHIFT for label in shown]).set_axis(shown)
        cells[task] = matrix.mean().map(number)
        cells[f"{task} with it"] = with_it.map(number)
        cells[f"p {task}"] = tests["p"].map("{:.3f}".format)
        if task == "lag":
            is_enough = (tests["p"] <= ALPHA) & (with_it[SHIFTED] >= SUFFICIENT)
            suffices = [f"`{label}`" for label in tests.index[is_enough]]
    mirrored = over_tasks(bank.cases("mirrored"))
    gate = GATE + WITH_SHIFT
    test = sign_tests(mirrored, [(gate, label) for label in (PATTERN, "kerple_log", "fox")]).iloc[0]
    verdict = {"higher": "confirmed", "tied": "unclear", "lower": "refuted"}[test["verdict"]]
    return {
        "shift": encoding_markdown(cells.fillna("–")),
        "shift/suffices": ", ".join(suffices) or "none",
        "shift/mean": mirrored[gate].mean(),
        "shift/difference": format_test(test, ".3f"),
        "shift/verdict": "refuted" if test["difference"] < 0 else verdict,
        "shift/copied": bank.cases("mirrored", metric=AT_2X)[gate].xs("copy").mean(),
    }


# More tasks


def task_numbers(bank: Bank) -> dict[str, Any]:
    """Return the means by task, what is said of their tests, and the means over tasks that joined later.

    The planned tests compare the pattern with each other encoding, a task as one observation.
    """
    means = bank.cases("ranked", "apart", "further").groupby("task").mean()
    means = means.loc[[*TASKS, *FURTHER]].dropna(axis="columns")  # fewer encodings ran on the further tasks
    tests = sign_tests(means, [(PATTERN, label) for label in map(str, means) if label != PATTERN])
    gate = sign_tests(means, [(GATE, "alibi")]).iloc[0]
    further = means.loc[FURTHER].mean().sort_values(ascending=False)
    by_task = means.T.assign(**{"mean of all": means.mean()}).sort_values("mean of all", ascending=False)
    return {
        "tasks": encoding_markdown(by_task.map(number)),
        "tasks/means": means_in_words(further),
        "tasks/before": (further > further[PATTERN]).sum(),
        "tasks/significant": (tests["verdict"] != "tied").sum() or "none",
        "tasks/lowest p": tests["p"].min(),
        "tasks/gate/difference": gate["difference"],
        "tasks/gate/p": gate["p"],
    }


# The mirrored configurations


def mirrored_values(bank: Bank) -> dict[str, Any]:
    """Return mean scores by task and the planned tests in the mirrored configurations.

    They compare FoX and KERPLE with all other early encodings, the pattern with `CHALLENGED`, and FoX and
    KERPLE with RoPE on its last tokens.
    """
    cases = bank.cases("mirrored")
    matrix = over_tasks(cases)
    means = cases.groupby("task").mean().T[[*TASKS]]
    means.insert(0, "mean score", cases.mean())
    means["at 2x"] = bank.cases("mirrored", metric=AT_2X).mean()
    cells = means.loc[[*MIRRORED]].map(number)
    cells.insert(0, "model", [*MIRRORED.values()])
    tests = sign_tests(matrix, [(PATTERN, label) for label in CHALLENGED]).set_index("second")
    cells[f"`{PATTERN}` minus it"] = tests.apply(format_test, axis="columns", style=".3f")
    others = [label for label in EARLIEST if label not in EARLY]
    of_early = sign_tests(matrix, [(label, other) for label in EARLY for other in others])
    against_truncated = sign_tests(matrix, [(label, TRUNCATED) for label in EARLY]).set_index("first")
    of_halves = over_tasks(bank.cases("ranked")).mean() - matrix.mean()
    return {
        "mirrored": table(cells.fillna("–")),
        "mirrored/higher": (of_early["verdict"] == "higher").sum(),
        "mirrored/tests": len(of_early),
        "halves/most": of_halves.abs().max(),
        "truncation/fox/difference": against_truncated.loc["fox", "difference"],
        "truncation/kerple_log/difference": against_truncated.loc["kerple_log", "difference"],
        "truncation/p": against_truncated["p"].max(),
    }


# Does it train, and what does the rule of rates cost?


def at_better_rates(bank: Bank) -> pd.DataFrame:
    """Return `cases` of the ranked encodings at the rate with the higher score."""
    return cases(bank.all_scores[bank.all_scores["part"] == "ranked"])


def training_values(bank: Bank) -> dict[str, Any]:
    """Return which encodings are hard to train, and what the rule of rates costs on average and at most.

    Encodings that learned fewer than nine tenths of their cases are listed as "`fox` 80 of 96, ...".
    """
    scores = bank.scores[bank.scores["part"].isin(["ranked", "mirrored"])]
    learned = scores.groupby(["label", "task"])["learned"].agg(["sum", "size"])
    totals = learned.groupby("label").sum()
    shares = (totals["sum"] / totals["size"]).sort_values()
    hard = []
    for label in shares.index[shares < OFTEN]:
        least = learned.loc[label].sort_values("sum").iloc[0]
        counts = "{} of {}".format(*totals.loc[label])
        hard.append(f"`{label}` {counts} (`{least.name}` {least['sum']} of {least['size']})")
    loss = (at_better_rates(bank) - bank.cases("ranked")).mean().sort_values()
    return {
        "hard to train": ", ".join(hard),
        "rates/mean": loss.mean(),
        "rates/most": loss.iloc[-1],
        "rates/whose": loss.index[-1],
    }


# Larger models


def scale_values(scale: pd.DataFrame) -> dict[str, Any]:
    """Return the mean scores by size, over six cases and over those that all sizes have, and the decisions.

    The planned decisions are whether three encodings are above two others at two sizes, whether the pattern
    is above these two, and the correlation of the orders.
    """
    planned = scale.loc[:, scale.columns.isin(SCALED, level="label")]
    complete = planned.dropna(axis="columns").columns.unique("width")
    at_all_sizes = scale.loc[planned.dropna().index]
    cells: dict[str, Any] = {}
    for rows in (scale[complete], at_all_sizes):
        by_width: Any = rows.mean().unstack("width").map(number).items()
        cells |= {f"{SIZES[width]} M, {len(rows)} cases": column for width, column in by_width}
    means = scale[complete].mean().unstack("width")
    small, large = means.loc[SCALED].to_numpy().T
    rho, p = rank_correlation(small, large)
    others = means.loc[SCALED[3:]].max()
    holds = means.loc[SCALED[:3]].min() > others
    return {
        "scale": encoding_markdown(pd.DataFrame(cells).loc[[PATTERN, *SCALED]]),
        "scale/pattern": "confirmed" if (means.loc[PATTERN] > others).all() else "refuted",
        "scale/rho": rho,
        "scale/p": p,
        **{f"scale/rule/{width}": "holds" if rule else "fails" for width, rule in holds.items()},
        **{f"scale/copied/{width}": scale[width, "kerple_log"].xs("copy").mean() for width in (64, 128)},
    }


# Figures


def draw_curves(bank: Bank, folder: Path) -> None:
    """Draw mean exact match over input length, with standard errors over all configurations.

    Dashed lines are of the mirrored configurations.
    """
    is_dashed = (bank.scores["part"] == "mirrored") & bank.scores["label"].isin(DASHED)
    is_drawn = (bank.scores["part"] == "ranked") | is_dashed
    points = bank.curves.merge(bank.scores.loc[is_drawn, ["name", "label"]])
    has_all_runs = points.groupby("times")["name"].transform("nunique") == points["name"].nunique()
    points = points[(points["times"] >= 1) & has_all_runs]
    style_of: Any = {"others": (GREY, "")} | styles(IN_COLOUR)
    grey = sorted(set(points["label"]) - {*DASHED, *IN_COLOUR})
    figure, panels = panel_grid(len(TASKS), len(TASKS), 2.5, sharey=True)
    for axes, (task, (title, _)) in zip(panels, TASKS.items(), strict=True):
        groups = points[points["task"] == task].groupby(["label", "times"])["exact_match"]
        means, errors = groups.mean(), groups.sem()
        for label in (*grey, *IN_COLOUR):
            colour, marker = style_of.get(label, style_of["others"])
            axes.errorbar(
                means[label].index, means[label], None if label in grey else errors[label], color=colour,
                marker=marker, markersize=3, linewidth=0.8 if label in grey else 1.2, elinewidth=0.6,
            )  # fmt: skip
        for label, (of_colour, panel, place, words) in DASHED.items():
            colour = style_of[of_colour][0]
            axes.plot(means[label], "--", color=colour, linewidth=1.4, zorder=3)
            if task == panel:
                axes.text(*place, words, color=colour, fontsize=6.5)
        length_axis(axes, [1, 2, 4, 8], 1, "exact match")
        axes.xaxis.set_major_formatter(lambda times, _: f"{times:g}x")
        axes.set_title(f"{title} ({task})", fontsize=7)
        axes.set_xlabel("input length / training length", fontsize=7)
        axes.label_outer()
    legend_below(figure, style_of, [*reversed(IN_COLOUR), "others"])
    save(figure, folder, "curves")


def draw_answer(bank: Bank, folder: Path) -> None:
    """Draw the score of every configuration and its mean, by task and over the tasks, the best on top."""
    ranked = rank(bank)
    order = [*map(str, ranked.index)]
    cases: Any = bank.cases("ranked")
    matrices = {"mean of four tasks": over_tasks(cases), **{task: cases.loc[task] for task in TASKS}}
    figure, panels = panel_grid(len(matrices), len(matrices), 0.9 + 0.19 * len(order), sharey=True)
    draw_means(panels, matrices, order, [*ranked.index[ranked["tied"]]])
    panels[0].axhline(ranked["tied"].sum() - 0.5, color="0.5", linewidth=0.7, linestyle=":")
    save(figure, folder, "answer")


STUDY = Study(
    sweep=("bank",),
    load=load,
    values=values,
    figures=(draw_curves, draw_answer),
    tables={
        "scores": lambda bank: bank.scores,
        "patterns": pattern_rows,
        "ranking": lambda bank: rank(bank).reset_index(names="encoding"),
    },
)
