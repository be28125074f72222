"""Do conclusions change when training computes in bfloat16?

Equivalence needs its own test: a change of less than ``MARGIN`` (a tenth of the scale) in mean exact match past
the training lengths counts as no change, and the two one-sided tests of `statistics.equivalence_p` decide.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from pe_experiments.comparison import Runs
from pe_experiments.comparison.statistics import (
    ALPHA,
    detectable_change,
    equivalence_p,
    shared_differences,
    sign_flip_p,
)
from pe_experiments.errors import UserError
from pe_experiments.plots import drawing, save, styles
from pe_experiments.publishing import markdown_table, mean_in_words, with_settings

TASKS = ("copy", "reverse", "lag")
SCHEMES = ("rope", "alibi", "t5")
MARGIN = 0.1  # of mean exact match
SAME, OPEN, CHANGED = "equivalent", "not decided", "changed"
HEADING = ("task", "scheme", "float32", "bfloat16", "mean difference", "largest difference of a seed",
           "p (equivalence)", "smallest detectable", "result")  # fmt: skip


@dataclass(frozen=True)
class Change:
    """bfloat16 (``half``) minus float32 (``full``) of one scheme on one task, a value per seed."""

    task: str
    scheme: str
    full: dict[int, float]
    half: dict[int, float]

    @property
    def differences(self) -> np.ndarray:
        return shared_differences(self.half, self.full)

    @property
    def can_move(self) -> bool:
        """Whether the runs are neither all 0 nor all 1."""
        return {*self.full.values(), *self.half.values()} not in ({0.0}, {1.0})

    @property
    def reading(self) -> str:
        """``equivalent`` within the margin, ``changed``, or ``not decided``; the two tests are unadjusted."""
        if equivalence_p(self.differences, MARGIN) <= ALPHA:
            return SAME
        return CHANGED if sign_flip_p(self.differences) <= ALPHA else OPEN

    @property
    def row(self) -> list[str]:
        d = self.differences
        return [
            self.task,
            self.scheme,
            mean_in_words(self.full.values()),
            mean_in_words(self.half.values()),
            f"{round(d.mean(), 3) + 0.0:+.3f}",
            f"{np.abs(d).max():.3f}",
            f"{equivalence_p(d, MARGIN):.2g}",
            f"{detectable_change(d):.3f}",
            self.reading,
        ]


def changes(runs: Runs, metric: str = "exact_match_extrapolation") -> list[Change]:
    """One per task and scheme.

    Raises:
        UserError: runs of the sweep are missing.
    """
    table = with_settings(runs, precision="training.precision")
    found = []
    for task in TASKS:
        for scheme in SCHEMES:
            mine = table[(table["task"] == task) & (table["label"] == scheme)]
            parts = [mine[mine["precision"] == precision] for precision in ("float32", "bfloat16")]
            full, half = (dict(zip(part["seed"], part[metric], strict=True)) for part in parts)
            if not full or not half:
                raise UserError(f"precision has no pair of runs of {scheme} on {task}; finish its sweep")
            found.append(Change(task, scheme, full, half))
    return found


def pages(folder: Path, runs: Runs) -> None:
    """``README.md`` and its figure."""
    (folder / "figures").mkdir(exist_ok=True)
    made = changes(runs)
    with drawing():
        save(scatter(made), folder / "figures", "precision")
    (folder / "README.md").write_text(page(runs, made))


def scatter(made: list[Change]) -> Figure:
    """Every run in float32 against the same run in bfloat16, with the margin."""
    looks = styles(SCHEMES)
    figure = Figure(figsize=(7.2, 2.7), layout="constrained")
    panels = dict(zip(TASKS, figure.subplots(1, len(TASKS), sharey=True), strict=True))
    for change in made:
        colour, marker = looks[change.scheme]
        seeds = sorted(set(change.full) & set(change.half))
        x, y = ([values[seed] for seed in seeds] for values in (change.full, change.half))
        panels[change.task].plot(x, y, marker, color=colour, alpha=0.7, label=change.scheme)
    for task, axes in panels.items():
        axes.plot([0, 1], [0, 1], color="0.6", linewidth=0.7)
        axes.fill_between([0, 1], [-MARGIN, 1 - MARGIN], [MARGIN, 1 + MARGIN], color="0.93", zorder=0)
        axes.set_ylim(-0.05, 1.05)
        axes.set_title(task)
        axes.set_xlabel("float32")
        axes.spines[["top", "right"]].set_visible(False)
    panels[TASKS[0]].set_ylabel("bfloat16")
    panels[TASKS[0]].legend(frameon=False)
    figure.suptitle("Exact match past the training lengths, a point per seed; grey: the margin")
    return figure


def page(runs: Runs, made: list[Change]) -> str:
    """``README.md``."""
    moving = [change for change in made if change.can_move]
    readings = {
        f"Equivalent within {MARGIN:.2f}": [c for c in moving if c.reading == SAME],
        "Not decided": [c for c in moving if c.reading == OPEN],
        "Changed": [c for c in moving if c.reading == CHANGED],
        "Left out of the table because the exact match of every run is 0, or that of every run is 1": [
            c for c in made if not c.can_move
        ],
    }
    answer = "\n".join(
        f"- {reading}: {', '.join(f'{c.scheme} on {c.task}' for c in of)}."
        for reading, of in readings.items()
        if of
    )
    in_distribution = changes(runs, "exact_match_in_distribution")
    largest = max(float(np.abs(change.differences).max()) for change in in_distribution)
    pairs = min(len(change.differences) for change in made)
    return f"""# Training in bfloat16

*Do conclusions about extrapolation change with `training.precision=bfloat16`?*

![Exact match past the training lengths, float32 against bfloat16, a point per seed](figures/precision.png)

{markdown_table(HEADING, [change.row for change in moving])}

{answer}
- Within the training lengths the exact match of no run changes by more than {largest:.3f}.
- The default stays float32: three tasks and one model size do not settle the question in general.

**Set-up.** Three decoder tasks, three schemes and {pairs} seeds. Each run was trained twice, in float32 and in bfloat16
(autocast), with the same initial weights, batches and steps; the rest as in [core](../core/README.md). The table
compares exact match past the training lengths, bfloat16 minus float32, paired by seed. A change of the mean of less
than {MARGIN:.2f} counts as no change: `equivalent` means that two one-sided sign-flip tests both exclude a change of
{MARGIN:.2f} at level 0.05. With {pairs} pairs they can do so only if every seed changes by less. The tests assume that
differences are symmetric around their mean; p values are not adjusted for the number of rows. *Smallest detectable*
is the change of the mean that {pairs} pairs detect with 80 % power (two-sided paired t test at 0.05).

All runs, each with the command that repeats it: [runs.csv](runs.csv).

```
python scripts/train.py sweep=precision
python scripts/results.py publish=precision
make results
```
"""
