"""Position policies: the position ids of a sequence's tokens, independent of the encoding that reads them.

Shapes: B rows, P ids. Each row gets ids for its declared length (its tokens with the longest possible
answer); its tokens use the first of them. So no id depends on the length of the actual answer, and decoding
token by token uses the same ids. Random ids are drawn per row from the data stream, so results do not
depend on the evaluation's batch size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pe_experiments.tasks import Task


class PositionPolicy:
    """Consecutive ids 0 .. n-1, and the contract of every other policy.

    Attributes:
        task_ids: kinds of `Task.position_ids` to use, the first that the task has; empty: ids count tokens.
    """

    task_ids: tuple[str, ...] = ()

    def check(self, task: Task, train_lengths: Sequence[int]) -> None:
        """Raise a ValueError if the policy has no ids for this task at these input lengths."""

    def train_positions(self, train_length: int) -> int:
        """Number of distinct ids that can occur in training on sequences of up to ``train_length`` tokens.

        A ValueError if the policy has fewer ids than such a sequence needs.
        """
        return train_length

    def training_ids(self, declared_B: Tensor, train_length: int, generator: torch.Generator) -> Tensor:
        """Ids [B or 1, P] for training rows of these declared lengths; P is the longest of them."""
        return torch.arange(int(declared_B.max()))[None]

    def evaluation_ids(self, declared_B: Tensor, train_length: int, generator: torch.Generator) -> Tensor:
        """Ids [B or 1, P] for evaluation rows of these declared lengths."""
        return torch.arange(int(declared_B.max()))[None]

    def raised(self, ids_BP: Tensor, train_length: int, generator: torch.Generator) -> Tensor:
        """The task's ids as training rows use them, [B, P]; only for policies with ``task_ids``."""
        raise TypeError(f"{type(self).__name__} takes no ids from the task")


class Consecutive(PositionPolicy):
    """Ids 0 .. n-1 for every row, in training and in evaluation."""
