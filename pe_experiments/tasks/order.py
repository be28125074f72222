"""Order and position: one answer symbol that depends on the positions of input symbols."""

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from pe_experiments.tasks.base import OneAnswer
from pe_experiments.tasks.ceilings import coin_flips, mode_share
from pe_experiments.terminal.errors import at_least


class Precedence(OneAnswer):
    """Two marks occur once each among fillers: does A come before B?

    Symbols: fillers ``0 .. fillers-1``, then A, B, the answer "A first" and the answer "B first". With eight
    fillers A=8, B=9, "A first"=10, "B first"=11:

    >>> Precedence(fillers=8).solve(torch.tensor([[3, 8, 1, 9], [9, 0, 0, 8]])).tolist()
    [[10], [11]]

    A bag of tokens carries no information about the answer: the ceiling is exactly one half. Shortest input:
    2. This is the cheapest test of order-blindness, made for this project ("dog bites man" against "man bites
    dog").

    Args:
        fillers: filler symbols, at least 1.
    """

    shortest = answers = 2

    def __init__(self, fillers: int = 8):
        self.fillers = at_least(1, "fillers", fillers)
        self.vocab_size = fillers + 4

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        inputs_BN = torch.randint(self.fillers, (batch_size, length), generator=generator)
        first_B1 = torch.randint(length, (batch_size, 1), generator=generator)
        step_B1 = torch.randint(1, length, (batch_size, 1), generator=generator)
        second_B1 = (first_B1 + step_B1) % length
        inputs_BN = inputs_BN.scatter(1, first_B1, self.fillers).scatter(1, second_B1, self.fillers + 1)
        return inputs_BN, self.fillers + 2 + (first_B1 > second_B1).long()

    def solve_row(self, row: list[int]) -> list[int]:
        return [self.fillers + (2 if row.index(self.fillers) < row.index(self.fillers + 1) else 3)]

    def bag_ceiling(self, length: int, prefix: bool = False) -> float:
        return 0.5


class Kth(OneAnswer):
    """Name the k-th symbol: with k=2, 3 1 4 -> 1. Symbols are independent and uniform.

    >>> Kth(k=2).solve(torch.tensor([[3, 1, 4]])).tolist()
    [[1]]

    Shortest input: k. Made for this project: an absolute position must be found, counted from the start.

    Args:
        k: which symbol, from 1.
        vocab_size: symbols, at least 2.
    """

    def __init__(self, k: int = 3, vocab_size: int = 10):
        self.k = self.shortest = at_least(1, "k", k)
        self.vocab_size = at_least(2, "vocab_size", vocab_size)
        self.index = k - 1

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        inputs_BN = torch.randint(self.vocab_size, (batch_size, length), generator=generator)
        return inputs_BN, inputs_BN[:, self.index, None].clone()

    def solve_row(self, row: list[int]) -> list[int]:
        return [row[self.index]]

    def needed_indices(self, inputs_BN: Tensor) -> Tensor:
        return torch.full((len(inputs_BN), 1), self.index % inputs_BN.shape[1])

    def bag_ceiling(self, length: int, prefix: bool = False) -> float:
        return mode_share(length, self.vocab_size)


class First(Kth):
    """Name the first symbol: 3 1 4 -> 3. Symbols are independent and uniform.

    >>> First().solve(torch.tensor([[3, 1, 4]])).tolist()
    [[3]]

    Made for this project: an absolute position must be found, which Kazemnejad et al. 2023, arXiv:2305.19466,
    show to be possible in a decoder without an encoding.

    Args:
        vocab_size: symbols, at least 2.
    """

    def __init__(self, vocab_size: int = 10):
        super().__init__(1, vocab_size)


class Last(Kth):
    """Name the last symbol: 3 1 4 -> 4. Symbols are independent and uniform.

    >>> Last().solve(torch.tensor([[3, 1, 4]])).tolist()
    [[4]]

    The mirror image of `First`: in a decoder the last symbol is always one token away, the first never is.
    Made for this project.

    Args:
        vocab_size: symbols, at least 2.
    """

    def __init__(self, vocab_size: int = 10):
        super().__init__(1, vocab_size)
        self.index = -1


class EvenPairs(OneAnswer):
    """Is the number of neighbouring bits that differ even? 0 1 0 -> "even" (2); "odd" is 3.

    >>> EvenPairs().solve(torch.tensor([[0, 1, 0], [0, 0, 1]])).tolist()
    [[2], [3]]

    Equivalent: does the last bit equal the first? Bits are independent and uniform; a single bit
    has no pairs, which is even. Source: Delétang et al. 2022, arXiv:2207.02098 (trained to 40, evaluated to
    500), whose classes 0 and 1 are 2 and 3 here.
    """

    vocab_size = 4

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        inputs_BN = torch.randint(2, (batch_size, length), generator=generator)
        return inputs_BN, 2 + (inputs_BN[:, :1] != inputs_BN[:, -1:]).long()

    def solve_row(self, row: list[int]) -> list[int]:
        return [2 + sum(a != b for a, b in pairwise(row)) % 2]

    def chance(self, length: int) -> float:
        return 0.5 if length > 1 else 1.0

    def bag_ceiling(self, length: int, prefix: bool = False) -> float:
        if length == 1:
            return 1.0
        ones = np.arange(length + 1)  # both ends are a random pair of the bag's bits
        differ = 2 * ones * (length - ones) / (length * (length - 1))
        return float(coin_flips(length) @ np.maximum(differ, 1 - differ))
