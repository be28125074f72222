"""The second bank: twelve encodings on six tasks, in twelve configurations that all of them met.

``setting`` in code and CSVs is a configuration of depth, number of symbols, training length, blocks, heads and seed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib import colormaps
from matplotlib.figure import Figure

from pe_experiments.comparison import Runs
from pe_experiments.comparison.statistics import ALPHA, bootstrap_ranks
from pe_experiments.comparison.words import number
from pe_experiments.drawing import save, styles
from pe_experiments.published import markdown_table, read_archive, verdicts, with_settings
from pe_experiments.published.pages import code_of
from pe_experiments.published.scores import FLOORS, SCORE, scored, scores_of
from pe_experiments.published.verdicts import BETTER, NOT_SEPARATED, TESTED
from pe_experiments.tasks.state import FlipFlop

from .sentences import CHOSEN, EFFORT, FACTORS_IN_WORDS, RECOMMENDATION

RESULTS = Path(__file__).parents[2]
CONTROL = "majority"
QUESTIONS = {
    "copy": "copy all symbols",
    "lag": "repeat the symbol three back",
    "induction": "recall what followed a mark",
    "flip_flop": "recall the bit written last",
    "kth": "find the third symbol, a trained position",
}
TASKS = [*QUESTIONS]  # that need order; the control is in the CSVs alone
MEAN = "mean"  # over the tasks
SYMBOLS = ("task.vocab_size", "task.fillers", "task.ignore")  # more of them is harder
FACTORS = {"layers": ("model.num_layers",), "symbols": SYMBOLS, "training length": ("training.max_length",),
           "blocks": ("model.norm",), "heads": ("model.num_heads",)}  # fmt: skip
LEVELS = {"layers": ("2 layers", "4 layers"), "symbols": ("few symbols", "many symbols"),
          "training length": ("trained to 12", "trained to 24"), "blocks": ("GPT blocks", "Llama blocks"),
          "heads": ("2 heads", "4 heads")}  # fmt: skip
AT_2X, AT_4X = "exact_match_at_2x", "exact_match_at_4x"
LEARNED_ALONE, AS_ZERO = np.nan, 0.0  # what a setting counts in which the task was not learned
AREA_0 = "area, unlearned as 0"
MEASURES = {"area": (SCORE, LEARNED_ALONE), AREA_0: (SCORE, AS_ZERO),
            "at 2x": (AT_2X, LEARNED_ALONE), "at 4x": (AT_4X, LEARNED_ALONE)}  # fmt: skip
SHOWN = ("fox", "kerple_log", "alibi", "t5", "rope", "sinusoidal")  # in colour
DRAWN = 20_000
SHADES = 25  # a published picture has few colours


def measure(folder: Path, runs: Runs, results_dir: Path) -> None:
    """Write the floors of every task, setting and length."""
    del results_dir
    points = runs.curves.drop_duplicates(["task", "seed", "content_length"])
    points = points.merge(with_settings(runs, ignore="task.ignore")[["name", "ignore"]], on="name")
    points["floor"] = [_floor(point) for point in points.itertuples()]
    points = points.rename(columns={"seed": "setting"})[["task", "setting", "content_length", "floor"]]
    points.to_csv(folder / FLOORS, index=False)


def _floor(point: Any) -> float:
    """Exact match without order where an answer is one token; on `flip_flop` that of the majority of bits so far."""
    if point.task == "flip_flop":
        return majority_of_bits(point.ignore, point.content_length)
    one_token = point.answer_tokens == 1 and point.task != CONTROL  # which a bag of tokens solves
    return float(point.bag_ceiling) if one_token else 0.0


def majority_of_bits(ignore: float, length: int) -> float:
    """Estimated exact match of answering every read with the bit written more often so far; ties are guessed."""
    task, draw = FlipFlop(ignore), torch.Generator().manual_seed(0)
    inputs, targets = (x.view(DRAWN, -1, 2) for x in task.sample(length, DRAWN, draw))
    written, reads = inputs[..., 0] == task.write, targets[..., 0] >= 0
    lead = ((2 * inputs[..., 1] - 1) * written).cumsum(dim=1)  # ones less zeros
    right = torch.where(lead == 0, 0.5, ((lead > 0) == (targets[..., 0] == 1)).double())
    return float(torch.where(reads, right, 1.0).prod(dim=1).mean())


def load(folder: Path) -> tuple[Runs, pd.DataFrame]:
    """The runs, and the scores of those that count with a column per factor, true at its higher level."""
    runs = read_archive(folder)
    table = scored(runs, pd.read_csv(folder / FLOORS), (SCORE, AT_2X, AT_4X))
    keys = {key: key for several in FACTORS.values() for key in several}
    levels = with_settings(runs, **keys).set_index("name")
    for name, several in FACTORS.items():  # of blocks those of Llama are the higher
        value = levels[[*several]].bfill(axis=1).iloc[:, 0].map(str)
        levels[name] = value != value.groupby(levels["task"]).transform("min")
    return runs, table.join(levels[[*FACTORS]], on="name")


def pages(folder: Path) -> None:
    """The figures, ``scores.csv`` and ``verdicts.csv``."""
    runs, table = load(folder)
    _draw_curves(runs, table, folder / "figures")
    _draw_answer(table, folder / "figures")
    _draw_factors(table, folder / "figures")
    table.to_csv(folder / "scores.csv", index=False)
    compare(table).to_csv(folder / "verdicts.csv", index=False)


def task_means(table: pd.DataFrame) -> pd.DataFrame:
    """[settings, encodings], the mean score over the tasks that need order, 0 where one was not learned."""
    tasks = [scores_of(table[table["task"] == task], SCORE, AS_ZERO) for task in TASKS]
    return sum(tasks[1:], tasks[0]) / len(tasks)


def cases(table: pd.DataFrame) -> dict[tuple[str, str], pd.DataFrame]:
    """By task and measure the scores [settings, encodings]."""
    found: dict[tuple[str, str], pd.DataFrame] = {}
    for task in [*TASKS, CONTROL]:
        rows = table[table["task"] == task]
        found |= {(task, name): scores_of(rows, *measure) for name, measure in MEASURES.items()}
    return found | {(MEAN, AREA_0): task_means(table)}


def compare(table: pd.DataFrame) -> pd.DataFrame:
    """The best encoding on every task by every measure against each other one."""
    rows = []
    for (task, measure_name), scores in cases(table).items():
        best, others = verdicts.best(scores)
        compared = 1 + sum(one.verdict in TESTED for one in others.values())
        about = {"task": task, "measure": measure_name, "best": best, "best_mean": scores[best].mean()}
        for name, one in others.items():
            row = about | {"encoding": name, "verdict": one.verdict, "settings": one.settings, "p": one.p}
            row |= {"difference": one.interval.estimate, "low": one.interval.low, "high": one.interval.high}
            row["calibrated_p"] = verdicts.calibrated_p(one.p, compared, int(scores[best].count()))
            rows.append(row)
    made = pd.DataFrame(rows)
    return made.assign(calibrated_p=made["calibrated_p"].where(made["p"].notna()))


def _draw_curves(runs: Runs, table: pd.DataFrame, folder: Path) -> None:
    """Mean exact match over input length in all settings, of the four tasks that tell encodings apart."""
    points = runs.curves.merge(runs.runs[["name", "max_length"]], on="name")
    points = points[points["name"].isin(table["name"])]
    points["times"] = points["content_length"] / points["max_length"]
    counts = points.groupby(["task", "label", "times"])["exact_match"].agg(["mean", "size"])
    means = counts["mean"][
        counts["size"] == table["setting"].nunique()
    ]  # at the lengths that all settings share
    figure, looks = Figure(figsize=(7.2, 2.4), layout="constrained"), styles(SHOWN)
    others = sorted(set(table["label"]) - set(SHOWN))
    for axes, task in zip(figure.subplots(1, 4, sharey=True), TASKS, strict=False):
        for encoding in [*others, *SHOWN]:
            curve = means.loc[task, encoding]
            curve = curve[curve.index >= 1]
            colour, marker = looks.get(encoding, ("0.85", ""))
            axes.plot(curve.index, curve, color=colour, marker=marker, markersize=3.5, linewidth=1.2)
        axes.set_title(f"{task}\n{QUESTIONS[task]}", fontsize=7)
        axes.set_xscale("log", base=2)
        axes.set_xticks([1, 2, 4, 8], ["1x", "2x", "4x", "8x"])
        axes.set_xlabel("input length / training length", fontsize=7)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("exact match")
    lines = dict(zip([*others, *SHOWN], figure.axes[0].lines, strict=True))
    shown = [lines[name] for name in (*SHOWN, others[0])]
    figure.legend(
        shown, [*SHOWN, f"{len(others)} others"], loc="outside lower center", ncols=7, frameon=False
    )
    save(figure, folder, "curves")


def _draw_answer(table: pd.DataFrame, folder: Path) -> None:
    """The mean scores, a setting that was not learned counting as 0 and left out."""
    as_zero, learned_alone, learned_in = views(table)
    counts = {MEAN: [12] * len(as_zero), **{task: learned_in[task].tolist() for task in TASKS}}
    figure = Figure(figsize=(7.2, 3.3), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True, width_ratios=[6, 5])
    titles = "unlearned configurations count as 0", "unlearned configurations left out"
    for axes, values, title in zip(panels, (as_zero, learned_alone), titles, strict=True):
        _matrix(axes, values, "Blues", (0, 1))
        axes.set_title(title)
        axes.tick_params(axis="x", labelsize=6.5)
        for (row, column), value in np.ndenumerate(values.to_numpy()):
            count = counts[str(values.columns[column])][row]
            some = f"\n{count} of 12" if values is learned_alone and count < 12 else ""
            look: Any = {"color": "white" if value > 0.55 else "black", "fontsize": 5.5 if some else 7}
            axes.text(column, row, number(value) + some, ha="center", va="center", linespacing=0.9, **look)
    save(figure, folder, "answer")


def _draw_factors(table: pd.DataFrame, folder: Path) -> None:
    """How much each factor moves the mean score of the settings that were learned."""
    names = [*views(table)[0].index]
    figure = Figure(figsize=(7.2, 3.5), layout="constrained")
    panels = figure.subplots(1, len(TASKS), sharey=True)
    for axes, task in zip(panels, TASKS, strict=True):
        learned = table[(table["task"] == task) & table["learned"]]
        effects = {factor: _effect(learned, factor) for factor in FACTORS}
        _matrix(axes, pd.DataFrame(effects).reindex(names), "RdBu", (-0.6, 0.6))
        axes.set_title(task)
        axes.tick_params(axis="x", rotation=90)
    figure.colorbar(panels[0].images[0], ax=panels, label="score: high level minus low level")
    save(figure, folder, "factors")


def _effect(learned: pd.DataFrame, factor: str) -> pd.Series:
    """By encoding the mean score at the higher level of a factor minus that at the lower one."""
    means = learned.groupby(["label", factor])["score"].mean().unstack()
    return means[True] - means[False]


def _matrix(axes: Any, values: pd.DataFrame, colours: str, ends: tuple[float, float]) -> None:
    """Colours between two ends; grey where there is no value."""
    axes.set_facecolor("0.75")
    axes.imshow(values, cmap=colormaps[colours].resampled(SHADES), vmin=ends[0], vmax=ends[1], aspect="auto")
    axes.set_xticks(range(len(values.columns)), values.columns)
    axes.set_yticks(range(len(values)), values.index)


def views(table: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Mean scores with 0 for unlearned settings and without these, and in how many a task was learned.

    [encodings, tasks], the highest mean over tasks first; the first frame begins with that mean.
    """
    need_order = table[table["task"].isin(TASKS)]
    groups = need_order.assign(as_zero=need_order[SCORE].where(need_order["learned"], AS_ZERO),
                               alone=need_order[SCORE].where(need_order["learned"])).groupby(["label", "task"])  # fmt: skip
    as_zero, alone, counts = (groups[column].agg(how).unstack()[TASKS] for column, how in
                              (("as_zero", "mean"), ("alone", "mean"), ("learned", "sum")))  # fmt: skip
    as_zero.insert(0, MEAN, as_zero.mean(axis=1))
    order = as_zero[MEAN].sort_values(ascending=False).index
    return as_zero.loc[order], alone.loc[order], counts.loc[order]


