"""Better, worse or not separated: a scheme against each baseline on one task, over seeds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pe_experiments.comparison.statistics import ALPHA, holm, permutation_ps

BETTER, WORSE, NOT_SEPARATED = "better", "worse", "not separated"
ONLY_YOURS, ONLY_OTHER, NEITHER = "only yours learned it", "only the other learned it", "neither learned it"


@dataclass(frozen=True)
class Outcomes:
    """What the seeds of one scheme came to on one task.

    Attributes:
        values: exact match past training, one per seed.
        solved: whether the seed solved the training lengths.
    """

    values: tuple[float, ...]
    solved: tuple[bool, ...]

    @property
    def learned(self) -> bool:
        """Whether at least half of the seeds solved the training lengths."""
        return sum(self.solved) >= len(self.solved) / 2


def verdicts(mine: Outcomes, baselines: Mapping[str, Outcomes]) -> dict[str, str]:
    """The verdict on a scheme against each baseline, see `verdict_table`."""
    (row,) = verdict_table(np.array([mine.values]), np.array([mine.solved]), baselines)
    return dict(zip(baselines, row.tolist(), strict=True))


def verdict_table(values: np.ndarray, solved: np.ndarray, baselines: Mapping[str, Outcomes]) -> np.ndarray:
    """The verdicts for many sets of a scheme's seeds at once.

    Two schemes that learned the task are compared by the permutation test of their seeds' values, adjusted by
    Holm's method over the baselines; otherwise the verdict says which of them learned it.

    Args:
        values: [sets, seeds], exact match past training.
        solved: [sets, seeds], whether the training lengths were solved.
        baselines: the seeds of each.

    Returns:
        [sets, baselines], each one of the words above.
    """
    learned = solved.mean(axis=1) >= 0.5
    table = np.empty((len(values), len(baselines)), dtype=object)
    ps = np.full(table.shape, np.nan)
    for index, other in enumerate(baselines.values()):
        if other.learned:
            ps[:, index] = permutation_ps(values, other.values)
            table[:, index] = np.where(values.mean(axis=1) > np.mean(other.values), BETTER, WORSE)
        else:
            table[:, index] = np.where(learned, ONLY_YOURS, NEITHER)
    adjusted = np.array([holm(row) for row in ps.tolist()])
    table[adjusted > ALPHA] = NOT_SEPARATED
    table[~learned[:, None] & ~np.isnan(ps)] = ONLY_OTHER
    return table
