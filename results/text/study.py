"""Byte-level language models past their training length: the bank's encodings in the bank's model, on source code."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy import stats

from pe_experiments.comparison import Runs
from pe_experiments.comparison.statistics import ALPHA, Interval, holm, t_interval
from pe_experiments.drawing import legend_below, length_axis, save, styles
from pe_experiments.published import compare_archived, markdown_table, rate_in_words, read_archive
from pe_experiments.store.directory import DIVERGED

TRAINED = 256  # bytes of context
UNIFORM = 8.0  # bits per byte of a uniform guess, which is what a diverged run counts as
ARGUMENTS = r"\([^)]*\)"  # of an encoding, which the bank leaves out
KEPT = 0.05  # bits per byte; a rise of less counts as none
RESCALED = ("rope_linear", "rope_ntk", "rope_dynamic_ntk", "rope_yarn")
ANSWER = """\
**FoX, KERPLE and ALiBi keep their loss when the context is eight times as long as in training**: it stays at {fox_at_end:.2f}, \
{kerple_log_at_end:.2f} and {alibi_at_end:.2f} bits per byte. \
T5's rises by {t5:.2f}, that of sinusoids by {sinusoidal:.2f} and RoPE's by {rope:.2f}."""
HERE = Path(__file__).parent
FURTHER = {name: HERE / name for name in ("rope", "depth", "prose")}


def scores(runs: Runs, windows: str = "sliding", value: str = "bits_per_byte") -> pd.DataFrame:
    """One row per run, with its encoding (without arguments, as in the bank) and seed, one column per context length."""
    chosen = runs.text[(runs.text["windows"] == windows) & (runs.text["slice"] == "all")]
    wide = chosen.pivot(index="name", columns="length", values=value)
    table = runs.runs.set_index("name")[["label", "seed", "status"]].join(wide)
    worst = UNIFORM if value == "bits_per_byte" else 0.0
    table[wide.columns] = table[wide.columns].mask(table["status"] == DIVERGED, worst)
    return table.assign(label=table["label"].str.replace(ARGUMENTS, "", regex=True))


def pages(folder: Path) -> None:
    """The comparison, and the figure of the answer."""
    compare_archived(folder)
    draw(scores(read_archive(folder)), folder / "figures")


def draw(table: pd.DataFrame, folder: Path) -> None:
    """Bits per byte over context length: the mean as a line, each seed as a dot."""
    lengths = lengths_of(table)
    means = table.groupby("label")[lengths].mean()
    means = means.loc[means[lengths[-1]].sort_values(ascending=False).index]
    looks = styles(means.index)
    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    axes = figure.subplots()
    axes.set_yscale("log", base=2)
    for label, mean in means.iterrows():
        colour, marker = looks[str(label)]
        own = table[table["label"] == label]
        axes.plot(lengths, own[lengths].T, ".", color=colour, markersize=3, alpha=0.5)
        axes.plot(lengths, mean, color=colour, marker=marker, markersize=4.5, linewidth=1.6)
    length_axis(axes, lengths, TRAINED, "bits per byte, the same bytes at every length", accuracy=False)
    axes.set_xlabel("context length (bytes)")
    low, high = np.log2([0.96 * means.min().min(), 1.04 * table[lengths].max().max()])
    axes.set_ylim(2**low, 2**high)
    axes.set_yticks(ticks := [t for t in (2, 2.5, 3, 4, 5, 6, 8, 10) if low <= np.log2(t) <= high])
    axes.set_yticklabels([f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    legend_below(figure, looks, looks)
    save(figure, folder, "answer")


def in_words(values: pd.Series) -> str:
    """``+0.03 [-0.02, +0.08]``, Student's interval."""
    return written(t_interval(values.to_numpy(float)))


def written(made: Interval) -> str:
    estimate, low, high = (f"{round(end, 2) + 0.0:+.2f}" for end in (made.estimate, made.low, made.high))
    return f"{estimate} [{low}, {high}]"


def blocks(folder: Path) -> dict[str, str]:
    """The answer, a row per encoding, how well strings are copied, and what was run further."""
    runs = read_archive(folder)
    groups, copied = by_encoding(runs), scores(runs, "copy", "accuracy")
    most = 100 * copied[lengths_of(copied)].max().max()
    further = {name: read_archive(at) for name, at in FURTHER.items()}
    extended = extension_table(by_encoding(further["rope"]))
    return {
        "answer": answer(groups),
        "table": rises_table(runs),
        "copying": f"These models do not copy: they predict at most {most:.0f}% of the last 8 bytes of the key's second occurrence.",
    } | {name: rises_table(one) for name, one in further.items()} | {"rope": f"{rises_table(further['rope'])}\n\n{extended}"}  # fmt: skip


