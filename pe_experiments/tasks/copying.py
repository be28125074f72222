"""Copying: the answer is the input in some order."""

import torch
from torch import Tensor

from pe_experiments.tasks.base import Task, require_symbols
from pe_experiments.tasks.ceilings import mean_mode_share, mode_share


class Copy(Task):
    """Repeat the input: 3 1 4 -> 3 1 4. Symbols are independent and uniform.

    >>> Copy().solve(torch.tensor([[3, 1, 4]])).tolist()
    [[3, 1, 4]]

    With ``vocab_size=2`` symbols repeat so often that matching a prefix no longer says where one is:
    `repeat_copy` (Huang et al. 2024, arXiv:2410.02140: trained to 50, evaluated to 150). Copying digits:
    Kazemnejad et al. 2023, arXiv:2305.19466 (trained to 20, evaluated to 40).

    Args:
        vocab_size: symbols, at least 2.
    """

    def __init__(self, vocab_size: int = 10):
        self.vocab_size = require_symbols("vocab_size", vocab_size, 2)

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        inputs_BN = torch.randint(self.vocab_size, (batch_size, length), generator=generator)
        return inputs_BN, inputs_BN.clone()

    def solve(self, inputs_BN: Tensor) -> Tensor:
        return torch.tensor([list(row) for row in inputs_BN.tolist()])

    def chance(self, length: int) -> float:
        return 1 / self.vocab_size

    def bag_ceiling(self, length: int, prefix: bool = False) -> float:
        if prefix:
            return mean_mode_share(1, length, self.vocab_size)
        return mode_share(length, self.vocab_size)


class Reverse(Copy):
    """Repeat the input backwards: 3 1 4 -> 4 1 3. Symbols are independent and uniform.

    >>> Reverse().solve(torch.tensor([[3, 1, 4]])).tolist()
    [[4, 1, 3]]

    Source: Delétang et al. 2022, arXiv:2207.02098 (V=2, trained to 40, evaluated to 500).

    Args:
        vocab_size: symbols, at least 2.
    """

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        inputs_BN, _ = super().sample(length, batch_size, generator)
        return inputs_BN, inputs_BN.flip(-1)

    def solve(self, inputs_BN: Tensor) -> Tensor:
        return torch.tensor([list(reversed(row)) for row in inputs_BN.tolist()])


class UniqueCopy(Task):
    """Repeat an input whose symbols are all different: 7 2 5 -> 7 2 5.

    >>> UniqueCopy().solve(torch.tensor([[7, 2, 5]])).tolist()
    [[7, 2, 5]]

    The symbol just written says where to read next. No length beyond the number of symbols exists.
    Source: Huang et al. 2024, arXiv:2410.02140 (150 symbols, trained to 50, evaluated to 150).

    Args:
        vocab_size: symbols, at least 2; also the longest input.
    """

    def __init__(self, vocab_size: int = 80):
        self.vocab_size = require_symbols("vocab_size", vocab_size, 2)

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        keys_BV = torch.rand(batch_size, self.vocab_size, generator=generator, dtype=torch.float64)
        inputs_BN = keys_BV.argsort(dim=-1)[:, :length].contiguous()
        return inputs_BN, inputs_BN.clone()

    def solve(self, inputs_BN: Tensor) -> Tensor:
        return torch.tensor([list(row) for row in inputs_BN.tolist()])

    def nearest_length(self, length: int) -> int | None:
        return min(length, self.vocab_size) if length >= 1 else None

    def chance(self, length: int) -> float:
        return 1 / self.vocab_size

    def bag_ceiling(self, length: int, prefix: bool = False) -> float:
        if prefix:  # one of the symbols that are left
            return sum(1 / left for left in range(1, length + 1)) / length
        return 1 / length
