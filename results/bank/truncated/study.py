"""What a RoPE model that reads only as many tokens as in training can reach on the bank's tasks.

`ceiling` is the exact match of a perfect predictor that reads a window, computed without a run. A RoPE model
that solves the training lengths sees the same rows in its window, but on `copy` farther from their answers.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pe_experiments.comparison import Runs
from pe_experiments.comparison.words import number
from pe_experiments.studies import read_archive, table, with_settings
from pe_experiments.studies.pages import load_study
from pe_experiments.studies.scores import FLOORS

MIRRORED = Path(__file__).parents[1] / "mirrored"
TASKS = ["copy", "lag", "induction", "flip_flop"]
KEYS = ["task", "setting", "content_length"]
FARTHEST = 8  # multiples of the training length, to which a score extends
TRUNCATED = "truncated RoPE"


def window(task: str, longest: int) -> int:
    """Return how many tokens a model reads of its longest training example when it answers last.

    The mark at the beginning is not counted. On `copy` the end mark is the last answer.
    """
    return {"copy": 2 * longest + 1, "lag": longest, "induction": longest + 1, "flip_flop": longest - 1}[task]


def ceiling(task: str, symbols: int, ignore: float, longest: int, length: int) -> float:
    """Return the exact match at an input length of the best predictor that reads `window` tokens.

    Args:
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
    near, pairs = longest // 2 - 1, length // 2  # a bit is read up to ``near`` pairs back
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


def read_points(folder: Path) -> pd.DataFrame:
    """Return a row per task, configuration and length from the training length on.

    The columns are ``times`` (multiple of the training length), the ``floor``, and exact match of RoPE as
    published (``all tokens``), of `ceiling`, and of RoPE in the window (``truncated``).
    """
    archive = read_archive(MIRRORED)
    chosen = pd.read_csv(MIRRORED / "scores.csv")
    names = chosen.loc[chosen["label"] == "rope", "name"]
    points = rope_points(archive, names).rename(columns={"exact_match": "all tokens"})
    points = points.merge(pd.read_csv(MIRRORED / FLOORS), on=KEYS)
    runs = read_archive(folder)
    truncated = rope_points(runs, runs.runs["name"]).rename(columns={"exact_match": "truncated"})
    points = points.merge(truncated[[*KEYS, "truncated"]], on=KEYS, validate="1:1")
    options = points[["task", "symbols", "ignore", "max_length", "content_length"]]
    points["ceiling"] = list(map(ceiling, *options.to_numpy().T))
    return points


def rope_points(archive: Runs, names: pd.Series) -> pd.DataFrame:
    """Return the curves of the named runs from 1x to 8x, with the options that change a ceiling."""
    rows = with_settings(archive, vocabulary="task.vocab_size", fillers="task.fillers", ignore="task.ignore")
    rows["symbols"] = rows["vocabulary"].combine_first(rows["fillers"])
    columns = ["name", "max_length", "symbols", "ignore"]
    points = archive.curves.rename(columns={"seed": "setting"})
    points = points[points["name"].isin(names) & points["task"].isin(TASKS)].merge(rows[columns], on="name")
    points["times"] = points["content_length"] / points["max_length"]
    return points.loc[points["times"].between(1, FARTHEST), [*KEYS, *columns[1:], "times", "exact_match"]]


def scores(points: pd.DataFrame, column: str) -> pd.Series:
    """Return the area above the floor over log length, by task and configuration."""
    above = ((points[column] - points["floor"]) / (1 - points["floor"])).clip(lower=0)
    areas = {}
    for case, rows in points.assign(above=above).sort_values("times").groupby(KEYS[:2]):
        x = np.log2(rows["times"])
        areas[case] = np.trapezoid(rows["above"], x) / (x.iloc[-1] - x.iloc[0])
    return pd.Series(areas).rename_axis(KEYS[:2])


def mean_table(points: pd.DataFrame) -> pd.DataFrame:
    """Return means [tasks, and their mean; measures]: scores, and exact match at 2x and 4x."""
    columns = {"RoPE, all tokens": "all tokens", "limit": "ceiling", "RoPE, truncated": "truncated"}
    means = {name: scores(points, column).groupby("task").mean() for name, column in columns.items()}
    for times in (2, 4):
        at_times = points[points["times"] == times].groupby("task")
        means |= {f"{name} at {times}x": at_times[column].mean() for name, column in columns.items()}
    table_of_means = pd.DataFrame(means).loc[TASKS]
    table_of_means.loc["mean"] = table_of_means.mean(skipna=False)
    return table_of_means


def compare_with_truncation(points: pd.DataFrame) -> str:
    """Return the planned tests of FoX and KERPLE against truncated RoPE."""
    mirrored = load_study(MIRRORED)
    by_setting = mirrored.bank.ranking.over_tasks(pd.read_csv(MIRRORED / "scores.csv"))
    by_setting[TRUNCATED] = scores(points, "truncated").groupby("setting").mean()
    rows = mirrored.difference_rows(by_setting, [(label, TRUNCATED) for label in mirrored.RECOMMENDED])
    words = {mirrored.CONFIRMED: "better", mirrored.TIED: "tied", mirrored.REFUTED: "worse"}
    cells = {
        "encoding": "`" + rows["encoding"] + "`",
        "minus truncated RoPE": rows["difference"].map("{:+.2f}".format),
        "ahead in": [f"{row.ahead} of {row.settings}" for row in rows.itertuples()],
        "p": rows["p"].map("{:.3f}".format),
        "so it is": rows["verdict"].map(words),
    }
    return table(pd.DataFrame(cells))


def blocks(folder: Path) -> dict[str, Any]:
    """Return the tables and the numbers, such as ``limit/copy`` and ``limit/mean``."""
    points = read_points(folder)
    means = mean_table(points)
    cells = means.map(number)
    cells.insert(0, "mean", [f"`{task}`" if task in TASKS else task for task in map(str, means.index)])
    trained = points[points["times"] == 1].groupby("task")["truncated"].mean()
    return {
        **{f"limit/{task}": value for task, value in means["limit"].items()},
        **{f"trained/{task}": value for task, value in trained.items()},
        **{f"score/{task}": value for task, value in means["RoPE, truncated"].items()},
        **{str(name): value for name, value in means.loc["mean"].items()},
        "runs": points.groupby(KEYS[:2]).ngroups,
        "means": table(cells),
        "tests": compare_with_truncation(points),
    }
