"""Which encoding for longer inputs? Encodings on tasks that need order, in the same configurations.

A *configuration* sets layers, symbols, training length, blocks, heads and the seed, which numbers it: 0 to 11
come first, 12 to 23 have the other value of every factor. A *case* is a task in a configuration. Scores are
those of `pe_experiments.studies.scores`; an unlearned case counts as 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from pe_experiments.comparison import Runs
from pe_experiments.comparison.statistics import ALPHA, rank_correlation
from pe_experiments.comparison.words import number
from pe_experiments.drawing import legend_below, length_axis, save, styles
from pe_experiments.evaluation.summary import SOLVED
from pe_experiments.studies import read_archive, table, with_settings
from pe_experiments.studies.archive import select_runs
from pe_experiments.studies.ranking import (
    against_best,
    by_task,
    draw_means,
    over_tasks,
    sign_tests,
    tests_with_tasks_as_observations,
)
from pe_experiments.studies.scores import AT_2X, AT_4X, RATE, SCORE, at_counted_rates, score_runs, score_table
from pe_experiments.studies.study import Study

TASKS = {  # what a model does, and the training steps
    "copy": ("copy all symbols", 8000),
    "lag": ("repeat the symbol three back", 6000),
    "induction": ("recall what followed a mark", 4000),
    "flip_flop": ("recall the bit written last", 2000),
}
CONFIGURATIONS = 12  # in each half
RATES = (0.003, 0.001)
METRICS = (SCORE, AT_2X, AT_4X)
GATE = "fox(initial_bias=4)"
EARLIEST = ["none", "sinusoidal", "learned", "rope", "alibi", "t5", "fire", "kerple_log", "p_rope", "fox",
            "learned+random_offset", "rope+random_subset"]  # fmt: skip
EARLY = ["fox", "kerple_log"]  # recommended from the first twelve encodings, before the others ran
IN_COLOUR = ("sinusoidal", "rope", "t5", "alibi", "cpb_log", "cope", "fox", "kerple_log", GATE, "rope_nope")
PATTERN = "rope_nope"
VARIANTS = {  # of the pattern: what is changed, and what was expected against `rope_nope`
    "rope_full_nope": ("no window", "lower"),
    "window_nope": ("no RoPE", "lower"),
    "kerple_nope": ("KERPLE for RoPE in a window", "tied"),
    "nope_rope": ("layers exchanged", "lower"),
}
SIZES = {64: "0.1", 128: "0.8", 256: "6.3"}  # width, and millions of parameters
SCALE_LINES = {"copy": "--", "induction": ":", "flip_flop": "-."}
GREY = "0.75"  # encodings that are not in colour
SCALED = ["kerple_log", GATE, "cpb_log", "alibi", "rope"]  # three recommended ones and two others


class Bank(NamedTuple):
    """What the page is generated from. Scores have a row per task, encoding and configuration."""

    runs: Runs
    rows: pd.DataFrame  # a row per run with its options
    first: pd.DataFrame  # scores of the encodings complete in configurations 0 to 11
    mirrored: pd.DataFrame  # scores of those complete in configurations 12 to 23
    at_rates: pd.DataFrame  # scores of all runs of `first`, not only at the rate that counts
    scale: dict[int, pd.DataFrame]  # scores of the complete cases, by width
    truncated: pd.DataFrame  # exact match of RoPE in a window, by run and length


def load(folder: Path) -> Bank:
    """Read the runs and score them, part by part."""
    runs = read_archive(folder)
    rows = with_settings(
        runs, rate=RATE, steps="training.steps", width="model.d_model", vocabulary="task.vocab_size",
        fillers="task.fillers", ignore="task.ignore",
    )  # fmt: skip
    rows["symbols"] = rows["vocabulary"].combine_first(rows["fillers"])
    scale_rows = is_scale(rows)
    usual_steps = rows["task"].map({task: steps for task, (_, steps) in TASKS.items()})
    is_main = ~scale_rows & rows["rate"].isin(RATES) & (rows["steps"] == usual_steps)

    def complete(mask: pd.Series) -> pd.Series:
        counts = rows[mask].groupby("label").size()
        return mask & rows["label"].isin(counts[counts == len(TASKS) * CONFIGURATIONS * len(RATES)].index)

    first = complete(is_main & (rows["seed"] < CONFIGURATIONS))
    mirrored = complete(is_main & (rows["seed"] >= CONFIGURATIONS))
    scale = {}
    for width in SIZES:
        of_width = scale_rows & (rows["width"] == width)
        case_sizes = rows[of_width].groupby(["task", "seed"])["name"].transform("size")
        names = case_sizes[case_sizes == len(SCALED) * 2].index
        is_complete = of_width & rows.index.isin(names)
        scale[width] = at_counted_rates(score_runs(select_runs(runs, is_complete), METRICS))
    at_rates = score_runs(select_runs(runs, first | mirrored), METRICS)
    counted = at_counted_rates(at_rates)
    is_first = counted["configuration"] < CONFIGURATIONS
    return Bank(
        runs,
        rows,
        counted[is_first].reset_index(drop=True),
        counted[~is_first].reset_index(drop=True),
        at_rates[at_rates["configuration"] < CONFIGURATIONS],
        scale,
        pd.read_csv(folder / "truncated.csv"),
    )


def is_scale(rows: pd.DataFrame) -> pd.Series:
    """Return which runs compare sizes of models; no configuration has their options."""
    return (rows["model"] == "decoder") & rows["seed"].isin([0, 1]) & (rows["max_length"] == 24)


def early_scores(runs: Runs) -> pd.DataFrame:
    """Return the scores of the first twelve encodings in configurations 0 to 11, on all six tasks."""
    rows = with_settings(runs, rate=RATE, steps="training.steps")
    usual_steps = rows["task"].map({task: steps for task, (_, steps) in TASKS.items()})
    is_usual = rows["steps"].eq(usual_steps) | usual_steps.isna()  # the other tasks have no longer runs
    is_early = (rows["seed"] < CONFIGURATIONS) & rows["rate"].isin(RATES) & rows["label"].isin(EARLIEST)
    return score_table(select_runs(runs, is_early & is_usual & ~is_scale(rows)), METRICS)


def values(bank: Bank) -> dict[str, Any]:
    """Return the tables and the numbers of the page."""
    ranked = rank(bank.first)
    return {
        "ranking": ranking_table(ranked),
        "summary": summary_table(ranked),
        "robust": robustness_table(bank.first),
        "newer": newer_table(bank.first),
        "patterns": pattern_table(bank),
        "halves": half_table(bank),
        "truncation": truncation_table(bank),
        "trains": learning_table(bank),
        "rates": rate_table(bank),
        "scale": scale_table(bank.scale),
        **ranking_numbers(bank.first, ranked),
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
    for metric in (AT_2X, AT_4X):
        rows[metric] = over_tasks(scores, [*TASKS], metric).mean()
    learned = scores.groupby("label")["learned"]
    return rows.assign(learned=learned.sum(), cases=learned.size(), cost=costs())


def costs() -> pd.Series:
    """Return the time of a training step relative to that without an encoding, by encoding."""
    path = Path(__file__).parents[1] / "benchmark" / "table.csv"
    rows = pd.read_csv(path, keep_default_na=False, na_values=[""])
    rows = rows[(rows["part"] == "encodings") & (rows["setting"] == "defaults")]
    costs = rows.set_index("case")["ratio"]
    return pd.concat([costs, pd.Series({GATE: costs["fox"]})])


def ranking_table(ranked: pd.DataFrame) -> str:
    """Return the ranking with the difference from the best encoding; tied means are bold."""
    lines = []
    for label, row in ranked.iterrows():
        mean = number(row["mean"])
        difference = f"{row['difference']:.2f} [{row['low']:+.2f}, {row['high']:+.2f}]"
        lines.append(
            {
                "encoding": f"`{label}`",
                "mean score": f"**{mean}**" if row["tied"] else mean,
                **{task: number(row[task]) for task in TASKS},
                "at 2x": number(row[AT_2X]),
                "at 4x": number(row[AT_4X]),
                "learned": f"{row['learned']} of {row['cases']}",
                "below the best": "–" if label == ranked.index[0] else difference,
                "p": "–" if label == ranked.index[0] else f"{row['calibrated_p']:.3f}",
            }
        )
    return table(pd.DataFrame(lines))


def summary_table(ranked: pd.DataFrame) -> str:
    """Return a short table: the encodings that tie for the first place, and the best-known ones."""
    shown = [*ranked.index[ranked["tied"]], "alibi", "rope", "sinusoidal"]
    lines = []
    for label in dict.fromkeys(shown):
        row = ranked.loc[label]
        cost = "–" if np.isnan(row["cost"]) else number(row["cost"])
        scores = {
            words: number(row[task])
            for task, words in zip(TASKS, ("copy", "three back", "recall", "state"), strict=True)
        }
        lines.append(
            {
                "encoding": f"`{label}`",
                **scores,
                "learned": f"{row['learned']} of {row['cases']}",
                "cost": cost,
            }
        )
    return table(pd.DataFrame(lines))


def robustness_table(scores: pd.DataFrame) -> str:
    """Return the best encoding and those tied with it by other measures, and with any task left out."""
    cases = {
        "score, four tasks": over_tasks(scores, [*TASKS]),
        "exact match at 2x": over_tasks(scores, [*TASKS], AT_2X),
        "exact match at 4x": over_tasks(scores, [*TASKS], AT_4X),
    }
    for left_out in TASKS:
        cases[f"score without `{left_out}`"] = over_tasks(
            scores, [task for task in TASKS if task != left_out]
        )
    lines = []
    for words, matrix in cases.items():
        rows = against_best(matrix)
        tied = rows[rows["tied"]].iloc[1:]["mean"]
        lines.append(
            {
                "by": words,
                "best": f"`{rows.index[0]}` {number(rows['mean'].iloc[0])}",
                "tied with it": ", ".join(f"`{label}` {number(mean)}" for label, mean in tied.items()) or "–",
                "lower": int((~rows["tied"]).sum()),
            }
        )
    return table(pd.DataFrame(lines))


def ranking_numbers(scores: pd.DataFrame, ranked: pd.DataFrame) -> dict[str, Any]:
    """Return numbers such as ``rank/fox/mean``, ``without lag/alibi`` and ``2x/rope/low``."""
    tied = ranked.index[ranked["tied"]]
    at_2x = over_tasks(scores, [*TASKS], AT_2X)
    best = str(ranked.index[0])
    values: dict[str, Any] = {
        "rank/encodings": len(ranked),
        "rank/tied": len(tied),
        "rank/others": len(ranked) - 1,
        "rank/lower": len(ranked) - len(tied),
        "rank/widest tie": ranked.loc[tied, "high"].max(),
        "rank/lowest tied": ranked.loc[tied, "mean"].min(),
        "rank/highest lower": ranked["mean"].drop(tied).max(),
        "tasks as observations": int(
            (tests_with_tasks_as_observations(by_task(scores, [*TASKS]), best) <= ALPHA).sum()
        ),
    }
    columns = {"mean": "mean", "2x": AT_2X, "4x": AT_4X, "learned": "learned", "cost": "cost"}
    for name, column in (columns | {task: task for task in TASKS}).items():
        values |= {f"rank/{label}/{name}": value for label, value in ranked[column].items()}
    without_lag = over_tasks(scores, [task for task in TASKS if task != "lag"]).mean()
    values |= {f"without lag/{label}": mean for label, mean in without_lag.items()}
    others = [label for label in map(str, at_2x) if label != GATE]
    for row in sign_tests(at_2x, [(GATE, label) for label in others]).itertuples():
        for name in ("difference", "low", "high", "ahead", "p"):
            values[f"2x/{row.second}/{name}"] = getattr(row, name)
    copied = scores[scores["task"] == "copy"].pivot(index="configuration", columns="label", values=AT_2X)
    recalled = scores[scores["task"] == "lag"].pivot(index="configuration", columns="label", values=AT_2X)
    for name, matrix in (("copy", copied), ("lag", recalled)):
        values |= {f"2x/{label}/{name}": share for label, share in matrix.mean().items()}
    return values


def newer_table(scores: pd.DataFrame) -> str:
    """Return the planned tests of each encoding that joined later against FoX and KERPLE."""
    matrix = over_tasks(scores, [*TASKS])
    lines = []
    for label in matrix.mean().sort_values(ascending=False).index:
        if label in EARLIEST:
            continue
        tests = sign_tests(matrix, [(label, other) for other in EARLY])
        cells = {f"minus `{row.second}`": difference_cell(row) for row in tests.itertuples()}
        enters = "yes" if (tests["verdict"] == "higher").all() else "no"
        lines.append({"encoding": f"`{label}`", **cells, "significantly above both": enters})
    return table(pd.DataFrame(lines))


def difference_cell(row: Any) -> str:
    """Return a test as ``+0.06 [-0.05, +0.15], p 0.172``."""
    return f"{row.difference:+.2f} [{row.low:+.2f}, {row.high:+.2f}], p {row.p:.3f}"


# Patterns of layers


def pattern_table(bank: Bank) -> str:
    """Return the pattern and its complete variants: scores by task, and the planned test of each variant."""
    matrix = over_tasks(bank.first, [*TASKS])
    variants = [label for label in VARIANTS if label in matrix]
    if PATTERN not in matrix:
        return "The runs of the pattern are not complete yet."
    tests = sign_tests(matrix, [(PATTERN, label) for label in variants]) if variants else pd.DataFrame()
    ranked = rank(bank.first)
    lines = []
    for label in [PATTERN, *variants, "kerple_log", "rope", "none"]:
        row = ranked.loc[label]
        line = {
            "encoding": f"`{label}`",
            "changed": VARIANTS.get(label, ("–", ""))[0],
            "mean score": number(row["mean"]),
            **{task: number(row[task]) for task in TASKS},
            "copied at 2x": number(case_means(bank.first, "copy", label)),
            "learned": f"{row['learned']} of {row['cases']}",
            "pattern minus variant": "–",
            "expected": "–",
        }
        if label in variants:
            test = tests[tests["second"] == label].iloc[0]
            expected = VARIANTS[label][1]
            outcome = {"higher": "lower", "lower": "higher", "tied": "tied"}[test["verdict"]]
            line["pattern minus variant"] = difference_cell(test)
            line["expected"] = f"{expected}: {'confirmed' if outcome == expected else 'refuted'}"
        lines.append(line)
    return table(pd.DataFrame(lines))


def case_means(scores: pd.DataFrame, task: str, label: str) -> float:
    """Return the mean exact match at 2x of an encoding on a task, 0 where it was not learned."""
    return float(by_task(scores, [task], AT_2X)[task][label].mean())


# The mirrored configurations


def half_table(bank: Bank) -> str:
    """Return the mean scores of the encodings that are complete in both halves."""
    means = {name: over_tasks(scores, [*TASKS]).mean() for name, scores in halves(bank).items()}
    both = pd.DataFrame(means).dropna().sort_values("mirrored", ascending=False)
    cells = both.map(number)
    cells.insert(0, "mean score", [f"`{label}`" for label in both.index])
    return table(cells)


def halves(bank: Bank) -> dict[str, pd.DataFrame]:
    return {"first twelve": bank.first, "mirrored": bank.mirrored}


def half_numbers(bank: Bank) -> dict[str, Any]:
    """Return the planned tests in the mirrored configurations, and means and copying of both halves."""
    matrix = over_tasks(bank.mirrored, [*TASKS])
    others = [label for label in EARLIEST if label not in EARLY]
    tests = sign_tests(matrix, [(label, other) for label in EARLY for other in others])
    values: dict[str, Any] = {
        "mirrored/higher": int((tests["verdict"] == "higher").sum()),
        "mirrored/tests": len(tests),
        "mirrored/next": matrix[others].mean().max(),
    }
    for half, scores in halves(bank).items():
        means = over_tasks(scores, [*TASKS]).mean()
        values |= {f"{half}/{label}": mean for label, mean in means.items()}
        copied = scores[(scores["task"] == "copy") & scores["learned"]].groupby("label")
        for name, metric in (("2x", AT_2X), ("4x", AT_4X)):
            values |= {f"{half}/copy/{label}/{name}": share for label, share in copied[metric].mean().items()}
    return values


# Truncation


def window(task: str, longest: int) -> int:
    """Return how many tokens a model reads of its longest training example when it answers last.

    The mark at the beginning is not counted. On `copy` the end mark is the last answer.
    """
    return {"copy": 2 * longest + 1, "lag": longest, "induction": longest + 1, "flip_flop": longest - 1}[task]


def ceiling(task: str, symbols: int, ignore: float, longest: int, length: int) -> float:
    """Return the exact match at an input length of the best predictor that reads `window` tokens.

    Args:
        task: name of the task.
        symbols: different input symbols of `copy` and fillers of `induction`.
        ignore: probability of an ignored pair of `flip_flop`.
        longest: longest training length.
        length: input length, at least ``longest``.
    """
    if length <= longest or task == "lag":  # all tokens, or the symbol three back
        return 1.0
    if task == "copy":  # each answer repeats the symbol ``length`` tokens before it
        return 1.0 if length < window(task, longest) else float(symbols) ** -length
    if task == "induction":
        # Of length - 2 places of the trigger longest - 2 are read. If the trigger is the last symbol that is
        # not read, the answer is the first symbol that is: the best guess for all other places.
        return (longest - 1 + (length - longest - 1) / symbols) / (length - 2)
    return flip_flop_ceiling(ignore, longest, length)


def flip_flop_ceiling(ignore: float, longest: int, length: int) -> float:
    """Return E[(1/2)^u], where u counts the written bits that a read asks for but that are out of the window.

    All reads of such a bit are right together if its guess is.
    """
    near, pairs = int(longest) // 2 - 1, int(length) // 2  # a bit is read up to ``near`` pairs back
    known = np.zeros(pairs)  # probability, times 1/2 per guess, by the distance of a bit that was not guessed
    known[0] = 1.0
    guessed = 0.0
    for pair in range(1, pairs):
        is_last = pair == pairs - 1
        p_write = 0.0 if is_last else (1 - ignore) / 2
        p_read = 1.0 if is_last else (1 - ignore) / 2
        written = p_write * (known.sum() + guessed)
        known = np.roll(known, 1)  # the last entry is 0: no bit is as many pairs back
        far = known[near + 1 :].sum()
        guessed = guessed * (1 - p_write) + far * p_read / 2
        known[: near + 1] *= 1 - p_write
        known[near + 1 :] *= 1 - p_write - p_read
        known[0] = written
    return float(known.sum() + guessed)


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


def truncation_table(bank: Bank) -> str:
    """Return mean scores by task, and exact match at 2x and 4x, of RoPE in a window and of others."""
    lines = []
    for words, scores in truncation_rows(bank).items():
        means = {task: matrix.iloc[:, 0].mean() for task, matrix in by_task(scores, [*TASKS]).items()}
        line = {"model": words, "mean score": number(np.mean([*means.values()]))}
        line |= {task: number(mean) for task, mean in means.items()}
        for name, metric in (("at 2x", AT_2X), ("at 4x", AT_4X)):
            line[name] = number(over_tasks(scores, [*TASKS], metric).to_numpy().mean())
        lines.append(line)
    return table(pd.DataFrame(lines))


def truncation_numbers(bank: Bank) -> dict[str, Any]:
    """Return mean scores, exact match at 2x, and the planned tests of FoX and KERPLE."""
    values: dict[str, Any] = {}
    rows = truncation_rows(bank)
    for words, scores in rows.items():
        values[f"truncation/{words}/mean"] = over_tasks(scores, [*TASKS]).to_numpy().mean()
        values[f"truncation/{words}/2x"] = over_tasks(scores, [*TASKS], AT_2X).to_numpy().mean()
    matrix = pd.DataFrame({words: over_tasks(scores, [*TASKS]).iloc[:, 0] for words, scores in rows.items()})
    tests = sign_tests(matrix, [(words, "RoPE, its last tokens") for words in ("FoX", "KERPLE")])
    for row in tests.itertuples():
        values |= {f"truncation/{row.first}/difference": row.difference, f"truncation/{row.first}/p": row.p}
    return values


# Does it train, and what does the rule of rates cost?


def learning_table(bank: Bank) -> str:
    """Return in how many cases of each task an encoding learned, and the median steps until it did."""
    scores = pd.concat([bank.first, bank.mirrored])
    evaluations = bank.runs.training.sort_values("step")
    reached = evaluations[evaluations["exact_match"] >= SOLVED].groupby("name")["step"].first()
    scores = scores.assign(steps=scores["name"].map(reached))
    lines: list[dict[str, Any]] = []
    for label, rows in scores.groupby("label"):
        counts = rows.groupby("task")["learned"].agg(["sum", "size"])
        steps = rows[rows["learned"]].groupby("task")["steps"].median()
        lines.append(
            {
                "share": rows["learned"].mean(),
                "encoding": "`" + str(label) + "`",
                "learned": f"{rows['learned'].sum()} of {len(rows)}",
                **{f"`{task}`": " of ".join(map(str, counts.loc[task, ["sum", "size"]])) for task in TASKS},
                "median steps": " / ".join(f"{float(steps[task]):,.0f}" for task in TASKS),
            }
        )
    lines.sort(key=lambda line: (-line["share"], line["encoding"]))
    return table(pd.DataFrame(lines).drop(columns="share"))


def rates_by_case(bank: Bank) -> pd.DataFrame:
    """Return the value of each rate, of the counted and of the better one [cases, ...], by label and task."""
    keys = ["label", "task", "configuration"]
    value = bank.at_rates[SCORE].where(bank.at_rates["learned"], 0.0)
    by_rate = bank.at_rates.assign(value=value).pivot(index=keys, columns="rate", values="value")
    counted = bank.first.set_index(keys)
    by_rate["counted"] = counted[SCORE].where(counted["learned"], 0.0)
    by_rate["better"] = by_rate[[*RATES]].max(axis=1)
    return by_rate


def rate_table(bank: Bank) -> str:
    """Return the mean scores by the rule for the rate, sorted by the bank's."""
    means = rates_by_case(bank).groupby("label").mean().sort_values("counted", ascending=False)
    columns = {"the loss decides": "counted", "0.003": 0.003, "0.001": 0.001, "the score decides": "better"}
    cells = {name: means[column].map(number).to_list() for name, column in columns.items()}
    return table(pd.DataFrame({"mean score": [f"`{label}`" for label in means.index], **cells}))


