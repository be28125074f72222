"""Published values beside ours: what each run deviates in from the recipe, and whether value or order is reproduced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from pe_experiments.comparison.statistics import mean_interval, t_interval
from pe_experiments.plots import COLOURS, GREY, drawing, save
from pe_experiments.publishing import markdown_table, read_table

from . import statements

HERE = Path(__file__).parent
Found = dict[tuple[Any, ...], np.ndarray]  # ours by task, setting and scheme: a value per seed
Panel = tuple[str, str, list[tuple[Any, Any, Any]]]  # title, unit; scheme, published value and ours
TRAINED = "as trained"
LENGTHS = {TRAINED: 256, "4x": 1024, "16x": 2048}  # bytes of context that stand for the paper's
RANGES = {"up to 50": (1, 50), "51 to 100": (51, 100), "101 to 150": (101, 150)}  # symbols
STANDS = {("2505.17083", "16x"): " (ours: 8x)"}
PATH = "2505.16381"
STEPS, RATE = 3000, 0.003  # of the recipe of PaTH's table
LEAST = 1.05  # of the axes: differences far below a percentage point shall not look large
FAR = 5.0  # percentage points
REPRODUCED, ORDER, OPEN, NOT = "value", "order", "open", "not reproduced"
ALONE, WAITING = "no order to test", "not run yet"


def errors_of_path() -> Found:
    """Wrong reads in %, of the runs of the recipe."""
    table = _path_table()
    table = table[table["recipe"]]
    return {
        ("flip-flop", setting, scheme): own["error"].to_numpy()
        for (setting, scheme), own in table.groupby(["setting", "scheme"])
    }


def _path_table() -> pd.DataFrame:
    table = read_table(HERE / "path" / "errors.csv", "setting")
    return table.assign(recipe=(table["steps"] == STEPS) & (table["learning_rate"] == RATE))


def trials_of_path() -> str:
    """What other steps and learning rates make of one seed, as a table."""
    table = _path_table()
    table = table[(table["seed"] == 0) & table["scheme"].isin(table.loc[~table["recipe"], "scheme"])]
    columns: Any = ["steps", "learning_rate"]
    wide = table.pivot_table(index=columns, columns=["setting", "scheme"], values="error")
    settings, schemes = list(dict.fromkeys(table["setting"])), list(dict.fromkeys(table["scheme"]))
    heading = ["steps", "learning rate", *(f"{setting}: {' / '.join(schemes)}" for setting in settings)]
    rows = [
        [
            f"{steps:,}",
            f"{rate:g}",
            *(" / ".join(f"{wide.loc[(steps, rate), (one, s)]:.1f}" for s in schemes) for one in settings),
        ]
        for steps, rate in wide.index
    ]
    return markdown_table(heading, rows) if len(rows) > 1 else ""


def errors_of_huang() -> Found:
    """Inputs whose answer is not right as a whole, in %."""
    curves = read_table(HERE / "huang" / "curves.csv")
    curves["label"] = [label.partition("(")[0] for label in curves["label"]]
    found: Found = {}
    for setting, (first, last) in RANGES.items():
        own = curves[curves["content_length"].between(first, last)]
        by_run = 100 * (1 - own.groupby(["task", "label", "seed"])["exact_match"].mean())
        by_scheme = by_run.groupby(["task", "label"])
        for (task, scheme), values in by_scheme:
            found[task, setting, scheme] = values.to_numpy()
    return found


def bits_of_text() -> Found:
    """Bits per byte of the study of text."""
    folder = HERE.parent / "text"
    runs, lines = read_table(folder / "runs.csv"), read_table(folder / "text.csv")
    lines = lines[(lines["windows"] == "non_overlapping") & (lines["slice"] == "all")]
    table = lines.merge(runs[["name", "label"]], on="name")
    by = {key: own["bits_per_byte"].to_numpy() for key, own in table.groupby(["length", "label"])}
    pairs = product(LENGTHS.items(), sorted(set(table["label"])))
    return {("next token", setting, scheme): by[length, scheme] for (setting, length), scheme in pairs}


@dataclass(frozen=True)
class Source:
    """A paper's table and our values for it.

    Attributes:
        found: reads our values.
        file: the CSV they are read from, there once the study is published.
        units: of the published values, and of ours.
        tied: values at most this far apart, published or ours, have no order.
        close: a mean of ours at most this far from the published value, or a quarter of it and no more than `FAR`,
            reproduces it; None if units differ.
    """

    found: Callable[[], Found]
    file: Path
    units: tuple[str, str]
    tied: float
    close: float | None = None


SOURCES = {
    PATH: Source(errors_of_path, HERE / "path" / "errors.csv", ("error, %", "error, %"), tied=1.0, close=1.0),
    "2410.02140": Source(
        errors_of_huang, HERE / "huang" / "curves.csv", ("error, %", "error, %"), tied=1.0, close=1.0
    ),
    "2505.17083": Source(
        bits_of_text, HERE.parent / "text" / "text.csv", ("nats per token", "bits per byte"), tied=0.03
    ),
}


COMMANDS = """
```
python scripts/train.py sweep=replicate_path                  # what is not published; also replicate_huang, _orderings, _addition
python scripts/train.py sweep=replicate_path rerun=true       # all of it again
python scripts/results.py publish=replicate_path              # its CSVs
make results                                                  # this page from the CSVs
```
"""


def pages_without_runs(folder: Path) -> None:
    """``README.md`` and its figure, from ``ledger.csv`` and the CSVs of the studies it names."""
    ledger = read_table(folder / "ledger.csv", "arxiv", "table", "setting", "command", "deviation", "paper")
    ledger["arxiv"] = ledger["arxiv"].astype(str)
    made = judged(ledger)
    (folder / "figures").mkdir(exist_ok=True)
    draw(made, folder / "figures")
    said = statements.read(folder)
    statements.draw(said, folder / "figures")
    (folder / "README.md").write_text(page(made) + "\n" + statements.section(said) + COMMANDS)


def judged(ledger: pd.DataFrame) -> pd.DataFrame:
    """The ledger with columns ``values_`` (ours, by seed), ``mean`` and ``verdict``."""
    rows = []
    columns: Any = ledger.groupby(["arxiv", "task", "setting"], sort=False)
    for (arxiv, task, setting), group in columns:
        source = SOURCES.get(arxiv)
        found = source.found() if source and source.file.exists() else {}
        own = group.assign(values_=[found.get((task, setting, scheme)) for scheme in group["scheme"]])
        own["mean"] = [float("nan") if v is None else float(np.mean(v)) for v in own["values_"]]
        own["verdict"] = [_verdict(source, own, row) for _, row in own.iterrows()]
        rows.append(own)
    return pd.concat(rows).loc[ledger.index]


def _verdict(source: Source | None, group: pd.DataFrame, row: pd.Series) -> str:
    if source is None or row["values_"] is None:
        return WAITING
    tolerance = max(source.close or 0.0, min(FAR, row["published"] / 4))
    if source.close and abs(row["mean"] - row["published"]) <= tolerance:
        return REPRODUCED
    others = group[(group["scheme"] != row["scheme"]) & group["mean"].notna()]
    apart = others[(others["published"] - row["published"]).abs() > source.tied]
    if apart.empty:
        return ALONE
    ours, theirs = apart["mean"] - row["mean"], apart["published"] - row["published"]
    if turned := apart["scheme"][(ours * theirs < 0) & (ours.abs() > source.tied)].tolist():
        return f"{NOT}: against {', '.join(turned)}"
    return OPEN if (ours.abs() <= source.tied).any() else ORDER


def in_words(row: pd.Series) -> str:
    """Our mean with its 95 % interval."""
    if row["values_"] is None:
        return "–"
    low, high = ends(row)
    return f"{row['mean']:.2f} [{low:.2f}, {high:.2f}]"


def ends(row: pd.Series) -> tuple[float, float]:
    """Of the 95 % interval: Gaffke's of shares in %, Student's of losses."""
    if SOURCES[row["arxiv"]].close:
        made = mean_interval(row["values_"] / 100)
        return 100 * made.low, 100 * made.high
    made = t_interval(row["values_"])
    return made.low, made.high


def draw(made: pd.DataFrame, folder: Path) -> None:
    """A panel per published column: published values as diamonds, ours as dots; losses as ratios."""
    panels = list(_panels(made[made["mean"].notna()]))
    rows = -(-len(panels) // 3)
    with drawing():
        figure = Figure(figsize=(7.2, 0.5 + 1.45 * rows), layout="constrained")
        grid = figure.subplots(rows, 3, squeeze=False).ravel()
        for axes in grid[len(panels) :]:
            axes.remove()
        for axes, (title, unit, points) in zip(grid, panels, strict=False):
            for index, (_, published, values) in enumerate(points):
                axes.plot(published, index - 0.15, "D", color=GREY, markersize=4)
                axes.plot(
                    values, [index + 0.15] * len(values), ".", color=COLOURS[0], markersize=3, alpha=0.6
                )
                axes.plot(np.mean(values), index + 0.15, "o", color=COLOURS[0], markersize=4)
            axes.set_yticks(range(len(points)), [scheme.replace("+", "\n+") for scheme, _, _ in points])
            axes.set_xlim(right=max(axes.get_xlim()[1], LEAST))
            axes.set_ylim(len(points) - 0.5, -0.5)
            axes.set_title(title, fontsize=7.5)
            axes.set_xlabel(unit, fontsize=7)
            axes.spines[["top", "right"]].set_visible(False)
        shapes = {"published": ("D", GREY), "ours: mean and seeds": ("o", COLOURS[0])}
        handles = [
            Line2D([], [], marker=marker, color=colour, linestyle="none", markersize=4, label=label)
            for label, (marker, colour) in shapes.items()
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False)
        save(figure, folder, "answer")


def _panels(ready: pd.DataFrame) -> Iterator[Panel]:
    """Title, unit, and by scheme the published value and ours; of losses their ratio to those as trained."""
    columns: Any = ready.groupby(["arxiv", "task", "setting"], sort=False)
    for (arxiv, task, setting), group in columns:
        title = f"{group['paper'].iloc[0].partition(' (')[0]}\n{task}, {setting}{STANDS.get((arxiv, setting), '')}"
        if SOURCES[arxiv].close:
            yield title, SOURCES[arxiv].units[1], _points(group)
        elif setting != TRAINED:
            base = _points(ready[(ready["arxiv"] == arxiv) & (ready["setting"] == TRAINED)])
            points = [
                (scheme, published / at_first, ours / ours_at_first)
                for (scheme, published, ours), (_, at_first, ours_at_first) in zip(
                    _points(group), base, strict=True
                )
            ]
            yield title, "loss / loss at the training length", points


def _points(group: pd.DataFrame) -> list[tuple[Any, Any, Any]]:
    return list(zip(group["scheme"], group["published"], group["values_"], strict=True))


def page(made: pd.DataFrame) -> str:
    """``README.md``."""
    counts = made["verdict"].str.partition(":")[0].value_counts()
    words = [
        f"{counts[verdict]} {what}"
        for verdict, what in (
            (REPRODUCED, "are reproduced in value"), (ORDER, "in their order among the schemes"),
            (OPEN, "are open (ours lie too close together)"),
            (NOT, "are not reproduced"),
            (ALONE, "have no order to test (published within 1 point of the other schemes)"), (WAITING, "have not been run yet"),
        )
        if verdict in counts
    ]  # fmt: skip
    tables = "\n".join(_section(group) for _, group in made.groupby("arxiv", sort=False))
    return f"""# Published values beside ours

