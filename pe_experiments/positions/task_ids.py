"""Position ids provided by the task, which gives related symbols the same id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from pe_experiments.positions.base import PositionPolicy
from pe_experiments.tasks import Task
from pe_experiments.terminal.errors import NotApplicable, one_of

TaskIdKind = Literal["coupling", "abacus"]


class TaskProvided(PositionPolicy):
    """Ids from the task (`Task.position_ids`): related symbols share an id, and other tokens have id 0.

    In training a random start is added to the ids of a row, so that all ids below the maximum are trained.
    In evaluation ids are unchanged and start at 1. The ids carry knowledge of the task that no other policy
    has: compare such runs only with each other.

    Sources: ``coupling``, Cho et al. 2024, arXiv:2405.20671 (digits of one place value, a symbol and its
    copy); ``abacus``, McLeish et al. 2024, arXiv:2405.17399 (index of a digit in its number).

    Args:
        ids: ``coupling`` or ``abacus``; None means coupling, or Abacus where the task has no coupling.
        max_positions: number of ids, including 0; None means four times the longest training sequence.
    """

    def __init__(self, ids: TaskIdKind | None = None, max_positions: int | None = None):
        self.ids = None if ids is None else one_of(TaskIdKind, "ids", ids)
        self.task_ids = get_args(TaskIdKind) if ids is None else (ids,)
        self.max_positions = max_positions

    def check(self, task: Task, train_lengths: Sequence[int]) -> None:
        name = type(task).__name__
        provided = task.position_ids(*task.sample(train_lengths[0], 1, torch.Generator()))
        if not provided:
            raise NotApplicable(
                f"positions: {name} marks no related symbols, so positions=task has no ids to take from it"
            )
        if not set(self.task_ids) & set(provided):
            raise NotApplicable(
                f"positions.ids={self.ids}: {name} with these arguments has none; allowed here: "
                f"{', '.join(sorted(provided))}"
            )
        needed = max(max(length, task.target_length(length)) for length in train_lengths) + 2
        if self.max_positions is not None and self.max_positions < needed:
            raise ValueError(
                f"max_positions={self.max_positions} is below the {needed} ids that the longest training "
                f"example may need; allowed: {needed} or more, or null"
            )

    def train_positions(self, train_length: int) -> int:
        return 4 * train_length if self.max_positions is None else self.max_positions

    def raised(self, ids_BP: Tensor, train_length: int, generator: torch.Generator) -> Tensor:
        """Add a random start per row to the task's ids [B, P] for training; 0 stays 0."""
        choices_B = self.train_positions(train_length) - ids_BP.amax(dim=1)
        start_B = (torch.rand(len(ids_BP), generator=generator, dtype=torch.float64) * choices_B).long()
        return (ids_BP + start_B[:, None]).where(ids_BP > 0, 0)
