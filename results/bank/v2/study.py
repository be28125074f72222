"""Compare twelve encodings on six tasks in the same twelve settings (the second bank)."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib import colormaps
from matplotlib.figure import Figure

from pe_experiments.bank import verdicts
from pe_experiments.bank.report import curves_figure
from pe_experiments.bank.scores import FLOORS, SCORE, score_table, scores_by_setting
from pe_experiments.comparison import Runs
from pe_experiments.comparison.statistics import ALPHA, bootstrap_ranks
from pe_experiments.comparison.words import number
from pe_experiments.drawing import save
from pe_experiments.published import read_archive, table, with_settings
from pe_experiments.published.pages import load_study
from pe_experiments.tasks.state import FlipFlop

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
MEAN = "mean"  # over `TASKS`
SETTINGS = 12
FACTORS = {  # the keys of a factor, of which a task has exactly one, and its low and high level
    "layers": (["model.num_layers"], "2 layers", "4 layers"),
    "symbols": (["task.vocab_size", "task.fillers", "task.ignore"], "few symbols", "many symbols"),
    "training length": (["training.max_length"], "trained to 12", "trained to 24"),
    "blocks": (["model.norm"], "GPT blocks", "Llama blocks"),
    "heads": (["model.num_heads"], "2 heads", "4 heads"),
}
AT_2X, AT_4X = "exact_match_at_2x", "exact_match_at_4x"
AS_ZERO = "area, unlearned as 0"
MEASURES = {  # the column, and its value in settings in which the task was not learned
    "area": (SCORE, np.nan),
    AS_ZERO: (SCORE, 0.0),
    "at 2x": (AT_2X, np.nan),
    "at 4x": (AT_4X, np.nan),
}
IN_COLOUR = ("sinusoidal", "rope", "t5", "alibi", "kerple_log", "fox")
SAMPLES = 20_000  # sequences per estimate
SHADES = 25  # published images have a small palette


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


def pages(folder: Path) -> None:
    """Draw the figures and write ``scores.csv`` and ``verdicts.csv``."""
    runs, scores = load(folder)
    draw_curves(runs, scores, folder / "figures")
    draw_scores(scores, folder / "figures")
    draw_factors(scores, folder / "figures")
    scores.to_csv(folder / "scores.csv", index=False)
    best_against_others(scores).to_csv(folder / "verdicts.csv", index=False)


def matrices(scores: pd.DataFrame) -> dict[tuple[str, str], pd.DataFrame]:
    """Return the scores [settings, encodings] by task and measure, and their mean over `TASKS`."""
    by_measure = {}
    for task in [*TASKS, CONTROL]:
        for name, (column, unlearned) in MEASURES.items():
            by_measure[task, name] = scores_by_setting(scores[scores["task"] == task], column, unlearned)
    total: Any = sum(by_measure[task, AS_ZERO] for task in TASKS)
    by_measure[MEAN, AS_ZERO] = total / len(TASKS)
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

    Each frame is [encodings, tasks], sorted by the mean over tasks; the first frame starts with that mean.
    """
    by_measure = matrices(scores)
    as_zero = pd.DataFrame({task: by_measure[task, AS_ZERO].mean() for task in (MEAN, *TASKS)})
    learned_alone = pd.DataFrame({task: by_measure[task, "area"].mean() for task in TASKS})
    learned_in = pd.DataFrame({task: by_measure[task, "area"].count() for task in TASKS})
    order = as_zero[MEAN].sort_values(ascending=False).index
    return as_zero.loc[order], learned_alone.loc[order], learned_in.loc[order]


def draw_curves(runs: Runs, scores: pd.DataFrame, folder: Path) -> None:
    """Draw mean exact match over input length on the four tasks that separate the encodings."""
    tasks = [task for task in TASKS if task != "kth"]
    figure = curves_figure(runs, scores, dict.fromkeys(tasks, IN_COLOUR), shortest=1, columns=4)
    figure.set_figheight(2.7)
    for axes, task in zip(figure.axes, tasks, strict=True):
        axes.set_title(f"{task}\n{QUESTIONS[task]}", fontsize=7)
        axes.set_xlabel("input length / training length", fontsize=7)
    save(figure, folder, "curves")


def draw_scores(scores: pd.DataFrame, folder: Path) -> None:
    """Draw the mean scores with unlearned settings as 0 and without them."""
    as_zero, learned_alone, learned_in = views(scores)
    counts = learned_in.to_numpy()
    figure = Figure(figsize=(7.2, 3.3), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=[6, 5])
    left.set_title("unlearned configurations count as 0")
    right.set_title("unlearned configurations left out")
    for axes, values in ((left, as_zero), (right, learned_alone)):
        draw_matrix(axes, values, "Blues", 0, 1)
        axes.tick_params(axis="x", labelsize=6.5)
        write_values(axes, values)
    for (row, column), count in np.ndenumerate(counts):
        if count < SETTINGS:
            cell = right.texts[row * len(TASKS) + column]
            cell.set(text=f"{cell.get_text()}\n{count} of {SETTINGS}", fontsize=5.5)
    save(figure, folder, "answer")


def draw_factors(scores: pd.DataFrame, folder: Path) -> None:
    """Draw the effect of each factor on the mean score of the learned settings."""
    encodings = [*views(scores)[0].index]
    figure = Figure(figsize=(7.2, 3.5), layout="constrained")
    panels = figure.subplots(1, len(TASKS), sharey=True)
    for axes, task in zip(panels, TASKS, strict=True):
        learned = scores[(scores["task"] == task) & scores["learned"]]
        effects = {}
        for factor in FACTORS:
            means = learned.groupby(["label", factor])[SCORE].mean().unstack()
            effects[factor] = means[True] - means[False]
        draw_matrix(axes, pd.DataFrame(effects).reindex(encodings), "RdBu", -0.6, 0.6)
        axes.set_title(task)
        axes.tick_params(axis="x", rotation=90)
    figure.colorbar(panels[0].images[0], ax=panels, label="score: high level minus low level")
    save(figure, folder, "factors")


