"""The study ``precision``: do conclusions change when training computes in bfloat16?

Equivalence is a claim of its own: a change of the mean exact match past the training lengths of less than
``MARGIN`` is called none, and the two one-sided tests of `statistics.equivalence_p` decide. 0.1 is a tenth of
the scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from pe_experiments import plots
from pe_experiments.comparison.runs_table import Runs
from pe_experiments.comparison.statistics import (
    ALPHA,
    detectable_change,
    equivalence_p,
    shared_differences,
    sign_flip_p,
)
from pe_experiments.studies.figures_in_words import Figures, markdown_table, render

TASKS = ("copy", "reverse", "lag")
SCHEMES = ("rope", "alibi", "t5")
METRIC = "past"
MARGIN = 0.1  # of mean exact match
SAME, OPEN, CHANGED = "equivalent", "not decided", "changed"


@dataclass(frozen=True)
class Change:
    """bfloat16 minus float32 of one scheme on one task, past the training lengths.

    Attributes:
        task, scheme: which.
        full, half: the metric by seed in float32 and in bfloat16.
    """

    task: str
    scheme: str
    full: dict[int, float]
    half: dict[int, float]

    @property
    def differences(self) -> np.ndarray:
        return shared_differences(self.half, self.full)

    @property
    def can_move(self) -> bool:
        """Whether it is anything but 0 in all runs or 1 in all runs."""
        return len({*self.full.values(), *self.half.values()} - {0.0}) > 0 and bool(
            {*self.full.values(), *self.half.values()} - {1.0}
        )

    @property
    def reading(self) -> str:
        """``equivalent`` within the margin, ``changed``, or ``not decided``; the two tests are unadjusted."""
        if equivalence_p(self.differences, MARGIN) <= ALPHA:
            return SAME
        return CHANGED if sign_flip_p(self.differences) <= ALPHA else OPEN


def page(runs: Runs) -> str:
    """``README.md`` of the study."""
    full, half = (Figures(runs, f"training.precision={p}") for p in ("float32", "bfloat16"))
    changes = _changes(full, half)
    moving = [change for change in changes if change.can_move]
    rows = [
        [
            change.task,
            change.scheme,
            full.mean(change.task, "decoder", change.scheme, METRIC),
            half.mean(change.task, "decoder", change.scheme, METRIC),
            f"{change.differences.mean():+.3f}",
            f"{np.abs(change.differences).max():.3f}",
            f"{equivalence_p(change.differences, MARGIN):.2g}",
            f"{detectable_change(change.differences):.3f}",
            change.reading,
        ]
        for change in moving
    ]
    heading = ["task", "scheme", "float32", "bfloat16", "mean difference", "largest of a seed",
               "p (equivalence)", "smallest detectable", "reading"]  # fmt: skip
    readings = {
        kind: [f"{c.scheme} on {c.task}" for c in moving if c.reading == kind]
        for kind in (SAME, OPEN, CHANGED)
    }
    return render(
        "precision.md.j2",
        table=markdown_table(heading, rows),
        readings=readings,
        still=[f"{c.scheme} on {c.task}" for c in changes if not c.can_move],
        within=max(_largest_within(full, half, change) for change in changes),
        margin=MARGIN,
        seeds=full.seeds,
        pairs=min(len(change.differences) for change in changes),
    )


def _changes(full: Figures, half: Figures) -> list[Change]:
    return [
        Change(task, scheme, *(f.values(task, "decoder", scheme, METRIC) for f in (full, half)))
        for task in TASKS
        for scheme in SCHEMES
    ]


def _largest_within(full: Figures, half: Figures, change: Change) -> float:
    """The largest difference of a seed within the training lengths."""
    values = (f.values(change.task, "decoder", change.scheme, "within") for f in (half, full))
    return float(np.abs(shared_differences(*values)).max())


def draw(runs: Runs, folder: Path) -> None:
    """Every run in float32 against the same run in bfloat16, with the margin."""
    full, half = (Figures(runs, f"training.precision={p}") for p in ("float32", "bfloat16"))
    changes = _changes(full, half)
    looks = plots.styles(SCHEMES)
    with plots.drawing():
        figure = Figure(figsize=(7.2, 2.7), layout="constrained")
        panels = dict(zip(TASKS, figure.subplots(1, len(TASKS), sharey=True), strict=True))
        for change in changes:
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
        plots.save(figure, folder, "precision")
