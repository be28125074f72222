"""Which encoding for longer inputs? Encodings on tasks that need order, in the same configurations.

A *configuration* sets layers, symbols, training length, blocks, heads and the seed, which numbers it: 0 to 11
come first, 12 to 23 have the other value of every factor. A *case* is a task in a configuration. Scores are
those of `pe_experiments.studies.scores`; an unlearned case counts as 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from pe_experiments.comparison import Runs
from pe_experiments.comparison.sentences import number
from pe_experiments.comparison.statistics import ALPHA, rank_correlation
from pe_experiments.drawing import legend_below, length_axis, save, styles
from pe_experiments.studies import read_archive, table, with_settings
from pe_experiments.studies.archive import select_runs
from pe_experiments.studies.ranking import (
    against_best,
    by_task,
    draw_means,
    over_tasks,
    sign_tests,
)
from pe_experiments.studies.scores import AT_2X, AT_4X, RATE, SCORE, at_counted_rates, score_runs, score_table
from pe_experiments.studies.study import Study
from results.bank.truncation import ceiling

TASKS = {  # what a model does, and the training steps
    "copy": ("copying:\nall symbols", 8000),
    "lag": ("a local pattern:\nthe symbol three back", 6000),
    "induction": ("recall:\nwhat followed a mark", 4000),
    "flip_flop": ("state:\nthe bit written last", 2000),
}
CONFIGURATIONS = 12  # in each half
FURTHER = ["repeat_copy", "needle", "precedence", "blocks", "parity_scratchpad", "dyck_depth", "bucket_sort"]
FURTHER_SEEDS = [24, 25]  # the two configurations of these tasks
RATES = (0.003, 0.001)
METRICS = (SCORE, AT_2X, AT_4X)
GATE = "fox(initial_bias=4)"
EARLIEST = ["none", "sinusoidal", "learned", "rope", "alibi", "t5", "fire", "kerple_log", "p_rope", "fox",
            "learned+random_offset", "rope+random_subset"]  # fmt: skip
EARLY = ["fox", "kerple_log"]  # recommended from the first twelve encodings, before the others ran
IN_COLOUR = ("sinusoidal", "rope", "alibi", "kerple_log", GATE, "rope_nope")  # those that README names
PATTERN = "rope_nope"
VARIANTS = {  # of the pattern by label: the choice, what is changed, and the expectation against `rope_nope`
    "rope_nope(encodings=rope+none)": ("rope_full_nope", "no window", "lower"),
    "rope_nope(encodings=sliding_window+none)": ("window_nope", "no RoPE", "lower"),
    "rope_nope(encodings=kerple_log+none)": ("kerple_nope", "KERPLE for RoPE in a window", "tied"),
    "rope_nope(encodings=none+rope_ssmax(encodings=rope+sliding_window))": (
        "nope_rope", "layers exchanged", "lower",
    ),
}  # fmt: skip
APART = [*VARIANTS, "stick_breaking"]  # not ranked: each further encoding costs all others power
SHIFTED = ["rope", "alibi", "kerple_log", GATE]  # also ran with a convolution of the last tokens, at one rate
SUFFICIENT = 0.9  # mean score on `lag` with which that option does what CPB and CoPE do
CHALLENGED = ["FoX", "KERPLE", "RoPE, its last tokens"]  # by the best pattern, in the mirrored configurations
SIZES = {64: "0.1", 128: "0.8", 256: "6.3"}  # width, and millions of parameters
SCALE_LINES = {"copy": "--", "induction": ":", "flip_flop": "-."}
MANY = 4  # tied encodings that are counted, not named
OFTEN = 0.9  # share of cases; encodings that learned fewer are listed
GREY = "0.75"  # encodings that are not in colour
SCALED = ["kerple_log", GATE, "cpb_log", "alibi", "rope"]  # three recommended then, and two others


class Bank(NamedTuple):
    """What the page is generated from. Scores have a row per task, encoding and configuration."""

    runs: Runs
    rows: pd.DataFrame  # a row per run with its options
    first: pd.DataFrame  # scores of the ranked encodings, which are complete in configurations 0 to 11
    apart: pd.DataFrame  # scores there of complete encodings that are not ranked
    mirrored: pd.DataFrame  # scores of those complete in configurations 12 to 23
    at_rates: pd.DataFrame  # scores of all runs of `first`, not only at the rate that counts
    scale: pd.DataFrame  # scores of the complete cases, with a column for each width
    truncated: pd.DataFrame  # exact match of RoPE in a window, by run and length
    shifted: pd.DataFrame  # scores with a convolution of the last tokens
    further: pd.DataFrame  # scores of the tasks that joined later, in their two configurations


def load(folder: Path) -> Bank:
    """Read the runs and score them, part by part."""
    runs = read_archive(folder)
    rows = with_settings(
        runs, rate=RATE, steps="training.steps", width="model.d_model", vocabulary="task.vocab_size",
        fillers="task.fillers", ignore="task.ignore", shift="model.token_shift",
    )  # fmt: skip
    rows["symbols"] = rows["vocabulary"].combine_first(rows["fillers"])
    scale_rows = is_scale(rows)
    usual_steps = rows["task"].map({task: steps for task, (_, steps) in TASKS.items()})
    is_main = (
        ~scale_rows & ~rows["shift"].eq(True) & rows["rate"].isin(RATES) & (rows["steps"] == usual_steps)
    )

    def complete(mask: pd.Series) -> pd.Series:
        counts = rows[mask].groupby("label").size()
        return mask & rows["label"].isin(counts[counts == len(TASKS) * CONFIGURATIONS * len(RATES)].index)

    first = complete(is_main & (rows["seed"] < CONFIGURATIONS))
    mirrored = complete(is_main & (rows["seed"] >= CONFIGURATIONS))
    at_rates = score_runs(select_runs(runs, first | mirrored), METRICS)
    counted = at_counted_rates(at_rates)
    is_first = counted["configuration"] < CONFIGURATIONS
    is_ranked = is_first & ~counted["label"].isin(APART)
    return Bank(
        runs,
        rows,
        counted[is_ranked].reset_index(drop=True),
        counted[is_first & ~is_ranked].reset_index(drop=True),
        counted[~is_first].reset_index(drop=True),
        at_rates[(at_rates["configuration"] < CONFIGURATIONS) & ~at_rates["label"].isin(APART)],
        scale_scores(runs, rows[scale_rows]),
        pd.read_csv(folder / "truncated.csv"),
        score_runs(select_runs(runs, rows["shift"].eq(True)), METRICS),
        at_counted_rates(score_runs(select_runs(runs, rows["seed"].isin(FURTHER_SEEDS)), METRICS)),
    )


def is_scale(rows: pd.DataFrame) -> pd.Series:
    """Return which runs compare sizes of models; no configuration has their options."""
    return (rows["model"] == "decoder") & rows["seed"].isin([0, 1]) & (rows["max_length"] == 24)


def scale_scores(runs: Runs, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the scores of cases with all of `SCALED`, a column for each width; an unlearned case has 0."""
    complete = rows.groupby(["width", "task", "seed"]).filter(
        lambda case: case["label"].isin(SCALED).sum() == 2 * len(SCALED)
    )
    parts = []
    for width, part in complete.groupby("width"):
        chosen = select_runs(runs, runs.runs["name"].isin(part["name"]))
        parts.append(at_counted_rates(score_runs(chosen)).assign(width=width))
    scores = pd.concat(parts)
    scores["value"] = scores[SCORE].where(scores["learned"], 0.0)
    return scores.pivot(index=["task", "configuration", "label"], columns="width", values="value")


