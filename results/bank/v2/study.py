"""Compare twelve encodings on six tasks in the same twelve settings (the second bank).

`ranking` ranks them together with the newer encodings of bank/new.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from pe_experiments.comparison import Runs
from pe_experiments.comparison.statistics import ALPHA, bootstrap_ranks
from pe_experiments.comparison.words import number
from pe_experiments.drawing import legend_below, length_axis, save, styles
from pe_experiments.studies import read_archive, table, verdicts, with_settings
from pe_experiments.studies.pages import load_study
from pe_experiments.studies.scores import FLOORS, SCORE, score_table, scores_by_setting
from pe_experiments.tasks.state import FlipFlop

from . import ranking
from .ranking import AT_2X, AT_4X
from .ranking import TASKS as TELLING

RESULTS = Path(__file__).parents[2]
QUESTIONS = {  # the tasks whose answers depend on the order of the input
    "copy": "copy all symbols",
    "lag": "repeat the symbol three back",
    "induction": "recall what followed a mark",
    "flip_flop": "recall the bit written last",
    "kth": "find the third symbol, a trained position",
}
TASKS = [*QUESTIONS]
CONTROL = "majority"  # does not depend on order; only in the CSVs
MEAN = "mean"  # over `TELLING`; on `kth` nine of twelve encodings tie
SETTINGS = 12
FACTORS = {  # the keys of a factor, of which a task has exactly one, and its low and high level
    "layers": (["model.num_layers"], "2 layers", "4 layers"),
    "symbols": (["task.vocab_size", "task.fillers", "task.ignore"], "few symbols", "many symbols"),
    "training length": (["training.max_length"], "trained to 12", "trained to 24"),
    "blocks": (["model.norm"], "GPT blocks", "Llama blocks"),
    "heads": (["model.num_heads"], "2 heads", "4 heads"),
}
AS_ZERO = "area, unlearned as 0"
MEASURES = {  # the column, and its value in settings in which the task was not learned
    "area": (SCORE, np.nan),
    AS_ZERO: (SCORE, 0.0),
    "at 2x": (AT_2X, np.nan),
    "at 4x": (AT_4X, np.nan),
}
GATE = "fox(initial_bias=4)"
IN_COLOUR = ("sinusoidal", "rope", "t5", "alibi", "kerple_log", "fox", "cope", "cpb_log", GATE)
GREY = "0.75"  # the other encodings
SAMPLES = 20_000  # sequences per estimate


def measure(folder: Path, runs: Runs, results_dir: Path) -> None:
    """Write the floor of exact match at every task, setting and length."""
    points = runs.curves.drop_duplicates(["task", "seed", "content_length"])
    points = points.merge(with_settings(runs, ignore="task.ignore")[["name", "ignore"]], on="name")
    points["floor"] = [_floor(point) for point in points.itertuples()]
    points = points.rename(columns={"seed": "setting"})[["task", "setting", "content_length", "floor"]]
    points.to_csv(folder / FLOORS, index=False)


def _floor(point: Any) -> float:
    """Return the exact match reachable without order information; 0 for `CONTROL` and long answers."""
    if point.task == "flip_flop":
        return majority_of_bits(point.ignore, point.content_length)
    if point.answer_tokens == 1 and point.task != CONTROL:  # the control is solvable without order
        return float(point.bag_ceiling)
    return 0.0


def majority_of_bits(ignore: float, length: int) -> float:
    """Estimate the exact match of answering every read with the bit written more often; ties are guessed."""
    task = FlipFlop(ignore)
    generator = torch.Generator().manual_seed(0)
    inputs, targets = (x.view(SAMPLES, -1, 2) for x in task.sample(length, SAMPLES, generator))
    written = inputs[..., 0] == task.write
    reads = targets[..., 0] >= 0
    lead = ((2 * inputs[..., 1] - 1) * written).cumsum(dim=1)  # ones minus zeros
    p_correct = torch.where(lead == 0, 0.5, ((lead > 0) == (targets[..., 0] == 1)).double())
    return float(torch.where(reads, p_correct, 1.0).prod(dim=1).mean())


def load(folder: Path) -> tuple[Runs, pd.DataFrame]:
    """Return the runs, and the scores of the runs at the better learning rate with a column per factor."""
    runs = read_archive(folder)
    return runs, with_factors(score_table(runs, pd.read_csv(folder / FLOORS), (SCORE, AT_2X, AT_4X)), runs)


def with_factors(scores: pd.DataFrame, *archives: Runs) -> pd.DataFrame:
    """Add a column per factor that is true at its high level among the runs of the archives."""
    columns = {}
    for factor, (keys, _, _) in FACTORS.items():
        runs = pd.concat([with_settings(archive, **{key: key for key in keys}) for archive in archives])
        runs = runs.set_index("name")
        level = runs[keys].bfill(axis=1).iloc[:, 0].map(str)  # GPT's layernorm < Llama's rmsnorm
        columns[factor] = scores["name"].map(level != level.groupby(runs["task"]).transform("min"))
    return scores.assign(**columns)


def with_newer_encodings(scores: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Return the scores on `TELLING` with those of the newer encodings, and the names of the latter."""
    newer = pd.read_csv(RESULTS / "bank" / "new" / "scores.csv")
    together = pd.concat([scores[scores["task"].isin(TELLING)], newer], ignore_index=True)
    return together, sorted(set(newer["label"]))


