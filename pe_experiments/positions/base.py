"""Position policies: the position ids of a sequence's tokens, independent of the encoding that reads them.

Shapes: B rows, P ids. Each row gets ids for its declared length (its tokens if its answer were as long as it
can be), of which its tokens use the first. So no id depends on the length of the answer, and decoding token
by token uses the same ids. Random ids are drawn per row from the data stream, so no result depends on how an
evaluation is cut into batches.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

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