def blocks(folder: Path) -> dict[str, str]:
    """The recommendation and the tables of the page."""
    runs, table = load(folder)
    compared, values = compare(table), numbers(table)
    steps = with_settings(runs, steps="training.steps")["steps"]
    values |= {"runs": len(runs.runs), "seconds": (runs.runs["seconds_per_step"] * steps).mean()}
    values["learned"] = 100 * table["learned"].mean()
    return {
        "answer": RECOMMENDATION.format_map(values),
        "verdicts": _verdict_table(compared),
        "chosen": CHOSEN.format_map({"false": 100 * verdicts.calibrated_p(0.05, 12, 12)}),
        "views": _encoding_table("0 / left out", _both_views(table)),
        "missed": markdown_table(["task", "encoding", "not learned in"], _missed(table)),
        "ranks": _encoding_table("rank", _ranks(table)),
        "factors": FACTORS_IN_WORDS.format_map(values),
        "at": _encoding_table("at 2x / at 4x", _at_2x_and_4x(table)),
        "effort": EFFORT.format_map(values),
    }


def numbers(table: pd.DataFrame) -> dict[str, Any]:
    """The numbers of the sentences by name, ``copy/fox/score`` or ``copy/fox/score/2 layers``."""
    measures = {"score": SCORE, "2x": AT_2X, "4x": AT_4X}
    values: dict[str, Any] = {}
    for (task, encoding), own in table.groupby(["task", "label"]):
        learned = own[own["learned"]]
        for name, column in measures.items():
            values[f"{task}/{encoding}/{name}"] = learned[column].mean()
            for factor, (low, high) in LEVELS.items():
                values[f"{task}/{encoding}/{name}/{low}"] = learned.loc[~learned[factor], column].mean()
                values[f"{task}/{encoding}/{name}/{high}"] = learned.loc[learned[factor], column].mean()
        values[f"{task}/{encoding}/0"] = own[SCORE].where(own["learned"], AS_ZERO).mean()
    means = task_means(table)
    values |= {f"mean/{encoding}": score for encoding, score in means.mean().items()}
    others = means.drop(columns=["fox", "kerple_log"])
    ahead = [others.lt(means[best], axis=0).sum().min() for best in ("fox", "kerple_log")]
    values["ahead"] = min(ahead)
    copied = [values[f"copy/{name}/4x"] for name in means if name != "kerple_log"]
    values["copy/others/4x"] = np.nanmax(copied)
    for task in TASKS:
        first = bootstrap_ranks(scores_of(table[table["task"] == task], SCORE, AS_ZERO).to_numpy())[1]
        values |= {f"{task}/{name}/first": 100 * share for name, share in zip(means, first, strict=True)}
    return values | _of_text() | _of_gates() | _costs()


