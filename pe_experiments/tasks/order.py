"""Order and position: one answer symbol that depends on where things stand."""

import torch
from torch import Tensor

from pe_experiments.tasks.base import Task, require_symbols
from pe_experiments.tasks.ceilings import mode_share


class Precedence(Task):
    """Two marks stand once each among fillers: does A come before B?

    Symbols: fillers ``0 .. fillers-1``, then A, B, the answer "A first" and the answer "B first". With eight
    fillers A=8, B=9, "A first"=10, "B first"=11:

    >>> Precedence(fillers=8).solve(torch.tensor([[3, 8, 1, 9], [9, 0, 0, 8]])).tolist()
    [[10], [11]]

    A bag of tokens knows nothing about it: its ceiling is exactly one half. Shortest input: 2. The cheapest
    test of order-blindness, made for this project ("dog bites man" against "man bites dog").

    Args:
        fillers: filler symbols, at least 1.
    """

    def __init__(self, fillers: int = 8):
        self.fillers = require_symbols("fillers", fillers, 1)
        self.vocab_size = fillers + 4

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        inputs_BN = torch.randint(self.fillers, (batch_size, length), generator=generator)
        first_B = torch.randint(length, (batch_size,), generator=generator)
        step_B = torch.randint(1, length, (batch_size,), generator=generator)
        second_B = (first_B + step_B) % length
        rows = torch.arange(batch_size)
        inputs_BN[rows, first_B] = self.fillers
        inputs_BN[rows, second_B] = self.fillers + 1
        return inputs_BN, (self.fillers + 2 + (first_B > second_B).long())[:, None]

    def solve(self, inputs_BN: Tensor) -> Tensor:
        mark_a, mark_b = self.fillers, self.fillers + 1
        answers = []
        for row in inputs_BN.tolist():
            answers.append([self.fillers + 2 if row.index(mark_a) < row.index(mark_b) else self.fillers + 3])
        return torch.tensor(answers)

    def nearest_length(self, length: int) -> int | None:
        return length if length >= 2 else None

    def target_length(self, length: int) -> int:
        return 1

    def chance(self, length: int) -> float:
        return 0.5

    def bag_ceiling(self, length: int, prefix: bool = False) -> float:
        return 0.5


class First(Task):
    """Name the first symbol: 3 1 4 -> 3. Symbols are independent and uniform.

    >>> First().solve(torch.tensor([[3, 1, 4]])).tolist()
    [[3]]

    Source: Kazemnejad et al. 2023, arXiv:2305.19466, where an absolute position must be found without an
    encoding.

    Args:
        vocab_size: symbols, at least 2.
    """

    def __init__(self, vocab_size: int = 10):
        self.vocab_size = require_symbols("vocab_size", vocab_size, 2)

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        inputs_BN = torch.randint(self.vocab_size, (batch_size, length), generator=generator)
        return inputs_BN, inputs_BN[:, :1].clone()

    def solve(self, inputs_BN: Tensor) -> Tensor:
        return torch.tensor([[row[0]] for row in inputs_BN.tolist()])

    def target_length(self, length: int) -> int:
        return 1

    def chance(self, length: int) -> float:
        return 1 / self.vocab_size

    def bag_ceiling(self, length: int, prefix: bool = False) -> float:
        return mode_share(length, self.vocab_size)