@cache
def early_scores() -> pd.DataFrame:
    """Return the scores of the first twelve encodings in configurations 0 to 11, on all six tasks."""
    runs = read_archive(Path(__file__).parent)
    rows = with_settings(runs, rate=RATE, steps="training.steps", shift="model.token_shift")
    usual_steps = rows["task"].map({task: steps for task, (_, steps) in TASKS.items()})
    is_usual = rows["steps"].eq(usual_steps) | usual_steps.isna()  # the other tasks have no longer runs
    is_early = (rows["seed"] < CONFIGURATIONS) & rows["rate"].isin(RATES) & rows["label"].isin(EARLIEST)
    is_plain = ~is_scale(rows) & ~rows["shift"].eq(True)
    return score_table(select_runs(runs, is_early & is_usual & is_plain), METRICS)


def values(bank: Bank) -> dict[str, Any]:
    """Return the tables and the numbers of the page."""
    ranked = rank(bank.first)
    return {
        "ranking": ranking_table(ranked),
        "robust": robustness_table(bank),
        "mirrored": mirrored_table(bank),
        "hard to train": hard_to_train(bank),
        "scale": scale_table(bank.scale),
        **ranking_numbers(bank.first, ranked),
        **later_numbers(bank),
        **pattern_numbers(bank),
        **shift_values(bank),
        **task_numbers(bank),
        **half_numbers(bank),
        **truncation_numbers(bank),
        **rate_numbers(bank),
        **scale_numbers(bank.scale),
    }