def _of_text() -> dict[str, float]:
    """By encoding the rise in bits per byte from 256 to 2,048 bytes; of RoPE that of the first study."""
    values: dict[str, float] = {}
    for folder in (RESULTS / "text" / "rope", RESULTS / "text"):
        bits = code_of(RESULTS / "text").scores(read_archive(folder))
        rises = (bits[2048] - bits[256]).groupby(bits["label"]).mean()
        values |= {f"text/{encoding}/rise": rise for encoding, rise in rises.items()}
    values["text/flat/rise"] = max(values[f"text/{name}/rise"] for name in ("fox", "kerple_log", "alibi"))
    return values


def _of_gates() -> dict[str, float]:
    """Exact match of FoX on copying at twice the training length, by initial gate."""
    runs = read_archive(RESULTS / "replications" / "conditions").runs
    copied = runs[runs["task"] == "copy"].groupby("label")["exact_match_at_2x"].mean()
    return {"gate/0": copied["fox"], "gate/4": copied["fox(initial_bias=4)"]}


def _costs() -> dict[str, float]:
    """By encoding the time of a training step over that without an encoding."""
    table = pd.read_csv(RESULTS / "benchmark" / "table.csv")
    table = table[(table["part"] == "encodings") & (table["setting"] == "defaults")]
    return {f"cost/{case}": ratio for case, ratio in zip(table["case"], table["ratio"], strict=True)}


