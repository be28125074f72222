"""Analyse byte-level language models of source code past their training length."""

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
# Context lengths in bytes.
TRAINED = 256
LENGTHS = [256, 512, 1024, 2048]
LONGEST = LENGTHS[-1]
ARGUMENTS = r"\([^)]*\)"  # in the label of an encoding; the labels of the bank have none
FLAT = 0.05  # bits per byte; a smaller rise counts as no rise
RESCALED = ("rope_linear", "rope_ntk", "rope_dynamic_ntk", "rope_yarn")
FURTHER = ("rope", "depth", "prose")


def scores(runs: Runs) -> pd.DataFrame:
    """Return a row per run: label without arguments, seed, status, and bits per byte by context length."""
    rows = runs.runs.set_index("name")[["label", "seed", "status"]].join(bits_per_byte(runs, LENGTHS))
    return rows.assign(label=rows["label"].str.replace(ARGUMENTS, "", regex=True))


def by_encoding(runs: Runs) -> dict[str, pd.DataFrame]:
    """Return the scores of each encoding by seed, sorted by the mean loss at the longest context."""
    groups = scores(runs).set_index("seed").groupby("label")
    return {str(label): groups.get_group(label) for label in groups[LONGEST].mean().sort_values().index}


def by_index(runs: Runs) -> pd.DataFrame:
    """Return mean bits per byte [encodings, last indices] in parts of 64 bytes of windows of 2,048 bytes."""
    rows = runs.text[runs.text["slice"] == "index"].merge(runs.runs[["name", "label"]], on="name")
    rows = rows.assign(label=rows["label"].str.replace(ARGUMENTS, "", regex=True))
    return rows.pivot_table("bits_per_byte", "label", "last_index")


def pages(folder: Path) -> None:
    """Write the comparison and draw the figure of the page."""
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
    """Return the tables of the page and the numbers in its text."""
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
    """Return a table of bits per byte at the training length and their rise with the context length."""
    groups = by_encoding(runs)
    best = min(groups, key=lambda label: (groups[label][TRAINED].mean(), label))
    cells = pd.DataFrame({"encoding": [f"`{label}`" for label in groups]})
    cells[f"at {TRAINED} bytes"] = [f"{rows[TRAINED].mean():.2f}" for rows in groups.values()]
    differences = []
    for label, rows in groups.items():
        by_seed = (rows[TRAINED] - groups[best][TRAINED]).dropna()
        differences.append("–" if label == best else format_change(t_interval(by_seed.to_numpy())))
    cells[f"minus `{best}`, at {TRAINED}"] = differences
    for length in LENGTHS[1:]:
        rises = [rows[length] - rows[TRAINED] for rows in groups.values()]
        cells[f"rise to {length:,}"] = [format_change(t_interval(rise.to_numpy())) for rise in rises]
    cells["rises"] = [verdict(rise, len(groups)) for rise in rises]  # at the longest context
    if runs.tuning:
        rates = pd.Series({choice["encoding"]: format_rate(choice) for choice in runs.tuning})
        rates.index = rates.index.str.replace(ARGUMENTS, "", regex=True)
        cells["learning rate"] = rates[[*groups]].to_numpy()
    return table(cells)


def verdict(rises: pd.Series, encodings: int) -> str:
    """Return whether the loss rises by more than `FLAT`.

    Args:
        rises: rises in bits per byte, one per seed.
        encodings: number of encodings, for Bonferroni's correction.
    """
    interval = t_interval(rises.to_numpy(), ALPHA / encodings)
    if interval.high < FLAT:
        return "no"
    return "yes" if interval.low > FLAT else "unclear"


def extension_table(groups: dict[str, pd.DataFrame]) -> str:
    """Return a table that compares the rises of rescaled RoPEs with those of RoPE and ALiBi.

    The tests are paired t tests over seeds with Holm's correction.
    """
    lengths = [length for length in groups["rope"] if length in LENGTHS[1:]]
    rises = {label: rows[lengths].sub(rows[TRAINED], axis=0) for label, rows in groups.items()}
    differences = {
        (label, length, other): (rises[label][length] - rises[other][length]).to_numpy()
        for label, length, other in product(RESCALED, lengths, ("rope", "alibi"))
    }
    tests = dict(zip(differences, paired_t_tests([*differences.values()]), strict=True))
    rows = []
    for label, length in product(RESCALED, lengths):
        results = [tests[label, length, other] for other in ("rope", "alibi")]
        from_rope, from_alibi = (interval for interval, _ in results)
        extends = "no"
        if from_rope.high < 0:
            extends = "yes" if from_alibi.low > 0 else "yes; not separated from ALiBi"
        differences_with_p = [f"{format_change(interval)} (p {p:.2g})" for interval, p in results]
        rows.append([f"`{label}`", f"{length:,}", *differences_with_p, extends])
    return markdown_table(["encoding", "context", "rise minus RoPE's", "rise minus ALiBi's", "extends"], rows)