def rate_numbers(bank: Bank) -> dict[str, Any]:
    """Return what the rule of rates costs on average and at most, and the encoding that it costs most."""
    means = rates_by_case(bank).groupby("label").mean()
    loss = (means["better"] - means["counted"]).sort_values()
    learned = pd.concat([bank.first, bank.mirrored]).groupby("label")["learned"]
    values = {
        f"learned/{label}": f"{count} of {size}"
        for label, count, size in learned.agg(["sum", "size"]).itertuples()
    }
    return {"rates/mean": loss.mean(), "rates/most": loss.iloc[-1], "rates/whose": loss.index[-1], **values}


# Larger models


def scale_means(scores: dict[int, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Return mean scores [encodings, widths] over six cases, and over the cases that all sizes have."""
    complete = {
        width: set(zip(rows["task"], rows["configuration"], strict=True)) for width, rows in scores.items()
    }
    shared = set.intersection(*complete.values())

    def means(cases: set[tuple[str, int]], widths: Sequence[int]) -> pd.DataFrame:
        columns = {}
        for width in widths:
            rows = scores[width]
            chosen = [case in cases for case in zip(rows["task"], rows["configuration"], strict=True)]
            value = rows[SCORE].where(rows["learned"], 0.0)[chosen]
            columns[width] = value.groupby(rows["label"][chosen]).mean()
        return pd.DataFrame(columns)

    largest = max(map(len, complete.values()))
    full = [width for width, cases in complete.items() if len(cases) == largest]
    return {
        f"{largest} cases": means(complete[full[0]], full),
        f"{len(shared)} cases": means(shared, [*scores]),
    }


def scale_table(scores: dict[int, pd.DataFrame]) -> str:
    """Return the mean scores by size, over all cases and over the same cases at all sizes."""
    cells: dict[str, Any] = {"encoding": [f"`{label}`" for label in SCALED]}
    for cases, means in scale_means(scores).items():
        for width in [width for width in scores if width in means]:
            cells[f"{SIZES[width]} M, {cases}"] = means[width][SCALED].map(number).to_list()
    return table(pd.DataFrame(cells))


def scale_numbers(scores: dict[int, pd.DataFrame]) -> dict[str, Any]:
    """Return the planned decision: does the order hold, and are the three above the two others?"""
    values: dict[str, Any] = {}
    for cases, means in scale_means(scores).items():
        for width in means:
            values |= {f"scale/{width}/{cases}/{label}": mean for label, mean in means[width].items()}
            lowest, highest = means[width][SCALED[:3]].min(), means[width][SCALED[3:]].max()
            values[f"scale/{width}/{cases}/rule"] = "holds" if lowest > highest else "fails"
    means = next(iter(scale_means(scores).values()))
    values["scale/rho"], values["scale/p"] = rank_correlation(means[64].to_numpy(), means[128].to_numpy())
    for width, rows in scores.items():
        copied = rows[rows["task"] == "copy"]
        value = copied[SCORE].where(copied["learned"], 0.0).groupby(copied["label"]).mean()
        values |= {f"scale/{width}/copy/{label}": mean for label, mean in value.items()}
    return values


# Figures


def draw_curves(bank: Bank, folder: Path) -> None:
    """Draw mean exact match over input length, with standard errors over all configurations."""
    points = bank.runs.curves.merge(bank.first[["name", "configuration"]], on="name")
    points = points.merge(bank.rows[["name", "max_length"]], on="name")
    points["times"] = points["content_length"] / points["max_length"]
    everywhere = points.groupby("times")["name"].transform("nunique") == len(bank.first)
    points = points[(points["times"] >= 1) & everywhere]
    in_colour = [label for label in IN_COLOUR if label in set(points["label"])]
    style_of: Any = {"others": (GREY, "")} | styles(in_colour) | {"cpb_log": ("#000000", "*")}  # else as T5
    figure = Figure(figsize=(7.2, 2.5), layout="constrained")
    for axes, (task, (words, _)) in zip(
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
        length_axis(axes, [1, 2, 4, 8], 1, "exact match")
        axes.xaxis.set_major_formatter(lambda times, _: f"{times:g}x")
        axes.set_title(f"{task}\n{words}", fontsize=7)
        axes.set_xlabel("input length / training length", fontsize=7)
        axes.label_outer()
    legend_below(figure, style_of, [*reversed(in_colour), "others"])
    save(figure, folder, "curves")


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


def draw_scale(bank: Bank, folder: Path) -> None:
    """Draw the score of every case over the number of parameters, with a panel per encoding."""
    figure = Figure(figsize=(7.2, 2.2), layout="constrained")
    style_of = styles(SCALED)
    for axes, label in zip(figure.subplots(1, len(SCALED), sharey=True), SCALED, strict=True):
        values = {}
        for width, rows in bank.scale.items():
            rows = rows[rows["label"] == label]
            value = rows[SCORE].where(rows["learned"], 0.0)
            values[float(SIZES[width])] = value.groupby(rows["task"]).mean()
        by_size = pd.DataFrame(values).T
        for task, line in SCALE_LINES.items():
            axes.plot(by_size.index, by_size[task], line, color=style_of[label][0], marker=".")
            axes.plot([], [], line, color="0.3", label=task)  # in the legend
        axes.set(title=label, xscale="log", xlim=(0.07, 9), ylim=(0, 1.03))
        axes.set_xticks([*map(float, SIZES.values())], SIZES.values())
        axes.minorticks_off()
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("score")
    figure.axes[len(SCALED) // 2].set_xlabel("million parameters")
    figure.legend(
        *figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False
    )
    save(figure, folder, "scale")


STUDY = Study(
    sweep=("bank",),
    load=load,
    values=values,
    figures=(draw_curves, draw_answer, draw_scale),
    tables={"scores": lambda bank: pd.concat([bank.first, bank.mirrored])},
)