![Published values and ours](figures/answer.png)

Of {len(made)} published values {", ".join(words)}. Each table says in what our recipe differs from the paper's.

{tables}
*Value*: our mean differs from the published value by at most 1 percentage point or, if that is more, a quarter of the published value
(up to {FAR:g} points). *Order*: our means of this scheme and of every other in the column differ in the published direction; *open*: some of
ours differ too little to say (1 point, 0.03 bits). Means alone decide, and an order of three schemes comes out right by chance one time
in six. Schemes whose published values differ by no more than that have no order. Intervals (95 %): for errors Gaffke's, which
assumes only that values lie between 0 and 100 and is therefore wide with five seeds; for losses Student's. All published values and
commands: [ledger.csv](ledger.csv).
"""


def _section(group: pd.DataFrame) -> str:
    """One paper: its table, and what the runs deviate in."""
    first = group.iloc[0]
    units = SOURCES[first["arxiv"]].units if first["arxiv"] in SOURCES else ("", "")
    rows = [
        [
            row["task"],
            row["setting"],
            f"`{row['scheme']}`",
            f"{row['published']:g}",
            in_words(row),
            "–" if row["values_"] is None else str(len(row["values_"])),
            row["verdict"],
        ]
        for _, row in group.iterrows()
    ]
    heading = [
        "task",
        "setting",
        "scheme",
        f"published ({units[0]})",
        f"ours ({units[1]})",
        "seeds",
        "reproduced",
    ]
    found = "".join(f"\n{text}\n" for text in group["found"].dropna().unique())
    if first["arxiv"] == PATH and (trials := trials_of_path()):
        found += f"\nErrors in % of one seed with other steps and learning rates:\n\n{trials}\n"
    return f"""## {first["paper"]}, {first["table"]}

[arXiv:{first["arxiv"]}](https://arxiv.org/abs/{first["arxiv"]}). Differences from the recipe: {first["deviation"]}.

{markdown_table(heading, rows)}
{found}"""