def pages(folder: Path) -> None:
    """Draw the figures and write ``scores.csv``, ``verdicts.csv`` and ``ranking.csv``."""
    runs, scores = load(folder)
    together, newer = with_newer_encodings(scores)
    rows = ranking.rank(together)
    draw_curves(together, (runs, read_archive(RESULTS / "bank" / "new")), folder / "figures")
    ranking.draw_ranking(together, newer, folder / "figures", "answer")
    draw_tasks(scores, together, newer, folder / "figures")
    ranking.draw_effects(factor_effects(scores), [*views(scores)[0].index], folder / "figures")
    scores.to_csv(folder / "scores.csv", index=False)
    best_against_others(scores).to_csv(folder / "verdicts.csv", index=False)
    rows.rename_axis("encoding").to_csv(folder / "ranking.csv")


def matrices(scores: pd.DataFrame) -> dict[tuple[str, str], pd.DataFrame]:
    """Return the scores [settings, encodings] by task and measure, and their mean over `TELLING`."""
    by_measure = {}
    for task in [*TASKS, CONTROL]:
        for name, (column, unlearned) in MEASURES.items():
            by_measure[task, name] = scores_by_setting(scores[scores["task"] == task], column, unlearned)
    by_measure[MEAN, AS_ZERO] = ranking.over_tasks(scores)
    return by_measure


def best_against_others(scores: pd.DataFrame) -> pd.DataFrame:
    """Return a row per task, measure and encoding with the test of the best encoding against it."""
    rows = []
    for (task, measure_name), matrix in matrices(scores).items():
        best, differences = verdicts.best(matrix)
        compared = 1 + sum(difference.verdict in verdicts.TESTED for difference in differences.values())
        for name, difference in differences.items():
            calibrated = verdicts.calibrated_p(difference.p, compared, int(matrix[best].count()))
            rows.append(
                {
                    "task": task,
                    "measure": measure_name,
                    "best": best,
                    "best_mean": matrix[best].mean(),
                    "encoding": name,
                    **difference.columns,
                    "calibrated_p": np.nan if np.isnan(difference.p) else calibrated,
                }
            )
    return pd.DataFrame(rows)