def _verdict_table(compared: pd.DataFrame) -> str:
    rows = []
    for (task, measure_name), own in compared[compared["task"] != CONTROL].groupby(
        ["task", "measure"], sort=False
    ):
        lower, tied = (own["verdict"] == word for word in (BETTER, NOT_SEPARATED))
        best = f"`{own['best'].iloc[0]}` {number(own['best_mean'].iloc[0])}"
        calibrated = (lower & (own["calibrated_p"] <= ALPHA)).sum()
        row = [str(task), str(measure_name), best, _names(own[tied]), str(lower.sum()), str(calibrated)]
        rows.append([*row, _names(own[~own["verdict"].isin(TESTED)])])
    heading = ["task", "measure", "best", "tied with it", "lower", "lower, calibrated", "not compared"]
    return markdown_table(heading, rows)


def _names(rows: pd.DataFrame) -> str:
    return ", ".join(f"`{name}`" for name in rows["encoding"]) or "–"


def _both_views(table: pd.DataFrame) -> pd.DataFrame:
    """``0.10 / 0.13 (9 of 12)``: unlearned settings as 0, and left out."""
    as_zero, alone, counts = views(table)
    some = counts.map(lambda count: "" if count == 12 else f" ({count} of 12)")
    cells = as_zero[TASKS].map(number) + " / " + alone.map(number) + some
    cells.insert(0, MEAN, as_zero[MEAN].map(number))
    return cells


