"""The second bank: schemes x tasks over paired settings; what holds over them, and which setting turns the order around."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from pe_experiments.comparison import Runs
from pe_experiments.comparison.words import listed, number
from pe_experiments.drawing import legend_below, save, styles
from pe_experiments.evaluation.summary import SOLVED
from pe_experiments.published import markdown_table, read_archive, verdicts, with_settings
from pe_experiments.published.scores import FLOORS, SCORE, scored, scores_of
from pe_experiments.published.verdicts import BETTER, NOT_SEPARATED, TESTED, TOO_FEW
from pe_experiments.tasks.state import FlipFlop

CONTROL = "majority"
QUESTIONS = {
    "copy": "copy all symbols",
    "lag": "repeat the symbol three back",
    "kth": "find the third symbol, a trained position",
    "induction": "recall what followed a mark",
    "flip_flop": "recall the bit written last",
    CONTROL: "a control: which bit is more frequent",
}
SYMBOLS = ("task.vocab_size", "task.fillers", "task.ignore")  # more of them is harder
FACTORS = {"layers": ("model.num_layers",), "symbols": SYMBOLS, "training length": ("training.max_length",),
           "blocks": ("model.norm",), "heads": ("model.num_heads",)}  # fmt: skip
DRAWN = 20_000
EARLY, CHANGE = "early.csv", 0.1  # as sweep.change unless it is said
AT_2X, AT_4X = "exact_match_at_2x", "exact_match_at_4x"

Standing = tuple[str, dict[str, verdicts.Difference]]  # the scheme with the highest mean, and its differences


def measure(folder: Path, runs: Runs, results_dir: Path) -> None:
    """The floors of every task, setting and length; verdicts of each scheme in turn as the new one, stopped early."""
    del results_dir
    points = runs.curves.drop_duplicates(["task", "seed", "content_length"])
    points = points.merge(with_settings(runs, ignore="task.ignore")[["name", "ignore"]], on="name")
    points["floor"] = [_floor(point) for point in points.itertuples()]
    points = points.rename(columns={"seed": "setting"})[["task", "setting", "content_length", "floor"]]
    points.to_csv(folder / FLOORS, index=False)
    scores: Any = ((task, scores_of(rows)) for task, rows in scored(runs, points).groupby("task"))
    rows = [(task, *row) for task, own in scores for row in verdicts.stopped_early(own, CHANGE)]
    columns = ["task", "scheme", "run", "of", "agree", "verdicts"]
    pd.DataFrame(rows, columns=columns).to_csv(folder / EARLY, index=False)


def _floor(point: Any) -> float:
    """Exact match without order where an answer is one token; on `flip_flop` that of the majority of bits so far."""
    if point.task == "flip_flop":
        return majority_of_bits(point.ignore, point.content_length)
    one = point.answer_tokens == 1 and point.task != CONTROL  # which a bag of tokens solves
    return float(point.bag_ceiling) if one else 0.0


def majority_of_bits(ignore: float, length: int) -> float:
    """Estimated exact match of answering every read with the bit written more often so far; ties are guessed."""
    task, draw = FlipFlop(ignore), torch.Generator().manual_seed(0)
    inputs, targets = (x.view(DRAWN, -1, 2) for x in task.sample(length, DRAWN, draw))
    written, reads = inputs[..., 0] == task.write, targets[..., 0] >= 0
    lead = ((2 * inputs[..., 1] - 1) * written).cumsum(dim=1)  # ones less zeros
    right = torch.where(lead == 0, 0.5, ((lead > 0) == (targets[..., 0] == 1)).double())
    return float(torch.where(reads, right, 1.0).prod(dim=1).mean())


def found(folder: Path) -> tuple[Runs, pd.DataFrame, list[str], list[str]]:
    """The runs; their scores with a column per factor, false or true; schemes by name, since no mean ranks them; tasks."""
    runs = read_archive(folder)
    table = scored(runs, pd.read_csv(folder / FLOORS), (SCORE, AT_2X, AT_4X))
    keys = {key: key for several in FACTORS.values() for key in several}
    levels = with_settings(runs, **keys).set_index("name")
    for name, several in FACTORS.items():  # the higher of its two values; of blocks those of Llama
        value = levels[[*several]].bfill(axis=1).iloc[:, 0].map(str)
        levels[name] = value != value.groupby(levels["task"]).transform("min")
    schemes, tasks = sorted(set(table["label"])), [task for task in QUESTIONS if task in set(table["task"])]
    return runs, table.join(levels[[*FACTORS]], on="name"), schemes, tasks


def pages(folder: Path) -> None:
    """Curves; scores with how many settings were learned; what each factor does to them."""
    runs, table, schemes, tasks = found(folder)
    lengths = runs.runs[["name", "max_length"]]
    points = runs.curves.merge(lengths[lengths["name"].isin(table.loc[table["learned"], "name"])], on="name")
    _draw_curves(points, schemes, tasks, folder / "figures")
    figure = Figure(figsize=(7.2, 0.9 + 0.27 * len(schemes)), layout="constrained")
    axes, means = figure.subplots(), np.full((len(schemes), len(tasks)), np.nan)
    cells: Any = table.groupby(["label", "task"])
    for (scheme, task), own in cells:
        row, column, known = schemes.index(scheme), tasks.index(task), own[own["learned"]]["score"]
        means[row, column] = mean = known.mean()
        some = "" if len(known) == len(own) else f" ({len(known)} of {len(own)})"
        look: Any = {"color": "white" if mean > 0.55 else "black", "fontsize": 7}
        axes.text(column, row, f"{number(mean)}{some}", ha="center", va="center", **look)
    _matrix(axes, means, schemes, tasks, "Blues", 0)
    figure.colorbar(axes.images[0], ax=axes, label="score, 1x to 8x")
    save(figure, folder / "figures", "answer")
    _draw_factors(table, schemes, [task for task in tasks if task != CONTROL], folder / "figures")


def _draw_curves(points: pd.DataFrame, schemes: list[str], tasks: list[str], folder: Path) -> None:
    """Mean exact match at multiples of the training length, over the settings in which a scheme learned the task."""
    figure, looks = Figure(figsize=(7.2, 4.6), layout="constrained"), styles(schemes)
    points["times"] = points["content_length"] / points["max_length"]
    means: Any = (
        points[points["times"] >= 1].groupby(["task", "label", "times"])["exact_match"].agg(["mean", "size"])
    )
    panels = figure.subplots(2, -(-len(tasks) // 2), sharex=True, sharey=True, squeeze=False).ravel()
    for axes, task in zip(panels, tasks, strict=False):
        for scheme, (colour, marker) in looks.items():
            if (task, scheme) in means.index:
                curve = means.loc[task, scheme]
                curve = curve[curve["size"] == curve["size"].max()]
                axes.plot(curve.index, curve["mean"], color=colour, marker=marker, markersize=3, linewidth=1)
        axes.set_title(f"{task}\n{QUESTIONS[task]}", fontsize=7)
        axes.set_xscale("log", base=2)
        axes.set_xticks([1, 2, 4, 8], ["1x", "2x", "4x", "8x"])
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_xlabel("length, in training lengths" if axes in panels[len(tasks) // 2 :] else "")
    for axes in panels[len(tasks) :]:
        axes.remove()
    figure.supylabel("exact match, mean over settings", fontsize=8)
    legend_below(figure, looks, schemes)
    save(figure, folder, "curves")


def _draw_factors(table: pd.DataFrame, schemes: list[str], tasks: list[str], folder: Path) -> None:
    figure = Figure(figsize=(7.2, 1.1 + 0.2 * len(schemes)), layout="constrained")
    panels = figure.subplots(1, len(tasks), sharey=True, squeeze=False)[0]
    for axes, task in zip(panels, tasks, strict=True):
        rows = table[(table["task"] == task) & table["learned"]]
        made = np.array(
            [[_effect(rows[rows["label"] == one], factor) for factor in FACTORS] for one in schemes]
        )
        _matrix(axes, made, schemes, [*FACTORS], "RdBu", -1)
        axes.set_title(task)
        axes.tick_params(axis="x", rotation=90)
    figure.colorbar(panels[0].images[0], ax=panels, label="score: high less low")
    save(figure, folder, "factors")


def _matrix(
    axes: Any, values: np.ndarray, rows: list[str], columns: list[str], colours: str, low: int
) -> None:
    axes.imshow(values, cmap=colours, vmin=low, vmax=1, aspect="auto")
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)


def _effect(learned: pd.DataFrame, factor: str) -> float:
    """Mean score at the higher value of a factor less that at the lower."""
    means = learned.groupby(factor)["score"].mean()
    return float(means.get(True, np.nan) - means.get(False, np.nan))


def blocks(folder: Path) -> dict[str, str]:
    """The answer per task, all scores, differences, what turns the order around, and what it took."""
    runs, table, schemes, tasks = found(folder)
    seconds = (runs.runs["seconds_per_step"] * with_settings(runs, s="training.steps")["s"]).mean()
    learned = f"{100 * table['learned'].mean():.0f} %"
    of = {task: table[table["task"] == task] for task in tasks}
    standings = {task: verdicts.best(scores_of(own)) for task, own in of.items()}
    return {
        "answer": "\n".join(_answer(of, standings)),
        "effort": f"{len(runs.runs):,} runs, {seconds:.0f} s of training each on one core, on average; of a scheme on a "
        f"task in a setting, {learned} are learned.",
        "score": _cells(table, schemes, tasks, "score, 1x to 8x", lambda own: _span(own["score"])),
        "at": _cells(table, schemes, tasks, "exact match at 2x / 4x", lambda own: f"{number(own[AT_2X].mean())} / {number(own[AT_4X].mean())}"),
        "steps": _cells(_with_steps(runs, table), schemes, tasks, "steps, median", lambda own: number(own["step"].median(), ".0f")),
        "differences": _differences(standings),
        "early": "\n".join(_early(pd.read_csv(folder / EARLY))),
    }  # fmt: skip


def _answer(of: Mapping[str, pd.DataFrame], standings: Mapping[str, Standing]) -> Iterator[str]:
    """What holds on every task, and a line for each."""
    need_order = (one for task, one in standings.items() if task != CONTROL)
    if tested := [one for one in need_order if {d.verdict for d in one[1].values()} & {*TESTED}]:
        yield f"- *Over the {len(tested)} tasks with a test*: {_over_tasks(tested)}"
    for task, own in of.items():
        if task != CONTROL:
            yield sentence(task, own, *standings[task])


def _over_tasks(standings: Sequence[Standing]) -> str:
    """The schemes that are most often highest or not separated from the highest; those that are lower on every task."""
    high = pd.Series([name for first, others in standings for name in {first} | _with(others, NOT_SEPARATED)])
    low = pd.Series([name for _, others in standings for name in _with(others, BETTER)]).value_counts()
    best = [f"`{name}` on {n}" for name, n in sorted(high.value_counts().items()) if 2 * n > len(standings)]
    worst = [f"`{name}`" for name in sorted(low.index[low == len(standings)])]
    lower = f"; significantly lower on each: {listed(worst)}" if worst else ""
    every = "" if high.value_counts().max() == len(standings) else ", none on all"
    return f"highest, or not separated from the highest: {listed(best or ['no scheme on more than half'])}{every}{lower}."


def _with(others: Mapping[str, verdicts.Difference], verdict: str) -> set[str]:
    return {name for name, one in others.items() if one.verdict == verdict}


def sentence(task: str, rows: pd.DataFrame, first: str, others: Mapping[str, verdicts.Difference]) -> str:
    """The highest mean on a task, what is not separated from it, and which factor turns it around."""
    start = f"- *{QUESTIONS[task]}* (`{task}`): "
    if not first:
        return f"{start}no scheme learned it in three quarters of the settings."
    every = rows[rows["label"] == first]
    mine = every[every["learned"]]["score"]
    by_scheme = rows.groupby("label")["learned"]
    some = {one: f" ({own.sum()} of {len(own)})" * (not own.all()) for one, own in by_scheme}
    zeros = f"; mean {number(mine.sum() / len(every))} with 0 where not learned" * bool(some[first])
    text = f"{start}`{first}`{some[first]} is highest, {number(mine.mean())} (settings: {number(mine.min())} to {number(mine.max())}{zeros})"
    equal = [f"`{name}`{some[name]}" for name in sorted(_with(others, NOT_SEPARATED))]
    few = len(_with(others, TOO_FEW))
    rare = [f"`{name}`" for name, one in others.items() if one.verdict not in (*TESTED, TOO_FEW)]
    text += f"; not separated from it: {listed(equal)}" if equal else ""
    text += f"; too few settings to compare it with {few} of {len(others)} others" if few else ""
    text += f"; not learned often enough to compare: {listed(rare)}" if rare else ""
    if {one.verdict for one in others.values()} & {*TESTED} == {BETTER}:
        text += f"; every other{' that can be compared' if few or rare else ''} is significantly lower"
    return f"{text}.{_turned(rows[rows['learned']], first)}"


def _turned(learned: pd.DataFrame, first: str) -> str:
    """Whether the sign of the difference between the two highest means depends on a factor."""
    second = str(learned.groupby("label")["score"].mean().drop(first).idxmax())
    wide = learned.pivot_table("score", ["setting", *FACTORS], "label").reset_index()
    factors = verdicts.turning(wide[first] - wide[second], wide[[*FACTORS]])
    return f" Whether it or `{second}` is higher depends on {listed(factors)}." if factors else ""


def _early(table: pd.DataFrame) -> Iterator[str]:
    for task, own in table[table["run"] < table["of"]].groupby("task"):
        agree, every = own["agree"].sum(), own["verdicts"].sum()
        yield f"- `{task}`: {len(own)} stopped early, after {own['run'].mean():.1f} of {own['of'].iloc[0]} settings; {agree} of {every} verdicts agree."


def _span(values: pd.Series) -> str:
    return f"{number(values.mean())} ({number(values.min())} to {number(values.max())})"


def _cells(
    table: pd.DataFrame,
    schemes: list[str],
    tasks: list[str],
    words: str,
    shown: Callable[[pd.DataFrame], str],
) -> str:
    """A cell per scheme and task, of the settings that were learned; and in how many, where not in all."""
    cells: dict[Any, str] = {}
    for key, own in table.groupby(["label", "task"]):
        count = f"learned in {own['learned'].sum()} of {len(own)}"
        some = [shown(own[own["learned"]])] if own["learned"].any() else []
        cells[key] = ", ".join([*some, *([count] if not own["learned"].all() else [])])
    return markdown_table(
        [words, *tasks], [[one, *(cells.get((one, task), "–") for task in tasks)] for one in schemes]
    )


def _with_steps(runs: Runs, table: pd.DataFrame) -> pd.DataFrame:
    """The scores with the step at which a training batch was first right in nine of ten examples."""
    training = runs.training[runs.training["exact_match"] >= SOLVED]
    return table.join(training.groupby("name")["step"].min(), on="name")


def _differences(standings: Mapping[str, Standing]) -> str:
    rows = []
    for task, (first, others) in standings.items():
        for name, one in others.items():
            if one.verdict in TESTED:
                d = one.interval
                shown = f"{number(d.estimate, '.3f')} [{number(d.low, '.4f')}, {number(d.high, '.4f')}]"
                rows.append([task, first, name, shown, str(one.settings), f"{one.p:.2g}", one.verdict])
    return markdown_table(["task", "highest", "other", "difference", "settings", "p", "verdict"], rows)
