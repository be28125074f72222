"""Position policies: the position ids of a sequence's tokens, independent of the encoding that reads them.

Shapes: B rows, P ids. Each row gets ids for its declared length (its tokens if its answer were as long as it
can be), of which its tokens use the first. So no id depends on the length of the answer, and decoding token
by token uses the same ids. Random ids are drawn per row from the data stream, so no result depends on how an
evaluation is cut into batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from pe_experiments.errors import NotApplicable
from pe_experiments.tasks import Task


class PositionPolicy:
    """Consecutive ids 0 .. n-1, and the contract of every other policy.

    Attributes:
        task_ids: kinds of `Task.position_ids` to use instead of counting tokens; the first one that the task
            has is taken. Empty: tokens are counted.
    """

    task_ids: tuple[str, ...] = ()

    def check(self, task: Task, train_lengths: Sequence[int]) -> None:
        """Check that the policy has ids for this task at these input lengths.

        Raises:
            ValueError: it has not.
        """

    def train_positions(self, train_length: int) -> int:
        """Number of distinct ids that can occur in training on sequences of up to ``train_length`` tokens.

        Raises:
            ValueError: the policy has fewer ids than such a sequence needs.
        """
        return train_length

    def training_ids(self, declared_B: Tensor, train_length: int, generator: torch.Generator) -> Tensor:
        """Ids [B or 1, P] for training rows of these declared lengths; P is the longest of them."""
        return torch.arange(int(declared_B.max()))[None]

    def evaluation_ids(self, declared_B: Tensor, train_length: int, generator: torch.Generator) -> Tensor:
        """Ids [B or 1, P] for evaluation rows of these declared lengths."""
        return torch.arange(int(declared_B.max()))[None]

    def raised(self, ids_BP: Tensor, train_length: int, generator: torch.Generator) -> Tensor:
        """Ids [B, P] for training rows from those of the task; only for policies with ``task_ids``."""
        raise TypeError(f"{type(self).__name__} takes no ids from the task")


class Consecutive(PositionPolicy):
    """Ids 0 .. n-1 for every row, in training and in evaluation."""


class RandomOffset(PositionPolicy):
    """Ids o .. o+n-1 in training, with a random o per row, so that all ids below the maximum are trained.

    Evaluation starts at 0. Distances between tokens are those of consecutive ids; only more absolute ids are
    trained. Used with learned tables by Huang et al. 2024, arXiv:2410.02140.

    Args:
        max_positions: ids in all; None means four times the longest training sequence.
    """

    def __init__(self, max_positions: int | None = None):
        if max_positions is not None and max_positions < 1:
            raise ValueError(f"max_positions={max_positions} must be at least 1")
        self.max_positions = max_positions

    def train_positions(self, train_length: int) -> int:
        positions = 4 * train_length if self.max_positions is None else self.max_positions
        if positions < train_length:
            raise ValueError(
                f"max_positions={positions} is below the {train_length} tokens of the longest training "
                f"sequence; allowed: {train_length} or more, or null for {4 * train_length}"
            )
        return positions

    def training_ids(self, declared_B: Tensor, train_length: int, generator: torch.Generator) -> Tensor:
        room_B = self.train_positions(train_length) - declared_B + 1
        offsets_B = (torch.rand(len(declared_B), generator=generator, dtype=torch.float64) * room_B).long()
        # The ids of padding are clamped so that they never leave the table.
        ids_BP = offsets_B[:, None] + torch.arange(int(declared_B.max()))
        return torch.minimum(ids_BP, (offsets_B + declared_B - 1)[:, None])


class RandomSubset(PositionPolicy):
    """n distinct ids drawn uniformly from 0 .. max_positions - 1 and sorted, one draw per row.

    The order of tokens stays, distances do not: training covers the ids and distances of longer sequences.
    Source: Ruoss et al. 2023, arXiv:2305.16843, where evaluation draws too.

    Args:
        max_positions: ids to draw from; 2,048 as in the source. No sequence may be longer.
        evaluation: ``draw``, or ``consecutive`` for ids 0 .. n-1.
    """

    def __init__(self, max_positions: int = 2048, evaluation: Literal["draw", "consecutive"] = "draw"):
        if max_positions < 1:
            raise ValueError(f"max_positions={max_positions} must be at least 1")
        if evaluation not in ("draw", "consecutive"):
            raise ValueError(f"evaluation={evaluation!r} is not one of 'draw', 'consecutive'")
        self.max_positions = max_positions
        self.evaluation = evaluation

    def train_positions(self, train_length: int) -> int:
        if self.max_positions < train_length:
            raise ValueError(
                f"max_positions={self.max_positions} is below the {train_length} tokens of the longest "
                f"training sequence; allowed: {train_length} or more"
            )
        return self.max_positions

    def training_ids(self, declared_B: Tensor, train_length: int, generator: torch.Generator) -> Tensor:
        return self._draw(declared_B, generator)

    def evaluation_ids(self, declared_B: Tensor, train_length: int, generator: torch.Generator) -> Tensor:
        longest = int(declared_B.max())
        if longest > self.max_positions:
            raise ValueError(
                f"{longest} tokens need more ids than positions.max_positions={self.max_positions}; take a "
                f"larger one (and train with it), or shorten evaluation.lengths"
            )
        if self.evaluation == "consecutive":
            return super().evaluation_ids(declared_B, train_length, generator)
        return self._draw(declared_B, generator)

    def _draw(self, declared_B: Tensor, generator: torch.Generator) -> Tensor:
        longest = int(declared_B.max())
        # In random order, so that the first n of them are a random subset.
        drawn_BP = distinct(len(declared_B), longest, self.max_positions, generator)
        real_BP = torch.arange(longest) < declared_B[:, None]
        ids_BP = drawn_BP.masked_fill(~real_BP, self.max_positions).sort(dim=-1).values
        last_B1 = ids_BP.gather(-1, declared_B[:, None] - 1)
        return torch.minimum(ids_BP, last_B1)  # padding repeats the last id


def distinct(rows: int, count: int, among: int, generator: torch.Generator) -> Tensor:
    """``count`` distinct numbers below ``among`` per row, in random order, all choices equally likely."""
    if 4 * count > among:
        return torch.rand(rows, among, generator=generator).topk(count, dim=-1).indices
    # Few of many: draw with replacement and keep the first of equals, in the order drawn. Rows with too few
    # distinct numbers are drawn as above; which rows these are does not depend on the numbers themselves.
    drawn_RN = torch.randint(among, (rows, 2 * count), generator=generator)
    sorted_RN, order_RN = drawn_RN.sort(dim=-1, stable=True)
    new_RN = torch.ones_like(drawn_RN, dtype=torch.bool)
    new_RN.scatter_(1, order_RN[:, 1:], sorted_RN[:, 1:] != sorted_RN[:, :-1])
    enough_R = new_RN.sum(dim=-1) >= count
    chosen_RC = torch.empty(rows, count, dtype=torch.long)
    first_RN = new_RN & (new_RN.cumsum(dim=-1) <= count)
    chosen_RC[enough_R] = drawn_RN[first_RN & enough_R[:, None]].view(-1, count)
    short = int((~enough_R).sum())
    chosen_RC[~enough_R] = torch.rand(short, among, generator=generator).topk(count, dim=-1).indices
    return chosen_RC


class Interpolated(PositionPolicy):
    """Ids 0 .. n-1, multiplied by L0/n in sequences of n > L0 tokens; L0 is the longest in training.

    No id is larger than those of training, but most are fractions, which only some schemes take. Source: Chen
    et al. 2023, arXiv:2306.15595 (position interpolation, without fine-tuning).
    """

    def evaluation_ids(self, declared_B: Tensor, train_length: int, generator: torch.Generator) -> Tensor:
        ids_1P = super().evaluation_ids(declared_B, train_length, generator)
        if int(declared_B.max()) <= train_length:
            return ids_1P
        return ids_1P * (train_length / declared_B.double()).clamp(max=1)[:, None]


TaskIdKind = Literal["coupling", "abacus"]


class TaskProvided(PositionPolicy):
    """Ids from the task (`Task.position_ids`), which related symbols share; other tokens have id 0.

    In training a random start is added to all ids of a row, so that all ids below the maximum are trained;
    evaluation uses them as they are, from 1. The ids contain knowledge of the task that no other policy has:
    compare such runs with each other only.

    Sources: ``coupling``, Cho et al. 2024, arXiv:2405.20671 (digits of one significance, a symbol and its
    copy); ``abacus``, McLeish et al. 2024, arXiv:2405.17399 (index of a digit in its number).

    Args:
        ids: ``coupling`` or ``abacus``; None means coupling, or Abacus where the task has no coupling.
        max_positions: ids in all, 0 included; None means four times the longest training sequence.
    """

    def __init__(self, ids: TaskIdKind | None = None, max_positions: int | None = None):
        if ids is not None and ids not in get_args(TaskIdKind):
            raise ValueError(f"ids={ids} is not one of the choices: {', '.join(get_args(TaskIdKind))}")
        self.ids = ids
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
        """The task's ids [B, P] plus a random start per row, for training; 0 stays 0."""
        room_B = self.train_positions(train_length) - ids_BP.amax(dim=1)
        start_B = (torch.rand(len(ids_BP), generator=generator, dtype=torch.float64) * room_B).long()
        return (ids_BP + start_B[:, None]).where(ids_BP > 0, 0)
