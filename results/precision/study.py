"""Do conclusions change when training computes in bfloat16?

Equivalence needs its own test: a change of less than ``MARGIN`` (a tenth of the scale) in mean exact match past
the training lengths counts as no change, and two one-sided tests decide. All flip the signs of paired differences.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from scipy import stats

from pe_experiments.comparison import Runs
from pe_experiments.comparison.statistics import ALPHA
from pe_experiments.published import markdown_table, mean_in_words, read_archive, with_settings

MARGIN = 0.1  # of mean exact match
HEADING = (
    "task", "scheme", "float32", "bfloat16", "mean difference", "largest difference of a seed", "p (equivalence)",
    "result",
)  # fmt: skip


def sign_flip_p(differences: np.ndarray, alternative: Literal["two-sided", "greater"]) -> float:
    """p-value of a mean difference of paired seeds under random signs; two-sided at least 2 / 2^pairs."""
    pairs = (differences.tolist(),)
    return float(
        stats.permutation_test(pairs, np.mean, permutation_type="samples", alternative=alternative).pvalue
    )


def equivalence_p(differences: np.ndarray) -> float:
    """p-value of "the mean difference is ``MARGIN`` or more in size"; with five pairs at least 1 / 32."""
    return max(sign_flip_p(side, "greater") for side in (MARGIN - differences, MARGIN + differences))


@dataclass(frozen=True)
class Change:
    """bfloat16 (``half``) minus float32 (``full``) of one scheme on one task, a value per seed."""

    task: str
    scheme: str
    full: dict[int, float]
    half: dict[int, float]

    @property
    def differences(self) -> np.ndarray:
        return np.array([self.half[seed] - self.full[seed] for seed in sorted(self.full)])

    @property
    def can_move(self) -> bool:
        """Whether the runs are neither all 0 nor all 1."""
        return {*self.full.values(), *self.half.values()} not in ({0.0}, {1.0})

    @property
    def reading(self) -> str:
        """``equivalent`` within the margin, ``changed``, or ``not decided``; the two tests are unadjusted."""
        if equivalence_p(self.differences) <= ALPHA:
            return "equivalent"
        return "changed" if sign_flip_p(self.differences, "two-sided") <= ALPHA else "not decided"


def changes(runs: Runs, metric: str = "exact_match_extrapolation") -> list[Change]:
    """One per task and scheme that was run in both."""
    table = with_settings(runs, precision="training.precision")
    wide = table.pivot(index=["task", "label", "seed"], columns="precision", values=metric).dropna()
    both = ("float32", "bfloat16")
    groups: Any = wide.groupby(level=["task", "label"])
    return [Change(*key, *(own.droplevel([0, 1])[kind].to_dict() for kind in both)) for key, own in groups]


def blocks(folder: Path) -> dict[str, str]:
    """A row for each that can move, which cannot, and how much the training lengths do."""
    runs = read_archive(folder)
    made = changes(runs)
    rows = [_row(change, change.differences) for change in made if change.can_move]
    still = ", ".join(f"{change.scheme} on {change.task}" for change in made if not change.can_move)
    within = [np.abs(change.differences).max() for change in changes(runs, "exact_match_in_distribution")]
    return {
        "table": markdown_table(HEADING, rows),
        "answer": f"Left out, since the exact match of every run is 0, or that of every run is 1: {still}. Within the "
        f"training lengths the exact match of no run changes by more than {max(within):.3f}.",
    }


def _row(change: Change, d: np.ndarray) -> list[str]:
    means = (mean_in_words(runs.values()) for runs in (change.full, change.half))
    sizes = f"{round(d.mean(), 3) + 0.0:+.3f}", f"{np.abs(d).max():.3f}", f"{equivalence_p(d):.2g}"
    return [change.task, change.scheme, *means, *sizes, change.reading]
