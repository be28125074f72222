"""Byte-level language models past their training length: the bank's schemes in the bank's model, on source code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from pe_experiments.comparison import Runs
from pe_experiments.comparison.statistics import t_interval
from pe_experiments.plots import GREY, dark, drawing, length_axis, save, styles
from pe_experiments.publishing import compare_archived, markdown_table, read_archive
from pe_experiments.runs import DIVERGED

TRAINED = 256  # bytes of context
UNIFORM = 8.0  # bits per byte of a uniform guess, which is what a diverged run counts as
KEPT = 0.05  # bits per byte; a rise of less counts as no loss


def scores(runs: Runs, windows: str = "sliding", value: str = "bits_per_byte") -> pd.DataFrame:
    """One row per run, with its scheme (without arguments, as in the bank) and seed, one column per context length."""
    chosen = runs.text[(runs.text["windows"] == windows) & (runs.text["slice"] == "all")]
    wide = chosen.pivot(index="name", columns="length", values=value)
    table = runs.runs[["name", "label", "seed", "status"]].merge(
        wide, left_on="name", right_index=True, how="left"
    )
    worst = UNIFORM if value == "bits_per_byte" else 0.0
    table[wide.columns] = table[wide.columns].mask(table["status"] == DIVERGED, worst)
    return table.assign(label=[bare(label) for label in table["label"]])


def bare(label: str) -> str:
    """A scheme without its arguments."""
    return re.sub(r"\([^)]*\)", "", label)


def pages(folder: Path, runs: Runs) -> None:
    """The comparison, the figure of the answer, and ``README.md``."""
    compare_archived(folder, runs)
    draw(scores(runs), folder / "figures")
    (folder / "README.md").write_text(page(runs))


def readme(folder: Path) -> str:
    """The answer in the project's README."""
    table = scores(read_archive(folder))
    longest = max(column for column in table if isinstance(column, int))
    groups = {label: table[table["label"] == label] for label in _order(table, longest)}
    return f"""*On text* (the same small models as byte-level language models of Python's standard library): {sentences(groups, longest)}
[Curves, intervals](results/text/README.md).
"""


