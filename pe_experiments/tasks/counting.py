"""Counting and other controls: a bag of tokens suffices, so encodings should tie where they are trained."""

import torch
from torch import Tensor

from pe_experiments.tasks.base import Task


class Majority(Task):
    """Which bit is more frequent? 1 0 1 -> "ones" (symbol 3; "zeros" is 2). There are no ties.

    >>> Majority().solve(torch.tensor([[1, 0, 1], [0, 0, 1]])).tolist()
    [[3], [2]]

    The number of ones is drawn uniformly (independent bits would put every long input near a tie) and their
    places at random. A control: order says nothing. Source: Huang et al. 2024, arXiv:2410.02140 (trained to
    50).
    """

    vocab_size = 4
    order_sensitive = False

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        counts = torch.tensor([c for c in range(length + 1) if 2 * c != length])
        ones_B = counts[torch.randint(len(counts), (batch_size,), generator=generator)]
        places_BN = torch.rand(batch_size, length, generator=generator, dtype=torch.float64).argsort(dim=-1)
        inputs_BN = (places_BN < ones_B[:, None]).long()
        return inputs_BN, (2 + (2 * ones_B > length).long())[:, None]

    def solve(self, inputs_BN: Tensor) -> Tensor:
        return torch.tensor([[3 if row.count(1) > row.count(0) else 2] for row in inputs_BN.tolist()])

    def target_length(self, length: int) -> int:
        return 1

    def chance(self, length: int) -> float:
        return 0.5

    def bag_ceiling(self, length: int, prefix: bool = False) -> float:
        return 1.0