def by_encoding(runs: Runs) -> dict[str, pd.DataFrame]:
    """`scores` by seed, the encoding with the lowest loss at the longest context first."""
    table = scores(runs).set_index("seed")
    means = table.groupby("label")[max(lengths_of(table))].mean().sort_values()
    return {str(label): table[table["label"] == label] for label in means.index}


def rises_table(runs: Runs) -> str:
    """A row per encoding: bits per byte at the training length, and how much they rise with the context."""
    groups = by_encoding(runs)
    lengths = lengths_of(next(iter(groups.values())))
    rates = {re.sub(ARGUMENTS, "", choice["encoding"]): rate_in_words(choice) for choice in runs.tuning}
    best = min(groups, key=lambda label: (groups[label][TRAINED].mean(), label))
    rows = [
        [f"`{label}`", f"{own[TRAINED].mean():.2f}",
         "–" if label == best else in_words((own[TRAINED] - groups[best][TRAINED]).dropna()),
         *(in_words(own[length] - own[TRAINED]) for length in lengths[1:]),
         rises(own[lengths[-1]] - own[TRAINED], len(groups)), *([rates[label]] if rates else [])]
        for label, own in groups.items()
    ]  # fmt: skip
    heading = ["encoding", f"at {TRAINED} bytes", f"minus `{best}`, at {TRAINED}"]
    heading += [
        *(f"rise to {length:,}" for length in lengths[1:]),
        "rises",
        *(["learning rate"] if rates else []),
    ]
    return markdown_table(heading, rows)


def rises(differences: pd.Series, encodings: int) -> str:
    """Whether the whole interval of a rise lies above or below `KEPT`, by Bonferroni's method over encodings."""
    interval = t_interval(differences.to_numpy(float), ALPHA / encodings)
    return "no" if interval.high < KEPT else "yes" if interval.low > KEPT else "unclear"


def extension_table(groups: dict[str, pd.DataFrame]) -> str:
    """Whether a rescaled RoPE rises less than RoPE, and no more than ALiBi: t tests within seeds, by Holm's method."""
    lengths = lengths_of(groups["rope"])[1:]
    rises = {name: {length: own[length] - own[TRAINED] for length in lengths} for name, own in groups.items()}
    cases = list(product(RESCALED, lengths, ("rope", "alibi")))
    apart = [rises[name][length] - rises[other][length] for name, length, other in cases]
    tests = [stats.ttest_1samp(d, 0) for d in apart]
    ps = np.array([test.pvalue for test in tests])
    significant = (adjusted := np.array(holm(ps.tolist()))) <= ALPHA
    # The tests that Holm's method still counts at each: the interval has the level of its test.
    left = len(ps) - np.minimum(ps.argsort().argsort(), significant.sum())
    ends: Any = [test.confidence_interval(1 - ALPHA / n) for test, n in zip(tests, left, strict=True)]
    made = [Interval(d.mean(), *end) for d, end in zip(apart, ends, strict=True)]
    words = [f"{written(one)} (p {p:.2g})" for one, p in zip(made, adjusted, strict=True)]
    rows = []
    for at, (name, length, _) in list(enumerate(cases))[::2]:
        extends, loses = significant[at] and made[at].high < 0, significant[at + 1] and made[at + 1].low > 0
        said = "no" if not extends else "yes" if loses else "yes; not separated from ALiBi"
        rows.append([f"`{name}`", f"{length:,}", *words[at : at + 2], said])
    return markdown_table(["encoding", "context", "rise minus RoPE's", "rise minus ALiBi's", "extends"], rows)


def answer(groups: dict[str, pd.DataFrame]) -> str:
    """The sentences that open the page."""
    longest = max(lengths_of(next(iter(groups.values()))))
    means = {label: (own[longest] - own[TRAINED]).mean() for label, own in groups.items()}
    at_end = {f"{label}_at_end": own[longest].mean() for label, own in groups.items()}
    return ANSWER.format_map(means | at_end)


def lengths_of(table: pd.DataFrame) -> list[int]:
    """The context lengths, of which there is a column each."""
    return [column for column in table if isinstance(column, int)]