# The ranking


def rank(scores: pd.DataFrame) -> pd.DataFrame:
    """Return a row per encoding, sorted by the mean score: its test, scores by task, cases learned, cost."""
    rows = against_best(over_tasks(scores, [*TASKS]))
    for task, matrix in by_task(scores, [*TASKS]).items():
        rows[task] = matrix.mean()
    rows[AT_2X] = over_tasks(scores, [*TASKS], AT_2X).mean()
    return rows.assign(learned=scores.groupby("label")["learned"].sum(), cost=costs())


def costs() -> pd.Series:
    """Return the time of a training step relative to that without an encoding, by encoding."""
    path = Path(__file__).parents[1] / "benchmark" / "table.csv"
    rows = pd.read_csv(path, keep_default_na=False, na_values=[""])
    rows = rows[(rows["part"] == "encodings") & (rows["setting"] == "defaults")]
    costs = rows.set_index("case")["ratio"]
    return pd.concat([costs, pd.Series({GATE: costs["fox"]})])


def ranking_table(ranked: pd.DataFrame) -> str:
    """Return the ranking with the test of the best encoding against each other; tied means are bold."""
    lines = []
    for label, row in ranked.iterrows():
        mean = number(row["mean"])
        lines.append(
            {
                "encoding": f"`{label}`",
                "mean": f"**{mean}**" if row["tied"] else mean,
                **{task: number(row[task]) for task in TASKS},
                "at 2x": number(row[AT_2X]),
                "learned": row["learned"],
                "cost": "–" if np.isnan(row["cost"]) else number(row["cost"]),
                "p": "–" if label == ranked.index[0] else f"{row['calibrated_p']:.3f}",
            }
        )
    return table(pd.DataFrame(lines))


def robustness_table(bank: Bank) -> str:
    """Return the best encoding and those tied with it by other measures, and with any task left out."""
    cases = {
        "score of the better rate": rates_by_case(bank)["better"]
        .groupby(["configuration", "label"])
        .mean()
        .unstack(),
        "exact match at 2x": over_tasks(bank.first, [*TASKS], AT_2X),
    }
    for left_out in TASKS:
        tasks = [task for task in TASKS if task != left_out]
        cases[f"score without `{left_out}`"] = over_tasks(bank.first, tasks)
    lines = []
    for words, matrix in cases.items():
        rows = against_best(matrix)
        others = rows.index[rows["tied"]][1:]
        tied = ", ".join(f"`{label}`" for label in others) if len(others) < MANY else f"{len(others)} others"
        best = f"`{rows.index[0]}` {number(rows['mean'].iloc[0])}"
        lines.append({"by": words, "best": best, "tied with it": tied or "–"})
    return table(pd.DataFrame(lines))


def ranking_numbers(scores: pd.DataFrame, ranked: pd.DataFrame) -> dict[str, Any]:
    """Return numbers such as ``rank/tied`` and ``2x/rope/p``."""
    tied = ranked.index[ranked["tied"]]
    without_lag = over_tasks(scores, [task for task in TASKS if task != "lag"]).mean()
    values: dict[str, Any] = {
        "rank/encodings": len(ranked),
        "rank/tied": len(tied),
        "rank/widest tie": ranked.loc[tied, "high"].max(),
        "without lag": means_in_words(
            without_lag, [GATE, "kerple_log", "learned_relative", "cpb_log", "alibi", "cope", "cpb_linear"]
        ),
    }
    at_2x = over_tasks(scores, [*TASKS], AT_2X)
    test = (
        sign_tests(at_2x, [(GATE, label) for label in map(str, at_2x) if label != GATE])
        .set_index("second")
        .loc["rope"]
    )
    return values | {"2x/rope/difference": test["difference"], "2x/rope/p": test["p"]}