def views(scores: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Return mean scores with unlearned settings as 0, mean scores without them, and the number learned.

    Each frame is [encodings, tasks], sorted by the mean over `TELLING`, with which the first frame starts.
    """
    by_measure = matrices(scores)
    as_zero = pd.DataFrame({task: by_measure[task, AS_ZERO].mean() for task in (MEAN, *TASKS)})
    learned_alone = pd.DataFrame({task: by_measure[task, "area"].mean() for task in TASKS})
    learned_in = pd.DataFrame({task: by_measure[task, "area"].count() for task in TASKS})
    order = as_zero[MEAN].sort_values(ascending=False).index
    return as_zero.loc[order], learned_alone.loc[order], learned_in.loc[order]


def draw_curves(scores: pd.DataFrame, archives: Sequence[Runs], folder: Path) -> None:
    """Draw mean exact match over input length, with standard errors over all configurations.

    Configurations in which an encoding did not learn the task are contained.
    """
    curves = pd.concat([archive.curves for archive in archives])
    points = curves.merge(scores[["name", "setting"]], on="name")
    lengths = pd.concat([archive.runs[["name", "max_length"]] for archive in archives])
    points = points.merge(lengths, on="name")
    points["times"] = points["content_length"] / points["max_length"]
    counts = points.groupby("times")["name"].transform("nunique")
    points = points[(points["times"] >= 1) & (counts == scores["name"].nunique())]
    style_of: Any = {"others": (GREY, "")} | styles(IN_COLOUR) | {"cpb_log": ("#000000", "*")}  # else as T5
    figure = Figure(figsize=(7.2, 2.5), layout="constrained")
    for axes, task in zip(figure.subplots(1, len(TELLING), sharey=True), TELLING, strict=True):
        groups = points[points["task"] == task].groupby(["label", "times"])["exact_match"]
        means, errors = groups.mean().unstack("label"), groups.sem().unstack("label")
        grey = [str(label) for label in means if label not in IN_COLOUR]
        for label in (*grey, *IN_COLOUR):
            colour, marker = style_of[label if label in IN_COLOUR else "others"]
            bars = errors[label] if label in IN_COLOUR else None
            axes.errorbar(
                means.index, means[label], bars, color=colour, marker=marker, markersize=3,
                linewidth=1.2 if label in IN_COLOUR else 0.8, elinewidth=0.6,
            )  # fmt: skip
        length_axis(axes, [1, 2, 4, 8], 1, "exact match")
        axes.xaxis.set_major_formatter(lambda times, _: f"{times:g}x")
        axes.set_title(f"{task}\n{QUESTIONS[task]}", fontsize=7)
        axes.set_xlabel("input length / training length", fontsize=7)
        axes.label_outer()
    legend_below(figure, style_of, [*reversed(IN_COLOUR), "others"])
    save(figure, folder, "curves")


def draw_tasks(scores: pd.DataFrame, together: pd.DataFrame, newer: Sequence[str], folder: Path) -> None:
    """Draw every configuration and the mean score by task, `kth` at the right without the newer encodings."""
    matrices = {task: scores_by_setting(together[together["task"] == task], SCORE, 0.0) for task in TELLING}
    matrices |= {"kth": scores_by_setting(scores[scores["task"] == "kth"], SCORE, 0.0)}
    order = [*ranking.rank(together).index]
    figure = Figure(figsize=(7.2, 0.9 + 0.19 * len(order)), layout="constrained")
    panels = figure.subplots(1, len(matrices), sharey=True)
    ranking.draw_means(panels, matrices, order, (), newer)
    panels[-1].set_facecolor("0.95")
    save(figure, folder, "tasks")


def factor_effects(scores: pd.DataFrame) -> pd.DataFrame:
    """Return the effect of each factor on the mean score of the learned settings, with its standard error.

    An effect is the difference of two means; its error follows from the variances at both levels (Welch). At
    least two settings must be learned at each level.
    """
    rows = []
    learned = scores[scores["learned"] & scores["task"].isin(TELLING)]
    for (task, encoding), group in learned.groupby(["task", "label"]):
        for factor in FACTORS:
            low, high = group.loc[~group[factor], SCORE], group.loc[group[factor], SCORE]
            if min(len(low), len(high)) >= 2:
                error = np.sqrt(low.var() / len(low) + high.var() / len(high))
                effect = {"effect": high.mean() - low.mean(), "error": error}
                rows.append({"task": task, "encoding": encoding, "factor": factor, **effect})
    return pd.DataFrame(rows)


def blocks(folder: Path) -> dict[str, Any]:
    """Return the tables and the numbers of the page."""
    runs, scores = load(folder)
    together, _ = with_newer_encodings(scores)
    rows = ranking.rank(together)
    steps = with_settings(runs, steps="training.steps")["steps"]
    values = numbers(scores) | ranking_numbers(together, rows) | half_numbers(together)
    values |= text_numbers() | flip_flop_numbers() | cost_numbers()
    truncated, scale = RESULTS / "bank" / "truncated", RESULTS / "bank" / "scale"
    learnability = RESULTS / "bank" / "learnability"
    training = load_study(learnability).blocks(learnability)
    values |= {f"train/{name}": training[name] for name in ("rescued", "separate")}
    limits = load_study(truncated).blocks(truncated)
    values |= {f"truncation/{name}": limits[name] for name in limits if name not in ("means", "tests")}
    values["scale"] = load_study(scale).answer(scale)
    values["newer"] = newer_in_mirrored()
    return values | {
        "runs": len(runs.runs),
        "seconds": (runs.runs["seconds_per_step"] * steps).mean(),
        "learned": scores["learned"].mean(),
        "falsely lower": verdicts.calibrated_p(ALPHA, 12, SETTINGS),
        "summary": ranking.summary_table(rows),
        "ranking": ranking.ranking_table(rows),
        "differences": ranking.difference_table(rows),
        "first_places": ranking.verdict_table(together),
        "verdicts": verdict_table(best_against_others(scores)),
        "views": encoding_table("0 / left out", view_cells(*views(scores))),
        "missed": unlearned_table(scores),
        "at": encoding_table("at 2x / at 4x", cells_at_2x_and_4x(scores)),
        "ranks": encoding_table("rank", rank_cells(scores)),
    }


def numbers(scores: pd.DataFrame) -> dict[str, Any]:
    """Return the numbers in the text by name, such as ``copy/fox/score`` and ``copy/fox/score/2 layers``."""
    values: dict[str, Any] = {}
    columns = {"score": SCORE, "2x": AT_2X, "4x": AT_4X}
    for (task, encoding), rows in scores[scores["learned"]].groupby(["task", "label"]):
        for name, column in columns.items():
            values[f"{task}/{encoding}/{name}"] = rows[column].mean()
            for factor, (_, low, high) in FACTORS.items():
                values[f"{task}/{encoding}/{name}/{low}"] = rows.loc[~rows[factor], column].mean()
                values[f"{task}/{encoding}/{name}/{high}"] = rows.loc[rows[factor], column].mean()
            for levels, at_levels in rows.groupby(["layers", "training length"]):
                many_layers, long_training = map(bool, levels)
                layers = FACTORS["layers"][1 + many_layers]
                training_length = FACTORS["training length"][1 + long_training]
                values[f"{task}/{encoding}/{name}/{layers}, {training_length}"] = at_levels[column].mean()
    return values


def ranking_numbers(together: pd.DataFrame, rows: pd.DataFrame) -> dict[str, Any]:
    """Return the ranking by name, such as ``rank/fox/mean``, and what the bootstrap says of it."""
    tied = [*rows.index[rows["tied"]]]
    bootstrap = ranking.resample(together)
    values: dict[str, Any] = {
        "rank/encodings": len(rows),
        "rank/others": len(rows) - 1,
        "rank/tied": len(tied),
        "rank/lower": len(rows) - len(tied),
        "rank/lowest tied": rows.loc[tied, "mean"].min(),
        "rank/highest lower": rows["mean"].drop(tied).max(),
        "2x/tied": ranking.against_best(ranking.over_tasks(together, AT_2X))["tied"].sum(),
        "both/first": bootstrap.first()[tied].sum(),
        "both/on top": bootstrap.share_on_top(tied),
        "both/open": (rows["both_low"].iloc[len(tied) :] <= 0).sum(),
        "tasks/lower": (ranking.over_task_tests(together, bootstrap.best) <= ALPHA).sum(),
        "rank/lower at 2x": rows.loc[tied, AT_2X].min(),
        "rank/highest lower at 4x": rows[AT_4X].drop(tied).max(),
        "rank/lowest tied at 4x": rows.loc[tied, AT_4X].min(),
        "rank/highest at 2x": rows[AT_2X].max(),
        "rank/highest at 4x": rows[AT_4X].max(),
    }
    columns = {"mean": "mean", "2x": AT_2X, "4x": AT_4X, "learned": "learned"} | {t: t for t in TELLING}
    for name, column in columns.items():
        values |= {f"rank/{encoding}/{name}": value for encoding, value in rows[column].items()}
    return values


def half_numbers(together: pd.DataFrame) -> dict[str, Any]:
    """Return how often encodings learned and copied in the first and the mirrored configurations."""
    mirrored = pd.read_csv(RESULTS / "bank" / "mirrored" / "scores.csv")
    both = pd.concat([together[together["label"].isin(mirrored["label"])], mirrored])
    learned = both.groupby("label")["learned"]
    values: dict[str, Any] = {f"learned/{label}": count for label, count in learned.sum().items()}
    values["learned/cases"] = learned.size().max()
    for half, rows in (("first", together), ("mirrored", mirrored)):
        means = ranking.over_tasks(rows).mean()
        values |= {f"{half}/{label}": mean for label, mean in means.items()}
        copied = rows[(rows["task"] == "copy") & rows["learned"]]
        for name, column in (("2x", AT_2X), ("4x", AT_4X)):
            shares = copied.groupby("label")[column].mean()
            values |= {f"{half}/copy/{label}/{name}": share for label, share in shares.items()}
            kerple = copied[copied["label"] == "kerple_log"]
            for long_training, lengths in ((False, 12), (True, 24)):
                at_level = kerple[kerple["training length"] == long_training]
                values[f"{half}/copy/kerple_log/{name}/trained to {lengths}"] = at_level[column].mean()
                for many_layers, layers in ((False, 2), (True, 4)):
                    share = at_level.loc[at_level["layers"] == many_layers, column].mean()
                    values[f"{half}/copy/kerple_log/{name}/trained to {lengths}, {layers} layers"] = share
    values["mirrored/next"] = ranking.over_tasks(mirrored).mean().drop(["fox", "kerple_log"]).max()
    return values


def newer_in_mirrored() -> str:
    """Return in how many mirrored configurations the newer encodings are complete, or how they compare."""
    folder = RESULTS / "bank" / "new_mirrored"
    study = load_study(folder)
    complete = study.load(folder)["setting"].nunique()
    if complete < study.CONFIGURATIONS:
        return f"are complete in {complete} of these so far, without a test"
    return f"were compared there, too. {study.blocks(folder)['outcome'].removesuffix('.')}"


def text_numbers() -> dict[str, float]:
    """Return losses on text at 256 bytes, on the first and later bytes of a window, and rises to 2,048."""
    study = load_study(RESULTS / "text")
    runs = read_archive(RESULTS / "text")
    bits = study.scores(runs)
    rope_bits = study.scores(read_archive(RESULTS / "text" / "rope"))
    rises = (bits[2048] - bits[256]).groupby(bits["label"]).mean()
    rope_rises = (rope_bits[2048] - rope_bits[256]).groupby(rope_bits["label"]).mean()
    by_index = study.by_index(runs)
    newer_study = load_study(RESULTS / "text" / "new")
    newer = (
        newer_study.at_best_rate(read_archive(RESULTS / "text" / "new")).groupby("label")[[256, 2048]].mean()
    )
    return {
        **{f"text/{encoding}/rise": loss for encoding, loss in (newer[2048] - newer[256]).items()},
        **{f"text/{encoding}/at 2048": loss for encoding, loss in newer[2048].items()},
        **{f"text/{encoding}/rise": rise for encoding, rise in rises.combine_first(rope_rises).items()},
        **{f"text/{encoding}/at 256": loss for encoding, loss in bits.groupby("label")[256].mean().items()},
        **{f"text/{encoding}/at 2048": loss for encoding, loss in bits.groupby("label")[2048].mean().items()},
        "text/fox/first 64": by_index.loc["fox", 64],
        "text/fox/later": by_index.loc["fox", [128, 192, 256]].mean(),
        "text/flat/rise": rises[["fox", "kerple_log", "alibi"]].max(),
    }


def flip_flop_numbers() -> dict[str, float]:
    """Return the errors, in %, on flip-flop with 128 symbols and one layer, from the replications."""
    errors = load_study(RESULTS / "replications").our_values()
    return {f"long flip_flop/{name}": values.mean() for name, values in flip_flop_errors(errors).items()}


def flip_flop_errors(errors: dict[Any, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the errors by seed of each encoding on flip-flop as trained."""
    return {
        encoding: values
        for (_, task, setting, encoding), values in errors.items()
        if (task, setting) == ("flip-flop", "as trained")
    }


def cost_numbers() -> dict[str, float]:
    """Return the time of a training step relative to NoPE, and of a long evaluation relative to RoPE."""
    costs = pd.read_csv(RESULTS / "benchmark" / "table.csv", keep_default_na=False, na_values=[""])
    short = costs[(costs["part"] == "encodings") & (costs["setting"] == "defaults")]
    values = {f"cost/{case}": ratio for case, ratio in zip(short["case"], short["ratio"], strict=True)}
    for tokens in (1024, 16384):
        long = costs[costs["setting"] == f"{tokens} tokens"].set_index("case")["milliseconds"]
        values |= {f"cost at {tokens}/{case}": ratio for case, ratio in (long / long["rope"]).items()}
    return values


def verdict_table(compared: pd.DataFrame) -> str:
    """Return a table of the best, the tied and the number of lower encodings by task and measure."""
    rows = []
    compared = compared[compared["task"] != CONTROL]
    for (task, measure_name), group in compared.groupby(["task", "measure"], sort=False):
        lower = group["verdict"] == verdicts.BETTER
        tied = group["verdict"] == verdicts.NOT_SEPARATED
        rows.append(
            {
                "task": task,
                "measure": measure_name,
                "best": f"`{group['best'].iloc[0]}` {number(group['best_mean'].iloc[0])}",
                "tied with it": listed(group.loc[tied, "encoding"]),
                "lower": lower.sum(),
                "lower, calibrated": (lower & (group["calibrated_p"] <= ALPHA)).sum(),
                "not compared": listed(group.loc[~group["verdict"].isin(verdicts.TESTED), "encoding"]),
            }
        )
    return table(pd.DataFrame(rows))


def listed(encodings: pd.Series) -> str:
    return ", ".join(f"`{name}`" for name in encodings) or "–"


def encoding_table(corner: str, cells: pd.DataFrame) -> str:
    """Return cells [encodings, tasks] as a Markdown table with ``corner`` as the first heading."""
    cells.insert(0, corner, [f"`{name}`" for name in cells.index])
    return table(cells)


def view_cells(as_zero: pd.DataFrame, learned_alone: pd.DataFrame, learned_in: pd.DataFrame) -> pd.DataFrame:
    """Return the results of `views` as text, such as ``0.10 / 0.13 (9 of 12)``."""
    counts = learned_in.map(lambda count: "" if count == SETTINGS else f" ({count} of {SETTINGS})")
    cells = as_zero[[*learned_alone]].map(number) + " / " + learned_alone.map(number) + counts
    cells.insert(0, MEAN, as_zero[MEAN].map(number))
    return cells


def cells_at_2x_and_4x(scores: pd.DataFrame) -> pd.DataFrame:
    groups = scores[scores["learned"]].groupby(["label", "task"])
    cells = groups[AT_2X].mean().map(number) + " / " + groups[AT_4X].mean().map(number)
    return cells.unstack().loc[views(scores)[0].index, TASKS]


def rank_cells(scores: pd.DataFrame) -> pd.DataFrame:
    """Return ranks of mean scores with 95 % bootstrap intervals over settings, such as ``2 (1 to 4)``."""
    by_measure = matrices(scores)
    encodings = views(scores)[0].index
    cells = {}
    for task in (MEAN, *TASKS):
        ranks, _ = bootstrap_ranks(by_measure[task, AS_ZERO][encodings].to_numpy())
        cells[task] = [f"{rank.estimate:g} ({rank.low:g} to {rank.high:g})" for rank in ranks]
    return pd.DataFrame(cells, index=encodings)


def unlearned_table(scores: pd.DataFrame) -> str:
    """Return a table of the settings in which an encoding did not learn a task, with their common levels."""
    rows = []
    for task in TASKS:
        for encoding, group in scores[scores["task"] == task].groupby("label"):
            unlearned = group[~group["learned"]]
            if unlearned.empty:
                continue
            # `similar` are the settings with all levels that the unlearned settings have in common.
            similar = group
            common_levels = []
            for factor, (_, low, high) in FACTORS.items():
                if unlearned[factor].nunique() == 1:
                    level = unlearned[factor].iloc[0]
                    similar = similar[similar[factor] == level]
                    common_levels.append(high if level else low)
            count = f"{len(unlearned)} of {len(similar)}"
            if len(unlearned) == 1:
                count = "the one"
            elif len(unlearned) == len(similar):
                count = f"all {len(similar)}"
            where = f"{count} with {', '.join(common_levels)}" if common_levels else count
            rows.append({"task": f"`{task}`", "encoding": f"`{encoding}`", "not learned in": where})
    return table(pd.DataFrame(rows))
