"""Compare published values with ours: is the value reproduced, or at least the order of encodings?"""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from pe_experiments.comparison.statistics import mean_interval, t_interval
from pe_experiments.configuration.compose import compose_config
from pe_experiments.drawing import legend_below, save, styles
from pe_experiments.studies import Study, read_table
from pe_experiments.studies.study import progress
from pe_experiments.terminal.files import CONFIG_DIR

from . import curves, statements

HERE = Path(__file__).parent
PATH, HUANG, TEXT = "2505.16381", "2410.02140", "2505.17083"
ERROR, BITS = "error, %", "bits per byte"
UNITS = {PATH: ERROR, HUANG: ERROR, TEXT: BITS}  # of our values
NAMES = {PATH: "path", HUANG: "huang", TEXT: "text"}
TIED = {ERROR: 1.0, BITS: 0.03}  # values that differ by at most this much have no order
CLOSE, FAR = 1.0, 5.0  # limits of the tolerance, in percentage points
LENGTHS = {256: "as trained", 1024: "4x", 2048: "16x"}  # our context in bytes: the paper's setting
RANGES = {"up to 50": (1, 50), "51 to 100": (51, 100), "101 to 150": (101, 150)}  # symbols
STEPS, RATE = 3000, 0.003  # steps and learning rate of PaTH's table
LEARNED = 10.0  # error, %, at the training lengths; above it an encoding has no rank
REPRODUCED, ORDER, OPEN, NOT = "value", "order", "open", "no"
NOT_LEARNED, CERTAIN = "not judged: not learned", "not judged: could not fail"
WORDS = {
    REPRODUCED: "equal in value",
    ORDER: "equal in order",
    OPEN: "open",
    NOT: "different",
    NOT_LEARNED: "not learned",
    CERTAIN: "could not fail",
}
KEYS = ["arxiv", "task", "setting", "encoding"]

Values = dict[Any, np.ndarray]  # a value per seed, by the values of `KEYS`


def our_values() -> Values:
    """Return our errors on flip-flop and on the tasks of Huang et al., and our bits per byte on text."""
    flips = read_table(HERE / "path" / "errors.csv", "setting")
    flips = flips[flips["steps"].eq(STEPS) & flips["learning_rate"].eq(RATE)]
    flips = flips.assign(arxiv=PATH, task="flip-flop", value=flips["error"])
    curves = read_table(HERE / "huang" / "curves.csv")
    curves["encoding"] = curves["label"].str.replace(r"\([^)]*\)", "", regex=True)
    answers = []
    for setting, (first, last) in RANGES.items():
        points = curves[curves["content_length"].between(first, last)]
        means = points.groupby(["task", "encoding", "seed"], as_index=False)["exact_match"].mean()
        answers.append(means.assign(arxiv=HUANG, setting=setting, value=100 * (1 - means["exact_match"])))
    runs, lines = (read_table(HERE.parent / "text" / f"{name}.csv") for name in ("runs", "text"))
    lines = lines[(lines["windows"] == "non_overlapping") & (lines["slice"] == "all")]
    bits = lines.merge(runs[["name", "label"]], on="name")
    bits = bits.rename(columns={"label": "encoding", "bits_per_byte": "value"})
    bits = bits.assign(arxiv=TEXT, task="next token", setting=bits["length"].map(LENGTHS))
    return {key: rows["value"].to_numpy() for key, rows in pd.concat([flips, *answers, bits]).groupby(KEYS)}


def judge_ledger() -> pd.DataFrame:
    """Return the published values of ``ledger.csv`` with ours and the verdicts.

    Columns are added: our values by seed, their mean, our mean in the first setting listed, and the verdict.
    """
    ledger = read_table(HERE / "ledger.csv", "arxiv", "table", "setting", "command", "paper")
    ours = our_values()
    seeds: Any = [ours[key] for key in ledger[KEYS].itertuples(index=False, name=None)]
    rows = ledger.assign(seeds=seeds, mean=[values.mean() for values in seeds])
    rows["trained"] = rows.groupby(["arxiv", "task", "encoding"])["mean"].transform("first")
    columns: Any = dict(list(rows.groupby(KEYS[:3])))
    verdicts = [_verdict(columns[row.arxiv, row.task, row.setting], row) for row in rows.itertuples()]
    return rows.assign(verdict=verdicts)


