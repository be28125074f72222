"""Sorting: a target depends on its index in the answer, not on the order of the input.

A guess that never reads the input does well here, and better at longer inputs. Only accuracy above
`input_blind`, the accuracy of that guess, shows learning.
"""

import numpy as np
import torch
from torch import Tensor

from pe_experiments.tasks.base import Task, distinct_symbols
from pe_experiments.tasks.ceilings import coin_flips, log_factorials
from pe_experiments.terminal.errors import at_least


class BucketSort(Task):
    """Sort symbols that repeat: 1 0 2 0 4 -> 0 0 1 2 4. Symbols are independent and uniform.

    >>> BucketSort().solve(torch.tensor([[1, 0, 2, 0, 4]])).tolist()
    [[0, 0, 1, 2, 4]]

    Sources: Delétang et al. 2022, arXiv:2207.02098 (5 symbols, trained to 40, evaluated to 500); Kazemnejad
    et al. 2023, arXiv:2305.19466 (sorting of single symbols; 50 of them, trained to 8, evaluated to 16).

    Args:
        vocab_size: symbols, at least 2.
    """

    order_sensitive = False

    def __init__(self, vocab_size: int = 5):
        self.vocab_size = at_least(2, "vocab_size", vocab_size)

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        inputs_BN = torch.randint(self.vocab_size, (batch_size, length), generator=generator)
        return inputs_BN, inputs_BN.sort(dim=1).values

    def solve_row(self, row: list[int]) -> list[int]:
        return sorted(row)

    def input_blind(self, length: int) -> float:
        # Target i is at most s exactly when more than i symbols are at most s; their number is binomial.
        shares = np.arange(1, self.vocab_size) / self.vocab_size
        at_most_VN = np.stack([1 - np.cumsum(coin_flips(length, share))[:-1] for share in shares])
        edges_VN = np.vstack([np.zeros(length), at_most_VN, np.ones(length)])
        return float(np.diff(edges_VN, axis=0).max(axis=0).mean())


class Sort(BucketSort):
    """Sort symbols that are all distinct: 7 2 5 -> 2 5 7.

    >>> Sort().solve(torch.tensor([[7, 2, 5]])).tolist()
    [[2, 5, 7]]

    Inputs are at most ``vocab_size`` long. Source: Huang et al. 2024, arXiv:2410.02140 (150 symbols,
    trained to 50, evaluated to 150).

    Args:
        vocab_size: symbols, at least 2; also the longest input.
    """

    def __init__(self, vocab_size: int = 80):
        super().__init__(vocab_size)
        self.longest = vocab_size

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        inputs_BN = distinct_symbols(self.vocab_size, length, batch_size, generator)
        return inputs_BN, inputs_BN.sort(dim=1).values

    def input_blind(self, length: int) -> float:
        # n of V symbols occur; P(target i is s) = C(s, i) C(V-1-s, n-1-i) / C(V, n).
        last = self.vocab_size - 1
        log_factorial = log_factorials(self.vocab_size)
        below_NV = np.arange(last + 1)[None]
        rank_NV = np.arange(length)[:, None]
        above_NV = last - below_NV
        after_NV = length - 1 - rank_NV
        possible_NV = (rank_NV <= below_NV) & (after_NV <= above_NV)
        log_ways_NV = -log_factorial[self.vocab_size] + log_factorial[length] + log_factorial[-1 - length]
        for total, chosen in ((below_NV, rank_NV), (above_NV, after_NV)):
            unchosen = np.maximum(total - chosen, 0)
            log_ways_NV = log_ways_NV + log_factorial[total] - log_factorial[chosen] - log_factorial[unchosen]
        return float(np.where(possible_NV, np.exp(log_ways_NV), 0.0).max(axis=1).mean())