def draw_matrix(axes: Any, values: pd.DataFrame, colours: str, low: float, high: float) -> None:
    """Draw values as colours; missing values are grey."""
    axes.set_facecolor("0.75")
    axes.imshow(values, cmap=colormaps[colours].resampled(SHADES), vmin=low, vmax=high, aspect="auto")
    axes.set_xticks(range(len(values.columns)), values.columns)
    axes.set_yticks(range(len(values)), values.index)


def write_values(axes: Any, values: pd.DataFrame) -> None:
    """Write the numbers into the cells of `draw_matrix`, in white on dark cells."""
    for (row, column), value in np.ndenumerate(values.to_numpy()):
        colour = "white" if value > 0.55 else "black"
        axes.text(
            column, row, number(value), color=colour, fontsize=7, ha="center", va="center", linespacing=0.9
        )


def blocks(folder: Path) -> dict[str, Any]:
    """Return the tables and the numbers of the page."""
    runs, scores = load(folder)
    steps = with_settings(runs, steps="training.steps")["steps"]
    return numbers(scores) | {
        "runs": len(runs.runs),
        "seconds": (runs.runs["seconds_per_step"] * steps).mean(),
        "learned": scores["learned"].mean(),
        "falsely lower": verdicts.calibrated_p(ALPHA, 12, SETTINGS),
        "verdicts": verdict_table(best_against_others(scores)),
        "views": encoding_table("0 / left out", view_cells(*views(scores))),
        "missed": unlearned_table(scores),
        "at": encoding_table("at 2x / at 4x", cells_at_2x_and_4x(scores)),
        "ranks": encoding_table("rank", rank_cells(scores)),
    }


def numbers(scores: pd.DataFrame) -> dict[str, Any]:
    """Return the numbers in the text by name, such as ``copy/fox/score`` and ``copy/fox/score/2 layers``."""
    values: dict[str, Any] = {}
    by_measure = matrices(scores)
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
    for (task, measure_name), matrix in by_measure.items():
        if measure_name == AS_ZERO:
            _, shares_first = bootstrap_ranks(matrix.to_numpy())
            for encoding, share in zip(matrix, shares_first, strict=True):
                values[f"{task}/{encoding}/0"] = matrix[encoding].mean()
                values[f"{task}/{encoding}/first"] = share
    means = by_measure[MEAN, AS_ZERO]
    others = means.drop(columns=["fox", "kerple_log"])
    values["ahead"] = min(others.lt(means[best], axis=0).sum().min() for best in ("fox", "kerple_log"))
    without_kth: Any = sum(by_measure[task, AS_ZERO] for task in TASKS if task != "kth")
    values |= {f"without kth/{name}": mean / (len(TASKS) - 1) for name, mean in without_kth.mean().items()}
    copied = scores[scores["learned"] & (scores["task"] == "copy")].groupby("label")[AT_4X].mean()
    values["copy/others/4x"] = copied.drop("kerple_log").max()
    return values | text_numbers() | gate_numbers() | mirrored_numbers() | cost_numbers()


def text_numbers() -> dict[str, float]:
    """Return the rises of the loss on text from 256 to 2,048 bytes, and ALiBi minus FoX at 256."""
    study = load_study(RESULTS / "text")
    bits = study.scores(read_archive(RESULTS / "text"))
    rope_bits = study.scores(read_archive(RESULTS / "text" / "rope"))
    rises = (bits[2048] - bits[256]).groupby(bits["label"]).mean()
    rope_rises = (rope_bits[2048] - rope_bits[256]).groupby(rope_bits["label"]).mean()
    trained = bits.groupby("label")[256].mean()
    return {
        **{f"text/{encoding}/rise": rise for encoding, rise in rises.combine_first(rope_rises).items()},
        "text/alibi/above fox": trained["alibi"] - trained["fox"],
        "text/flat/rise": rises[["fox", "kerple_log", "alibi"]].max(),
    }


def gate_numbers() -> dict[str, float]:
    """Return the mean scores of FoX with an initial gate bias of 4."""
    scores = pd.read_csv(RESULTS / "bank" / "new" / "scores.csv")
    scores = scores[scores["label"] == "fox(initial_bias=4)"]
    by_task = scores["score"].where(scores["learned"], 0.0).groupby(scores["task"]).mean()
    return {f"gate/{task}": score for task, score in by_task.items()} | {f"gate/{MEAN}": by_task.mean()}


def mirrored_numbers() -> dict[str, float]:
    """Return the mean scores in the mirrored configurations, and their number."""
    rows = pd.read_csv(RESULTS / "bank" / "mirrored" / "scores.csv")
    scores = rows["score"].where(rows["learned"], 0.0).groupby(rows["label"]).mean()
    values = {f"mirrored/{encoding}": score for encoding, score in scores.items()}
    return values | {"mirrored/settings": rows["setting"].nunique()}


def cost_numbers() -> dict[str, float]:
    """Return the time of a training step with each encoding, relative to NoPE."""
    costs = pd.read_csv(RESULTS / "benchmark" / "table.csv")
    costs = costs[(costs["part"] == "encodings") & (costs["setting"] == "defaults")]
    return {f"cost/{case}": ratio for case, ratio in zip(costs["case"], costs["ratio"], strict=True)}


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