def means_in_words(means: pd.Series, labels: Sequence[str]) -> str:
    """Return encodings with their means, as "`fox` 0.66 and `alibi` 0.58"."""
    *others, last = [f"`{label}` {number(means[label])}" for label in labels]
    return f"{', '.join(others)} and {last}"


def later_numbers(bank: Bank) -> dict[str, Any]:
    """Return the planned tests of each encoding that joined later against FoX and against KERPLE."""
    scores = pd.concat([bank.first, bank.apart])
    matrix = over_tasks(scores[~scores["label"].isin(VARIANTS)], [*TASKS])
    later = [label for label in map(str, matrix) if label not in EARLIEST]
    tests = [sign_tests(matrix, [(label, other) for other in EARLY]) for label in later]
    above = [label for label, rows in zip(later, tests, strict=True) if (rows["verdict"] == "higher").all()]
    unranked = matrix["stick_breaking"].mean()
    return {
        "stick_breaking/mean": unranked,
        "stick_breaking/above it": int((over_tasks(bank.first, [*TASKS]).mean() > unranked).sum()),
        "later/encodings": len(later),
        "later/above both": ", ".join(f"`{label}`" for label in above) or "none",
        "later/p": min(rows["p"].max() for rows in tests if (rows["difference"] > 0).all()),
    }


# Patterns of layers


def pattern_rows(bank: Bank) -> pd.DataFrame:
    """Return the pattern and its variants: means, cases learned, and the planned test of each variant."""
    scores = pd.concat([bank.first, bank.apart])
    matrix = over_tasks(scores, [*TASKS])
    rows = pd.DataFrame(
        {
            "mean": matrix.mean(),
            "copied_at_2x": by_task(scores, ["copy"], AT_2X)["copy"].mean(),
            "learned": scores.groupby("label")["learned"].sum(),
        }
    ).loc[[PATTERN, *VARIANTS]]
    rows.insert(0, "changed", ["nothing", *(changed for _, changed, _ in VARIANTS.values())])
    tests = sign_tests(matrix, [(PATTERN, label) for label in VARIANTS]).set_index("second")
    rows = rows.join(tests[["difference", "low", "high", "p"]])
    found = {"higher": "lower", "lower": "higher", "tied": "tied"}
    rows["expected"] = pd.Series({label: expected for label, (_, _, expected) in VARIANTS.items()})
    rows["found"] = tests["verdict"].map(found)
    rows.index = [PATTERN, *(f"pattern/{choice}" for choice, _, _ in VARIANTS.values())]
    return rows.reset_index(names="encoding")


def pattern_numbers(bank: Bank) -> dict[str, Any]:
    """Return the means of the pattern and its variants, such as ``pattern/window_nope``."""
    return dict(pattern_rows(bank)[["encoding", "mean"]].itertuples(index=False))


def difference_cell(row: Any) -> str:
    """Return a test as ``+0.06 [-0.05, +0.15], p 0.172``."""
    p = f"p {row.p:.3f}" if row.p >= 0.001 else "p < 0.001"
    return f"{row.difference:+.2f} [{row.low:+.2f}, {row.high:+.2f}], {p}"


# One option for the last tokens


def shift_tests(bank: Bank) -> pd.DataFrame:
    """Return mean scores at one rate without and with the option, and the planned tests of the difference."""
    shifted = bank.shifted[bank.shifted["configuration"] < CONFIGURATIONS]
    [rate] = shifted["rate"].unique()
    without = by_task(bank.at_rates[bank.at_rates["rate"] == rate], ["lag", "copy"])
    columns: dict[str, pd.Series] = {}
    for task, scores in by_task(shifted, ["lag", "copy"]).items():
        matrix = without[task].join(scores.add_suffix(" with it"))
        tests = sign_tests(matrix, [(f"{label} with it", label) for label in SHIFTED]).set_index("second")
        columns |= {task: without[task].mean(), f"{task} with it": scores.mean(), f"p {task}": tests["p"]}
    return pd.DataFrame(columns).loc[[*SHIFTED, "cpb_log", PATTERN]]


