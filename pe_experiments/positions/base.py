"""The interface of position policies, which assign position ids independently of the encoding.

Shapes: B rows, P ids. Each row gets ids for its declared length (its tokens with the longest possible
answer); its tokens use the first of them. Ids therefore do not depend on the length of the actual answer,
and decoding token by token uses the same ids. Random ids are drawn per row from the data stream, so results
do not depend on the batch size of the evaluation.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pe_experiments.tasks import Task


class PositionPolicy:
    """Consecutive ids 0 .. n-1, and the interface of other policies.

    Attributes:
        task_ids: kinds of `Task.position_ids` to use, in order of preference; empty if ids do not come from
            the task.
    """

    task_ids: tuple[str, ...] = ()

    def check(self, task: Task, train_lengths: Sequence[int]) -> None:
        """Raise a ValueError if the policy has no ids for this task at these input lengths."""

    def train_positions(self, train_length: int) -> int:
        """Return the number of distinct ids in training on sequences of up to ``train_length`` tokens.

        Raises:
            ValueError: the policy has fewer ids than such a sequence needs.
        """
        return train_length

    def largest_trained(self, train_length: int) -> float:
        """Return the largest id in training on sequences of up to ``train_length`` tokens."""
        return self.train_positions(train_length) - 1

    def training_ids(self, declared_B: Tensor, train_length: int, generator: torch.Generator) -> Tensor:
        """Return ids [B or 1, P] for training rows of these declared lengths; P is the longest of them."""
        return torch.arange(int(declared_B.max()))[None]

    def evaluation_ids(self, declared_B: Tensor, train_length: int, generator: torch.Generator) -> Tensor:
        """Return ids [B or 1, P] for evaluation rows of these declared lengths."""
        return torch.arange(int(declared_B.max()))[None]

    def raised(self, ids_BP: Tensor, train_length: int, generator: torch.Generator) -> Tensor:
        """Return the ids of training rows, computed from the task's ids; for policies with ``task_ids``."""
        raise TypeError(f"{type(self).__name__} takes no ids from the task")


def enough_positions(max_positions: int, train_length: int) -> int:
    """Return the number of ids of a policy; raise a ValueError if the training needs more."""
    if max_positions < train_length:
        raise ValueError(
            f"max_positions={max_positions} is below the {train_length} tokens of the longest training "
            f"sequence; allowed: {train_length} or more"
        )
    return max_positions


def sorted_ids(drawn_BP: Tensor, declared_B: Tensor, above: float) -> Tensor:
    """Sort the ids of each row, all below ``above``, in ascending order; padding repeats the last id."""
    padding_BP = torch.arange(drawn_BP.shape[1]) >= declared_B[:, None]
    ids_BP = drawn_BP.masked_fill(padding_BP, above).sort(dim=-1).values
    return torch.minimum(ids_BP, ids_BP.gather(-1, declared_B[:, None] - 1))


class Consecutive(PositionPolicy):
    """Ids 0 .. n-1 for every row, in training and in evaluation."""