def _at_2x_and_4x(table: pd.DataFrame) -> pd.DataFrame:
    groups = table[table["learned"]].groupby(["label", "task"])
    at_2x, at_4x = (groups[metric].mean().map(number) for metric in (AT_2X, AT_4X))
    return (at_2x + " / " + at_4x).unstack().loc[views(table)[0].index, TASKS]


def _missed(table: pd.DataFrame) -> list[list[str]]:
    """A row per task and encoding that did not learn it in all settings, with the levels these share."""
    rows = []
    for task in TASKS:
        for encoding, own in table[table["task"] == task].groupby("label"):
            missed = own[~own["learned"]]
            shared = {factor: missed[factor].iloc[0] for factor in FACTORS if len(set(missed[factor])) == 1}
            alike = len(own.loc[(own[[*shared]] == pd.Series(shared)).all(axis=1)]) if shared else len(own)
            words = ", ".join(LEVELS[factor][int(level)] for factor, level in shared.items())
            count = f"all {alike}" if len(missed) == alike else f"{len(missed)} of {alike}"
            if len(missed) == 1:
                count = "the one"
            if len(missed):
                rows.append([f"`{task}`", f"`{encoding}`", f"{count} with {words}" if words else count])
    return rows


def _ranks(table: pd.DataFrame) -> pd.DataFrame:
    """``2 (1 to 4)``: the rank of the mean score and its 95 % bootstrap interval over settings."""
    scores, names = cases(table), views(table)[0].index
    shown = {}
    for task in (MEAN, *TASKS):
        ranks, _ = bootstrap_ranks(scores[task, AREA_0][names].to_numpy())
        shown[task] = [f"{one.estimate:g} ({one.low:g} to {one.high:g})" for one in ranks]
    return pd.DataFrame(shown, index=names)


def _encoding_table(corner: str, cells: pd.DataFrame) -> str:
    rows = [[f"`{name}`", *row] for name, row in zip(cells.index, cells.to_numpy(), strict=True)]
    return markdown_table([corner, *cells], rows)