def shift_values(bank: Bank) -> dict[str, Any]:
    """Return the table of the option, with which encodings it is like CPB, and its confirmation."""
    tests = shift_tests(bank)
    cells = tests.map(lambda value: "–" if np.isnan(value) else number(value))
    for task in ("lag", "copy"):
        cells[f"p {task}"] = ["–" if np.isnan(p) else f"{p:.3f}" for p in tests[f"p {task}"]]
    cells.insert(0, "encoding", [f"`{label}`" for label in tests.index])
    is_enough = (tests["p lag"] <= ALPHA) & (tests["lag with it"] >= SUFFICIENT)
    enough = [f"`{label}`" for label in tests.index[is_enough]]
    return {"shift": table(cells), "shift/suffices": ", ".join(enough) or "none"} | shift_confirmation(bank)


def shift_confirmation(bank: Bank) -> dict[str, Any]:
    """Return the planned test of FoX with the option in the mirrored configurations, and its means."""
    shifted = bank.shifted[bank.shifted["configuration"] >= CONFIGURATIONS]
    matrix = over_tasks(bank.mirrored, [*TASKS])
    matrix["with it"] = over_tasks(shifted, [*TASKS])[GATE]
    tests = sign_tests(matrix, [("with it", label) for label in (PATTERN, "kerple_log", "fox")])
    against_pattern = tests.iloc[0]
    verdicts = {"higher": "confirmed", "tied": "unclear", "lower": "refuted"}
    is_lower = against_pattern["difference"] < 0
    return {
        "shift/mean": matrix["with it"].mean(),
        "shift/difference": difference_cell(against_pattern),
        "shift/verdict": "refuted" if is_lower else verdicts[against_pattern["verdict"]],
        "shift/copied": by_task(shifted, ["copy"], AT_2X)["copy"][GATE].mean(),
    }


# More tasks


def means_by_task(bank: Bank, metric: str = SCORE) -> pd.DataFrame:
    """Return the mean of a metric over configurations [tasks, encodings]; unlearned cases count as 0.

    The tasks of the ranking come first, then those that joined later, on which fewer encodings ran.
    """
    further = by_task(bank.further, FURTHER, metric)
    matrices = by_task(pd.concat([bank.first, bank.apart]), [*TASKS], metric) | further
    labels = further[FURTHER[0]].columns
    return pd.DataFrame({task: matrix[labels].mean() for task, matrix in matrices.items()}).T


def task_tests(bank: Bank) -> pd.DataFrame:
    """Return the planned tests over all tasks, a task as one observation: the pattern against each other."""
    means = means_by_task(bank)
    return sign_tests(means, [(PATTERN, label) for label in map(str, means) if label != PATTERN])


def task_numbers(bank: Bank) -> dict[str, Any]:
    """Return what is said of the tests over all tasks, and the means over those that joined later."""
    means, tests = means_by_task(bank), task_tests(bank)
    gate = sign_tests(means, [(GATE, "alibi")]).iloc[0]
    further = means.loc[FURTHER].mean().sort_values(ascending=False)
    return {
        "tasks/means": means_in_words(further, [*map(str, further.index)]),
        "tasks/before": int((further > further[PATTERN]).sum()),
        "tasks/significant": int((tests["verdict"] != "tied").sum()) or "none",
        "tasks/lowest p": tests["p"].min(),
        "tasks/gate/difference": gate["difference"],
        "tasks/gate/p": gate["p"],
    }


# The mirrored configurations


def half_numbers(bank: Bank) -> dict[str, Any]:
    """Return the planned tests in the mirrored configurations, and how far both halves agree."""
    first, mirrored = (over_tasks(scores, [*TASKS]) for scores in (bank.first, bank.mirrored))
    others = [label for label in EARLIEST if label not in EARLY]
    tests = sign_tests(mirrored, [(label, other) for label in EARLY for other in others])
    return {
        "mirrored/higher": int((tests["verdict"] == "higher").sum()),
        "mirrored/tests": len(tests),
        "halves/most": (first.mean() - mirrored.mean()).abs().max(),
    }


# Truncation