def _verdict(column: pd.DataFrame, row: Any) -> str:
    """Return the verdict on the published value of a row; ``column`` has its paper, task and setting."""
    unit = UNITS[row.arxiv]
    if unit == ERROR:
        if column[["published", "mean"]].to_numpy().max() <= TIED[unit]:
            return CERTAIN
        if row.trained > LEARNED:
            return NOT_LEARNED
        if abs(row.mean - row.published) <= max(CLOSE, min(FAR, row.published / 4)):
            return REPRODUCED
        column = column[~(column["trained"] > LEARNED)]
    untied = column[(column["published"] - row.published).abs() > TIED[unit]]
    if untied.empty:
        return f"{NOT}: value differs, and there is no order" if unit == ERROR else OPEN
    ours, published = untied["mean"] - row.mean, untied["published"] - row.published
    contrary = untied["encoding"][(ours * published < 0) & (ours.abs() > TIED[unit])]
    if len(contrary):
        return f"{NOT}: against {', '.join(contrary)}"
    return OPEN if (ours.abs() <= TIED[unit]).any() else ORDER


def draw(folder: Path, figures: Path) -> None:
    """Draw our errors over published errors, and curves of papers beside ours.

    Hollow markers stand for encodings that did not learn the task.
    """
    rows = judge_ledger()
    rows = rows[rows["arxiv"] != TEXT]
    figure = Figure(figsize=(4.6, 3.6), layout="constrained")
    looks = styles(sorted(set(rows["encoding"])))
    axes = figure.subplots()
    axes.axline((0, 0), (1, 1), color="0.7", linewidth=1)
    for row in rows.to_dict("records"):
        colour, marker = looks[row["encoding"]]
        face = "none" if row["trained"] > LEARNED else colour
        axes.scatter(row["published"], row["mean"], s=28, c=face, marker=marker, edgecolors=colour)
    ticks = [0, 1, 10, 100]
    axes.set(xscale="symlog", yscale="symlog", xlim=(-0.3, 100), ylim=(-0.3, 100), aspect="equal")
    axes.set(xticks=ticks, xticklabels=ticks, yticks=ticks, yticklabels=ticks)
    axes.set(xlabel="published error (%)", ylabel="our error (%)")
    legend_below(figure, looks, looks)
    save(figure, figures, "answer")
    curves.draw(figures)


def values(folder: Path) -> dict[str, Any]:
    """Return the verdicts on papers, the number of values by verdict, and how far the runs are."""
    rows = judge_ledger()
    return {
        **counts(rows),
        **{NAMES[str(arxiv)]: counts_in_words(group["verdict"]) for arxiv, group in rows.groupby("arxiv")},
        **statements.verdicts(),
        **curves.scan_values(),
        **curves.gu_values(),
        "runs": ", ".join(
            f"[{name}]({name}/report.html) {words}" for name, words in progress_of_runs().items()
        ),
    }


def progress_of_runs() -> dict[str, str]:
    """Return how many planned runs of each nested study are published, from the presets that train them."""
    presets: dict[str, list[str]] = {}
    for path in sorted((CONFIG_DIR / "sweep").glob("replicate_*.yaml")):
        name = str(compose_config([f"sweep={path.stem}"]).study).rpartition("/")[2]
        presets.setdefault(name, []).append(path.stem)
    return {name: progress(HERE / name, Study(sweep=(*presets[name],))) for name in sorted(presets)}


def counts_in_words(verdicts: pd.Series) -> str:
    """Return the verdicts on the values of a paper, as "3 equal in value, 9 not learned"."""
    words = verdicts.where(~verdicts.str.startswith(f"{NOT}: "), NOT).map(WORDS)
    return ", ".join(f"{(words == name).sum()} {name}" for name in WORDS.values() if (words == name).any())


def judged_values(folder: Path) -> pd.DataFrame:
    """Return the published values with ours, the 95 % interval of our mean, and the verdict."""
    rows = judge_ledger()
    lows, highs = zip(*map(interval, rows["seeds"], rows["arxiv"].map(UNITS)), strict=True)
    rows = rows.assign(low=lows, high=highs, seeds=rows["seeds"].map(len))
    return rows.drop(columns=["command", "trained"]).rename(columns={"mean": "ours"})


def interval(values: np.ndarray, unit: str) -> tuple[float, float]:
    """Return the 95 % interval of the mean: Gaffke's for errors, Student's for losses."""
    if unit == ERROR:
        share = mean_interval(values / 100)
        return 100 * share.low, 100 * share.high
    of_losses = t_interval(values)
    return of_losses.low, of_losses.high


def counts(rows: pd.DataFrame) -> dict[str, int]:
    """Return the number of published values by verdict."""
    verdicts = rows["verdict"].where(~rows["verdict"].str.startswith(f"{NOT}: "), NOT)
    value, order, contrary = (int((verdicts == verdict).sum()) for verdict in (REPRODUCED, ORDER, NOT))
    judged = value + order + contrary
    return {"all": len(rows), "value": value, "order": order, "turned": contrary, "judged": judged}


STUDY = Study(
    values=values,
    figures=(draw,),
    tables={"judged_values": judged_values, "judged_pairs": lambda folder: statements.judged_pairs()},
)
