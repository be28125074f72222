"""Byte-level language models past their training length: the bank's encodings in the bank's model, on source code."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator
from scipy import stats

from pe_experiments.comparison import Runs
from pe_experiments.comparison.statistics import ALPHA, Interval, holm, t_interval
from pe_experiments.drawing import legend_below, length_axis, save, styles
from pe_experiments.published import compare_archived, markdown_table, rate_in_words, read_archive, table
from pe_experiments.store.directory import DIVERGED

HERE = Path(__file__).parent
TRAINED, LENGTHS = 256, [256, 512, 1024, 2048]  # bytes of context
LONGEST = LENGTHS[-1]
UNIFORM = 8.0  # bits per byte of a uniform guess, which is what a diverged run counts as
ARGUMENTS = r"\([^)]*\)"  # of an encoding, which the bank leaves out
FLAT = 0.05  # bits per byte; a rise of less counts as none
RESCALED = ("rope_linear", "rope_ntk", "rope_dynamic_ntk", "rope_yarn")
FURTHER = ("rope", "depth", "prose")


def scores(runs: Runs) -> pd.DataFrame:
    """Return a row per run: encoding (without arguments, as in the bank), seed, bits per byte by context length."""
    lines = runs.text[(runs.text["windows"] == "sliding") & (runs.text["slice"] == "all")]
    bits = lines.pivot(index="name", columns="length", values="bits_per_byte")
    rows = runs.runs.set_index("name")[["label", "seed", "status"]].join(bits)
    rows[LENGTHS] = rows[LENGTHS].mask(rows["status"] == DIVERGED, UNIFORM)
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
        colour, marker = looks[label]
        axes.plot(LENGTHS, rows[LENGTHS].T, ".", color=colour, markersize=3, alpha=0.5)
        axes.plot(LENGTHS, rows[LENGTHS].mean(), color=colour, marker=marker, markersize=4.5, linewidth=1.6)
    length_axis(axes, LENGTHS, TRAINED, "bits per byte, the same bytes at every length", accuracy=False)
    axes.set_xlabel("context length (bytes)")
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_locator(FixedLocator([2, 2.5, 3, 4, 5, 6, 8]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda bits, _: f"{bits:g}")
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
        "–" if label == best else interval_in_words(t_interval(by_seed.to_numpy()))
        for label, by_seed in behind.items()
    ]
    for length in LENGTHS[1:]:
        rises = [rows[length] - rows[TRAINED] for rows in groups.values()]
        cells[f"rise to {length:,}"] = [interval_in_words(t_interval(rise.to_numpy())) for rise in rises]
    cells["rises"] = [verdict(rise, len(groups)) for rise in rises]
    if runs.tuning:
        rates = pd.Series({choice["encoding"]: rate_in_words(choice) for choice in runs.tuning})
        rates.index = rates.index.str.replace(ARGUMENTS, "", regex=True)
        cells["learning rate"] = rates[[*groups]].to_numpy()
    return table(cells)


def verdict(rises: pd.Series, encodings: int) -> str:
    """Return whether the whole interval of a rise lies above or below `FLAT`, by Bonferroni's method."""
    interval = t_interval(rises.to_numpy(), ALPHA / encodings)
    return "no" if interval.high < FLAT else "yes" if interval.low > FLAT else "unclear"


def interval_in_words(interval: Interval) -> str:
    """Return ``+0.03 [-0.02, +0.08]``."""
    estimate, low, high = (round(x, 2) + 0.0 for x in (interval.estimate, interval.low, interval.high))
    return f"{estimate:+.2f} [{low:+.2f}, {high:+.2f}]"


def extension_table(groups: dict[str, pd.DataFrame]) -> str:
    """Return whether a rescaled RoPE rises less than RoPE, and more than ALiBi: t tests within seeds, by Holm's method."""
    lengths = [length for length in groups["rope"] if length in LENGTHS[1:]]
    rises = {label: rows[lengths].sub(rows[TRAINED], axis=0) for label, rows in groups.items()}
    differences = {
        (label, length, other): rises[label][length] - rises[other][length]
        for label, length, other in product(RESCALED, lengths, ("rope", "alibi"))
    }
    ps = np.array([stats.ttest_1samp(difference, 0).pvalue for difference in differences.values()])
    adjusted = holm(ps.tolist())
    # An interval has the level of its test, so that it leaves out 0 where the test is significant: Bonferroni's for
    # the tests that Holm's method still counts there.
    tests_left = len(ps) - np.minimum(ps.argsort().argsort(), np.sum(np.array(adjusted) <= ALPHA))
    intervals, words = {}, {}
    for case, p, left in zip(differences, adjusted, tests_left, strict=True):
        intervals[case] = t_interval(differences[case].to_numpy(), ALPHA / left)
        words[case] = f"{interval_in_words(intervals[case])} (p {p:.2g})"
    rows = []
    for label, length in product(RESCALED, lengths):
        extends = "no"
        if intervals[label, length, "rope"].high < 0:
            more = intervals[label, length, "alibi"].low > 0
            extends = "yes" if more else "yes; not separated from ALiBi"
        compared = [words[label, length, other] for other in ("rope", "alibi")]
        rows.append([f"`{label}`", f"{length:,}", *compared, extends])
    return markdown_table(["encoding", "context", "rise minus RoPE's", "rise minus ALiBi's", "extends"], rows)