def window_scores(bank: Bank) -> dict[str, pd.DataFrame]:
    """Return the scores in the mirrored configurations of RoPE in a window, and of a perfect model in it."""
    names = bank.truncated["name"].unique()
    in_window = select_runs(bank.runs, bank.runs.runs["name"].isin(names))
    exact_match = bank.truncated.set_index(["name", "content_length"])["exact_match"]
    truncated = in_window.curves.copy()
    perfect = in_window.curves.merge(bank.rows[["name", "symbols", "ignore", "max_length"]], on="name")
    keys = list(zip(truncated["name"], truncated["content_length"], strict=True))
    truncated["exact_match"] = [exact_match[key] for key in keys]
    options = perfect[["task", "symbols", "ignore", "max_length", "content_length"]]
    perfect["exact_match"] = list(map(ceiling, *options.to_numpy().T))
    perfect = perfect[in_window.curves.columns]
    return {
        "truncated": score_runs(replace(in_window, curves=truncated), METRICS),
        "limit": score_runs(replace(in_window, curves=perfect), METRICS),
    }


def truncation_rows(bank: Bank) -> dict[str, pd.DataFrame]:
    """Return scores in the mirrored configurations, by the words for a model, with one label each."""
    tables = window_scores(bank)
    mirrored = {label: bank.mirrored[bank.mirrored["label"] == label] for label in ("rope", *EARLY)}
    return {
        "RoPE, all tokens": mirrored["rope"],
        "RoPE, its last tokens": tables["truncated"],
        "a perfect model of its last tokens": tables["limit"],
        "KERPLE": mirrored["kerple_log"],
        "FoX": mirrored["fox"],
    }


def mirrored_table(bank: Bank) -> str:
    """Return mean scores by task, and the planned tests of the pattern against three of the others."""
    pattern = f"`{PATTERN}`"
    rows = {pattern: bank.mirrored[bank.mirrored["label"] == PATTERN]} | truncation_rows(bank)
    matrix = pd.DataFrame({words: over_tasks(scores, [*TASKS]).iloc[:, 0] for words, scores in rows.items()})
    tests = sign_tests(matrix, [(pattern, words) for words in CHALLENGED]).set_index("second")
    lines = []
    for words, scores in rows.items():
        line = {"model": words, "mean score": number(matrix[words].mean())}
        line |= {task: number(values.iloc[:, 0].mean()) for task, values in by_task(scores, [*TASKS]).items()}
        line["at 2x"] = number(over_tasks(scores, [*TASKS], AT_2X).to_numpy().mean())
        line[f"{pattern} minus it"] = difference_cell(tests.loc[words]) if words in CHALLENGED else "–"
        lines.append(line)
    return table(pd.DataFrame(lines))


def truncation_numbers(bank: Bank) -> dict[str, Any]:
    """Return the planned tests of FoX and KERPLE against RoPE on its last tokens."""
    rows = truncation_rows(bank)
    matrix = pd.DataFrame({words: over_tasks(scores, [*TASKS]).iloc[:, 0] for words, scores in rows.items()})
    tests = sign_tests(matrix, [(words, "RoPE, its last tokens") for words in ("FoX", "KERPLE")])
    return {
        f"truncation/{row.first}/{name}": getattr(row, name)
        for row in tests.itertuples()
        for name in ("difference", "p")
    }


# Does it train, and what does the rule of rates cost?


def hard_to_train(bank: Bank) -> str:
    """Return the encodings that learned fewer than nine tenths of their cases, as "`fox` 80 of 96, ..."."""
    learned = (
        pd.concat([bank.first, bank.mirrored]).groupby(["label", "task"])["learned"].agg(["sum", "size"])
    )
    totals = learned.groupby("label").sum()
    shares = (totals["sum"] / totals["size"]).sort_values()
    words = []
    for label in shares.index[shares < OFTEN]:
        least = learned.loc[label].sort_values("sum").iloc[0]
        cases = "{} of {}".format(*totals.loc[label])
        words.append(f"`{label}` {cases} (`{least.name}` {least['sum']} of {least['size']})")
    return ", ".join(words)


def rates_by_case(bank: Bank) -> pd.DataFrame:
    """Return the value at the rate that counts and at the better one [cases, 2], by label and case."""
    keys = ["label", "task", "configuration"]
    value = bank.at_rates[SCORE].where(bank.at_rates["learned"], 0.0)
    better = bank.at_rates.assign(value=value).groupby(keys)["value"].max()
    counted = bank.first.set_index(keys)
    return pd.DataFrame({"counted": counted[SCORE].where(counted["learned"], 0.0), "better": better})