def draw(table: pd.DataFrame, folder: Path) -> None:
    """Bits per byte over context length: the mean as a line with its scheme's name, each seed as a dot."""
    lengths = [column for column in table if isinstance(column, int)]
    means = table.groupby("label")[lengths].mean().loc[_order(table, lengths[-1])[::-1]]
    looks = styles(means.index)
    with drawing():
        figure = Figure(figsize=(7.2, 4.2), layout="constrained")
        axes = figure.subplots()
        axes.set_yscale("log", base=2)
        for label, mean in means.iterrows():
            colour, marker = looks[str(label)]
            own = table[table["label"] == label]
            for length in lengths:
                axes.plot([length] * len(own), own[length], ".", color=colour, markersize=3, alpha=0.5)
            axes.plot(lengths, mean, color=colour, marker=marker, markersize=4.5, linewidth=1.6)
        length_axis(axes, lengths, TRAINED, "bits per byte, the same bytes at every length", accuracy=False)
        axes.set_xlabel("context length (bytes)")
        low, high = np.log2([0.96 * means.min().min(), 1.04 * table[lengths].max().max()])
        axes.set_ylim(2**low, 2**high)
        axes.set_yticks(ticks := [t for t in (2, 2.5, 3, 4, 5, 6, 8, 10) if low <= np.log2(t) <= high])
        axes.set_yticklabels([f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.annotate("training length", (TRAINED, 1), (3, 3), xycoords=axes.get_xaxis_transform(),
                      textcoords="offset points", fontsize=7, color=GREY)  # fmt: skip
        spots = _apart([(np.log2(end) - low) / (high - low) for end in means[lengths[-1]]])
        for (label, mean), spot in zip(means.iterrows(), spots, strict=True):
            colour = looks[str(label)][0]
            axes.annotate(
                f"{label}  {mean.iloc[-1]:.2f}", (lengths[-1], mean.iloc[-1]), (1.03, spot), color=dark(colour),
                textcoords="axes fraction", va="center", annotation_clip=False,
                arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.5, "shrinkB": 3, "relpos": (0, 0.5)},
            )  # fmt: skip
        save(figure, folder, "answer")


def _apart(heights: list[float], gap: float = 0.052) -> list[float]:
    """Heights, the highest first; from the lowest upwards each is raised until it is a gap above the one below."""
    moved = heights[::-1]
    for index in range(1, len(moved)):
        moved[index] = max(moved[index], moved[index - 1] + gap)
    return moved[::-1]


def rise(table: pd.DataFrame, length: int) -> pd.Series:
    """Bits per byte at this context length minus those at the training length, of every run."""
    return table[length] - table[TRAINED]


def above(own: pd.DataFrame, other: pd.DataFrame) -> pd.Series:
    """Bits per byte at the training length minus those of another scheme, paired by seed."""
    pair = own.merge(other, on="seed")
    return pair[f"{TRAINED}_x"] - pair[f"{TRAINED}_y"]


def in_words(values: pd.Series) -> str:
    """``+0.03 [-0.02, +0.08]``, Student's interval."""
    made = t_interval(values.to_numpy(float))
    estimate, low, high = (f"{round(end, 2) + 0.0:+.2f}" for end in (made.estimate, made.low, made.high))
    return f"{estimate} [{low}, {high}]"


def page(runs: Runs) -> str:
    """``README.md``."""
    table, copied = scores(runs), scores(runs, "copy", "accuracy")
    lengths = [column for column in table if isinstance(column, int)]
    longest = lengths[-1]
    groups = {label: table[table["label"] == label] for label in _order(table, longest)}
    rates = {bare(choice["scheme"]): _rate(choice) for choice in runs.tuning}
    best = min(groups, key=lambda label: groups[label][TRAINED].mean())
    rows = [
        [
            f"`{label}`",
            f"{own[TRAINED].mean():.2f}",
            "–" if label == best else in_words(above(own, groups[best])),
            *(in_words(rise(own, length)) for length in lengths[1:]),
            rates.get(label, "–"),
        ]
        for label, own in groups.items()
    ]
    heading = [
        "scheme",
        f"at {TRAINED} bytes",
        f"minus `{best}`, at {TRAINED}",
        *(f"rise to {length:,}" for length in lengths[1:]),
    ]
    heading += ["learning rate"]
    seeds = table.groupby("label").size()
    return f"""# Which encodings extrapolate on text?

![Bits per byte over context length](figures/answer.png)

{sentences(groups, longest)}

Byte-level language models trained on windows of {TRAINED} bytes of Python's standard library, evaluated on other files of it;
lower is better. {len(groups)} schemes, {seeds.min()} seeds each (dots), the learning rate tuned per scheme on one further seed. The
last 64 bytes of stretches of {longest:,} bytes are scored, the same bytes at every context length L, each predicted from at least
L - 64 bytes before it (sliding windows).

{markdown_table(heading, rows)}

Bits per byte, mean over seeds. Each seed is evaluated on other stretches of text, so absolute values of different seeds are not
comparable; the intervals (Student's, 95 %) are therefore of differences within a run (rise) or between runs of the same seed.
\\*: the best learning rate was still an end of the grid.

![Sliding windows, by index, repeated 4-grams, copying](figures/text-decoder-context.png)

Top: bits per byte in sliding windows, and by index within windows of {longest:,} bytes. Bottom: bits per byte on the last byte of 4-grams
that occurred earlier in the stretch (associative recall), and copying: a random 16-byte key stands at a random index and again at
the end. At most {100 * copied[lengths].max().max():.0f} % of the last 8 bytes of its second occurrence are predicted right, so models of this size do
not copy. Windows that do not overlap: [report.html](report.html).

## What this cannot tell

- The models are the bank's: two layers of width 64, about 130,000 parameters, {_bytes(runs):.1f} million bytes of training. What larger
  models learn from longer training is not seen here.
- {seeds.min()} seeds: no two-sided permutation test can reach 0.05. The intervals say how much seeds vary, not that two schemes differ.
- One corpus, source code, whose repetitions differ from those of prose. Another Python has another standard library: the list of
  files and its digest are part of every run's identity.

Is this order the [bank](../bank/v1/README.md)'s? [Transfer](../transfer/README.md). Curves, costs, methods: [report.html](report.html);
all runs, each with the command that repeats it: [runs.csv](runs.csv).

```
python scripts/train.py sweep=text        # the runs; resumable, two hours on two cores
python scripts/results.py publish=text    # these CSVs from the runs
make results                              # tables, figures and pages from the CSVs
```
"""


def sentences(groups: dict[str, pd.DataFrame], longest: int) -> str:
    """What the intervals carry."""
    rises = {label: t_interval(rise(own, longest).to_numpy(float)) for label, own in groups.items()}
    kept = [label for label, made in rises.items() if made.high < KEPT]
    lost = [label for label, made in rises.items() if made.low > KEPT]
    open_ = [label for label in rises if label not in {*kept, *lost}]
    shares = {label: f"`{label}` ({rises[label].estimate:+.2f})" for label in rises}
    said = [
        f"When the context grows from {TRAINED} to {longest:,} bytes, bits per byte rise by less than {KEPT} with {_listed(kept)}."
        if kept
        else f"For no scheme can a rise of {KEPT} bits per byte from {TRAINED} to {longest:,} bytes of context be excluded."
    ]
    if lost:
        said.append(f"They rise by more with {', '.join(shares[label] for label in reversed(lost))}.")
    if open_:
        said.append(
            f"Undecided (the interval contains {KEPT}): {', '.join(shares[label] for label in open_)}."
        )
    return " ".join(said)


def _rate(choice: dict[str, Any]) -> str:
    """The learning rate chosen; an asterisk where it is the edge of those tried."""
    tried = sorted(map(float, choice["tried"]))
    chosen = float(choice["chosen"])
    return f"{chosen:g}" + "*" * (chosen in (tried[0], tried[-1]))


def _order(table: pd.DataFrame, longest: int) -> list[str]:
    """Schemes, the one with the lowest loss at the longest context first."""
    return [str(label) for label in table.groupby("label")[longest].mean().sort_values().index]


def _listed(labels: list[str]) -> str:
    names = [f"`{label}`" for label in labels]
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _bytes(runs: Runs) -> float:
    """Millions of bytes a model was trained on."""
    training = runs.saved[runs.runs["name"].iloc[0]]["identity"]["trained"]["training"]
    return float(training["steps"] * training["batch_size"] * training["max_length"] / 1e6)
