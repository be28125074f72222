"""Compare published values with ours: is the value reproduced, or at least the order of encodings?"""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from pe_experiments.comparison.statistics import t_interval
from pe_experiments.configuration.compose import compose_config
from pe_experiments.drawing import legend_below, save, styles
from pe_experiments.studies import Study, read_table
from pe_experiments.studies.inference import mean_interval
from pe_experiments.studies.pages import progress
from pe_experiments.terminal.files import CONFIG_DIR

from . import curves, statements

HERE = Path(__file__).parent
PATH, HUANG, TEXT = "2505.16381", "2410.02140", "2505.17083"
NAMES = {PATH: "path", HUANG: "huang", TEXT: "text"}
# Values that differ by at most this much have no order: errors in %, and bits per byte on text.
TIED_ERRORS, TIED_BITS = 1.0, 0.03
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


def our_values() -> pd.DataFrame:
    """Return our errors in %, on text bits per byte: a row per seed with the columns `KEYS` and ``value``."""
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
    return pd.concat([flips, *answers, bits])[[*KEYS, "value"]]


def judge_ledger() -> pd.DataFrame:
    """Return the published values of ``ledger.csv`` with ours and the verdicts.

    Columns are added: our values by seed, their mean, our mean in the first setting listed, and the verdict.
    """
    ledger = read_table(HERE / "ledger.csv", "arxiv", "table", "setting", "command", "paper")
    seeds = our_values().groupby(KEYS)["value"].agg(list).rename("seeds")
    rows = ledger.merge(seeds, left_on=KEYS, right_index=True)
    rows["mean"] = rows["seeds"].map(np.mean)
    rows["trained"] = rows.groupby(["arxiv", "task", "encoding"])["mean"].transform("first")
    for _, column in rows.groupby(KEYS[:3]):
        rows.loc[column.index, "verdict"] = [_verdict(column, row) for row in column.itertuples()]
    return rows


def _verdict(column: pd.DataFrame, row: Any) -> str:
    """Return the verdict on the published value of a row; ``column`` has its paper, task and setting."""
    is_error = row.arxiv != TEXT
    tied = TIED_ERRORS if is_error else TIED_BITS
    if is_error:
        if column[["published", "mean"]].to_numpy().max() <= tied:
            return CERTAIN
        if row.trained > LEARNED:
            return NOT_LEARNED
        if abs(row.mean - row.published) <= max(CLOSE, min(FAR, row.published / 4)):
            return REPRODUCED
        column = column[column["trained"] <= LEARNED]
    untied = column[(column["published"] - row.published).abs() > tied]
    if untied.empty:
        return f"{NOT}: value differs, and there is no order" if is_error else OPEN
    ours, published = untied["mean"] - row.mean, untied["published"] - row.published
    contrary = untied["encoding"][(ours * published < 0) & (ours.abs() > tied)]
    if len(contrary):
        return f"{NOT}: against {', '.join(contrary)}"
    return OPEN if (ours.abs() <= tied).any() else ORDER


def draw(rows: pd.DataFrame, figures: Path) -> None:
    """Draw our errors over published errors, and curves of papers beside ours.

    Hollow markers stand for encodings that did not learn the task.
    """
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


def values(rows: pd.DataFrame) -> dict[str, Any]:
    """Return the verdicts on papers, the number of values by verdict, and how far the runs are."""
    verdicts = rows["verdict"].str.replace(rf"^{NOT}: .*", NOT, regex=True)
    count = verdicts.value_counts().reindex([*WORDS], fill_value=0)
    in_words: dict[str, str] = {}
    for arxiv, of_paper in verdicts.groupby(rows["arxiv"]):
        counts = of_paper.value_counts()
        parts = [f"{counts[verdict]} {words}" for verdict, words in WORDS.items() if verdict in counts]
        in_words[NAMES[str(arxiv)]] = ", ".join(parts)
    presets: dict[str, list[str]] = {}  # by the nested study that they train
    for path in sorted((CONFIG_DIR / "sweep").glob("replicate_*.yaml")):
        name = str(compose_config([f"sweep={path.stem}"]).study).rpartition("/")[2]
        presets.setdefault(name, []).append(path.stem)
    runs = []
    for name, sweep in sorted(presets.items()):
        runs.append(f"[{name}]({name}/report.html) {progress(HERE / name, Study(sweep=(*sweep,)))}")
    return {
        "all": len(rows),
        "value": count[REPRODUCED],
        "order": count[ORDER],
        "turned": count[NOT],
        "judged": count[[REPRODUCED, ORDER, NOT]].sum(),
        "runs": ", ".join(runs),
        **in_words,
        **statements.verdicts(),
        **curves.scan_values(),
        **curves.gu_values(),
    }


def judged_values(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the published values with ours, the 95 % interval of our mean, and the verdict.

    The interval is Gaffke's for errors and Student's for losses.
    """
    is_loss = rows["arxiv"] == TEXT
    unit = np.where(is_loss, 1.0, 100.0)
    intervals = [
        t_interval(values) if loss else mean_interval(np.array(values) / 100)
        for values, loss in zip(rows["seeds"], is_loss, strict=True)
    ]
    ends = pd.DataFrame(intervals, rows.index)[["low", "high"]].mul(unit, axis="index")
    rows = rows.drop(columns=["command", "trained"]).rename(columns={"mean": "ours"})
    return rows.assign(seeds=rows["seeds"].map(len)).join(ends)


STUDY = Study(
    load=lambda folder: judge_ledger(),
    values=values,
    figures=(draw,),
    tables={"judged_values": judged_values, "judged_pairs": lambda rows: statements.judged_pairs()},
)
