"""Byte-level language models past their training length: the bank's encodings in the bank's model, on source code."""

from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from pe_experiments.comparison import Runs
from pe_experiments.comparison.statistics import ALPHA, paired_t_tests, t_interval
from pe_experiments.drawing import bits_axis, draw_seeds, legend_below, length_axis, save, styles
from pe_experiments.published import (
    bits_per_byte,
    compare_archived,
    format_change,
    format_rate,
    markdown_table,
    read_archive,
    table,
)

HERE = Path(__file__).parent
# bytes of context
TRAINED = 256
LENGTHS = [256, 512, 1024, 2048]
LONGEST = LENGTHS[-1]
ARGUMENTS = r"\([^)]*\)"  # of an encoding, which the bank leaves out
FLAT = 0.05  # bits per byte; a rise of less counts as none
RESCALED = ("rope_linear", "rope_ntk", "rope_dynamic_ntk", "rope_yarn")
FURTHER = ("rope", "depth", "prose")


def scores(runs: Runs) -> pd.DataFrame:
    """Return a row per run: encoding (without arguments, as in the bank), seed, bits per byte by context length."""
    rows = runs.runs.set_index("name")[["label", "seed", "status"]].join(bits_per_byte(runs, LENGTHS))
    return rows.assign(label=rows["label"].str.replace(ARGUMENTS, "", regex=True))


def by_encoding(runs: Runs) -> dict[str, pd.DataFrame]:
    """Return `scores` by seed, the encoding with the lowest loss at the longest context first."""
    groups = scores(runs).set_index("seed").groupby("label")
    return {str(label): groups.get_group(label) for label in groups[LONGEST].mean().sort_values().index}


def pages(folder: Path) -> None:
    """Write the comparison, and draw the figure of the answer."""
    compare_archived(folder)
    groups = by_encoding(read_archive(folder))
    looks = styles(groups)
    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    axes = figure.subplots()
    for label, rows in groups.items():
        draw_seeds(axes, LENGTHS, rows[LENGTHS], looks[label])
    length_axis(axes, LENGTHS, TRAINED, "bits per byte, the same bytes at every length", accuracy=False)
    axes.set_xlabel("context length (bytes)")
    bits_axis(axes)
    legend_below(figure, looks, looks)
    save(figure, folder / "figures", "answer")


def blocks(folder: Path) -> dict[str, Any]:
    """Return a table of rises per study, the tests of rescaled RoPEs, and the numbers of the sentences."""
    runs = read_archive(folder)
    values: dict[str, Any] = {"table": rise_table(runs)}
    values |= {name: rise_table(read_archive(HERE / name)) for name in FURTHER}
    values["extension"] = extension_table(by_encoding(read_archive(HERE / "rope")))
    values["copied"] = runs.text.loc[runs.text["windows"] == "copy", "accuracy"].max()
    for label, rows in by_encoding(runs).items():
        values[f"{label}_rise"] = (rows[LONGEST] - rows[TRAINED]).mean()
        values[f"{label}_at_end"] = rows[LONGEST].mean()
    return values


def rise_table(runs: Runs) -> str:
    """Return a row per encoding: bits per byte at the training length, and how much they rise with the context."""
    groups = by_encoding(runs)
    best = min(groups, key=lambda label: (groups[label][TRAINED].mean(), label))
    cells = pd.DataFrame({"encoding": [f"`{label}`" for label in groups]})
    cells[f"at {TRAINED} bytes"] = [f"{rows[TRAINED].mean():.2f}" for rows in groups.values()]
    behind = {label: (rows[TRAINED] - groups[best][TRAINED]).dropna() for label, rows in groups.items()}
    cells[f"minus `{best}`, at {TRAINED}"] = [
        "–" if label == best else format_change(t_interval(by_seed.to_numpy()))
        for label, by_seed in behind.items()
    ]
    for length in LENGTHS[1:]:
        rises = [rows[length] - rows[TRAINED] for rows in groups.values()]
        cells[f"rise to {length:,}"] = [format_change(t_interval(rise.to_numpy())) for rise in rises]
    cells["rises"] = [verdict(rise, len(groups)) for rise in rises]
    if runs.tuning:
        rates = pd.Series({choice["encoding"]: format_rate(choice) for choice in runs.tuning})
        rates.index = rates.index.str.replace(ARGUMENTS, "", regex=True)
        cells["learning rate"] = rates[[*groups]].to_numpy()
    return table(cells)


def verdict(rises: pd.Series, encodings: int) -> str:
    """Return whether the whole interval of a rise lies above or below `FLAT`, by Bonferroni's method."""
    interval = t_interval(rises.to_numpy(), ALPHA / encodings)
    return "no" if interval.high < FLAT else "yes" if interval.low > FLAT else "unclear"


def extension_table(groups: dict[str, pd.DataFrame]) -> str:
    """Return whether a rescaled RoPE rises less than RoPE, and more than ALiBi: t tests within seeds, by Holm's method."""
    lengths = [length for length in groups["rope"] if length in LENGTHS[1:]]
    rises = {label: rows[lengths].sub(rows[TRAINED], axis=0) for label, rows in groups.items()}
    differences = {
        (label, length, other): (rises[label][length] - rises[other][length]).to_numpy()
        for label, length, other in product(RESCALED, lengths, ("rope", "alibi"))
    }
    tests = dict(zip(differences, paired_t_tests([*differences.values()]), strict=True))
    rows = []
    for label, length in product(RESCALED, lengths):
        compared = [tests[label, length, other] for other in ("rope", "alibi")]
        from_rope, from_alibi = (interval for interval, _ in compared)
        extends = "no"
        if from_rope.high < 0:
            extends = "yes" if from_alibi.low > 0 else "yes; not separated from ALiBi"
        words = [f"{format_change(interval)} (p {p:.2g})" for interval, p in compared]
        rows.append([f"`{label}`", f"{length:,}", *words, extends])
    return markdown_table(["encoding", "context", "rise minus RoPE's", "rise minus ALiBi's", "extends"], rows)