def rate_numbers(bank: Bank) -> dict[str, Any]:
    """Return what the rule of rates costs on average and at most, and the encoding that it costs most."""
    means = rates_by_case(bank).groupby("label").mean()
    loss = (means["better"] - means["counted"]).sort_values()
    return {"rates/mean": loss.mean(), "rates/most": loss.iloc[-1], "rates/whose": loss.index[-1]}


# Larger models


def scale_means(scale: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return mean scores [encodings, widths] over six cases, and over the cases that all sizes have."""
    planned = scale[scale.index.isin(SCALED, level="label")]
    keys = ["task", "configuration"]
    means = {}
    for part in (planned.dropna(axis="columns"), planned.dropna()):
        cases = part.reset_index()[keys].drop_duplicates()
        chosen = scale.reset_index().merge(cases, on=keys)
        means[f"{len(cases)} cases"] = chosen.groupby("label")[[*part.columns]].mean()
    return means


def scale_table(scale: pd.DataFrame) -> str:
    """Return the mean scores by size, over all cases and over the same cases at all sizes."""
    labels = [PATTERN, *SCALED]
    cells: dict[str, Any] = {"encoding": [f"`{label}`" for label in labels]}
    for cases, means in scale_means(scale).items():
        for width in [width for width in SIZES if width in means]:
            column = means[width][labels]
            cells[f"{SIZES[width]} M, {cases}"] = ["–" if np.isnan(mean) else number(mean) for mean in column]
    return table(pd.DataFrame(cells))


def scale_numbers(scale: pd.DataFrame) -> dict[str, Any]:
    """Return the planned decisions: the order at two sizes, and who is above the two others."""
    values: dict[str, Any] = {}
    for cases, means in scale_means(scale).items():
        for width in means:
            lowest, highest = means[width][SCALED[:3]].min(), means[width][SCALED[3:]].max()
            values[f"rule/{width}/{cases}"] = "holds" if lowest > highest else "fails"
    means = scale_means(scale)["6 cases"]
    is_above = (means.loc[PATTERN] > means.loc[SCALED[3:]].max()).all()
    values["scale/pattern"] = "confirmed" if is_above else "refuted"
    small, large = (means[width][SCALED].to_numpy() for width in means)
    values["scale/rho"], values["scale/p"] = rank_correlation(small, large)
    for width, copied in scale.loc["copy"].groupby("label").mean().items():
        values |= {f"copy/{width}/{label}": mean for label, mean in copied.items()}
    return values


# Figures


def draw_curves(bank: Bank, folder: Path) -> None:
    """Draw mean exact match over input length, with standard errors over all configurations.

    RoPE on its last tokens, which was measured in the mirrored configurations, is a dashed line.
    """
    points = at_multiples(bank.runs.curves.merge(bank.first[["name", "configuration"]], on="name"), bank)
    truncated = at_multiples(bank.truncated, bank)
    in_colour = [label for label in IN_COLOUR if label in set(points["label"])]
    style_of: Any = {"others": (GREY, "")} | styles(in_colour)
    figure = Figure(figsize=(7.2, 2.5), layout="constrained")
    for axes, (task, (title, _)) in zip(
        figure.subplots(1, len(TASKS), sharey=True), TASKS.items(), strict=True
    ):
        groups = points[points["task"] == task].groupby(["label", "times"])["exact_match"]
        means, errors = groups.mean().unstack("label"), groups.sem().unstack("label")
        grey = [str(label) for label in means if label not in in_colour]
        for label in (*grey, *in_colour):
            colour, marker = style_of[label if label in in_colour else "others"]
            bars = errors[label] if label in in_colour else None
            axes.errorbar(
                means.index, means[label], bars, color=colour, marker=marker, markersize=3,
                linewidth=1.2 if label in in_colour else 0.8, elinewidth=0.6,
            )  # fmt: skip
        cut = truncated[truncated["task"] == task].groupby("times")["exact_match"].mean()
        axes.plot(cut.index, cut, "--", color=style_of["rope"][0], linewidth=1.4, zorder=3)
        if task == "induction":  # its panel has room
            words = "dashed: RoPE, only\nits last N tokens"
            axes.text(1.1, 0.06, words, color=style_of["rope"][0], fontsize=6.5)
        length_axis(axes, [1, 2, 4, 8], 1, "exact match")
        axes.xaxis.set_major_formatter(lambda times, _: f"{times:g}x")
        axes.set_title(f"{title} ({task})", fontsize=7)
        axes.set_xlabel("input length / training length", fontsize=7)
        axes.label_outer()
    legend_below(figure, style_of, [*reversed(in_colour), "others"])
    save(figure, folder, "curves")


def at_multiples(curves: pd.DataFrame, bank: Bank) -> pd.DataFrame:
    """Return the rows of curves from the training length on, at the multiples of it that all runs have."""
    columns = ["name", *({"task", "max_length"} - {*curves})]
    points = curves.merge(bank.rows[columns], on="name")
    points["times"] = points["content_length"] / points["max_length"]
    has_all_runs = points.groupby("times")["name"].transform("nunique") == points["name"].nunique()
    return points[(points["times"] >= 1) & has_all_runs]


def draw_answer(bank: Bank, folder: Path) -> None:
    """Draw the score of every configuration and its mean, by task and over the tasks, the best on top."""
    ranked = rank(bank.first)
    order = [*map(str, ranked.index)]
    matrices = {"mean of four tasks": over_tasks(bank.first, [*TASKS]), **by_task(bank.first, [*TASKS])}
    figure = Figure(figsize=(7.2, 0.9 + 0.19 * len(order)), layout="constrained")
    panels = figure.subplots(1, len(matrices), sharey=True)
    draw_means(panels, matrices, order, [*ranked.index[ranked["tied"]]])
    panels[0].axhline(ranked["tied"].sum() - 0.5, color="0.5", linewidth=0.7, linestyle=":")
    save(figure, folder, "answer")


def draw_tasks(bank: Bank, folder: Path) -> None:
    """Draw the mean score of each encoding by task, the tasks of the ranking first, with the mean of all."""
    means = means_by_task(bank)
    means.loc["mean of all"] = means.mean()
    means = means.T.sort_values("mean of all", ascending=False)
    figure = Figure(figsize=(7.2, 2.7), layout="constrained")
    axes = figure.subplots()
    axes.imshow(means, cmap="Blues", vmin=0, vmax=1.2, aspect="auto")
    for (row, column), mean in np.ndenumerate(means.to_numpy()):
        colour = "white" if mean > 0.75 else "black"
        axes.text(column, row, number(mean), ha="center", va="center", fontsize=6.5, color=colour)
    axes.set_yticks(range(len(means)), means.index, fontsize=7)
    axes.set_xticks(range(means.shape[1]), means.columns, fontsize=6.5, rotation=35, ha="right")
    for column in (len(TASKS), means.shape[1] - 1):
        axes.axvline(column - 0.5, color="white", linewidth=4)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    save(figure, folder, "tasks")


def draw_scale(bank: Bank, folder: Path) -> None:
    """Draw the score of every case over the number of parameters, with a panel per encoding."""
    figure = Figure(figsize=(7.2, 2.2), layout="constrained")
    labels = [PATTERN, *SCALED]
    style_of = styles(labels)
    for axes, label in zip(figure.subplots(1, len(labels), sharey=True), labels, strict=True):
        by_size = bank.scale.xs(label, level="label").groupby("task").mean()
        for task, line in SCALE_LINES.items():
            axes.plot(
                [*map(float, SIZES.values())], by_size.loc[task], line, color=style_of[label][0], marker="."
            )
            axes.plot([], [], line, color="0.3", label=task)  # in the legend
        axes.set(xscale="log", xlim=(0.07, 9), ylim=(0, 1.03))
        axes.set_title(label, fontsize=7)
        axes.set_xticks([*map(float, SIZES.values())], SIZES.values())
        axes.minorticks_off()
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("score")
    figure.axes[len(labels) // 2].set_xlabel("million parameters")
    figure.legend(
        *figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False
    )
    save(figure, folder, "scale")


STUDY = Study(
    sweep=("bank",),
    load=load,
    values=values,
    figures=(draw_curves, draw_answer, draw_tasks, draw_scale),
    tables={
        "scores": lambda bank: pd.concat([bank.first, bank.apart, bank.mirrored, bank.further]),
        "tasks": task_tests,
        "patterns": pattern_rows,
        "ranking": lambda bank: rank(bank.first).reset_index(names="encoding"),
    },
)
