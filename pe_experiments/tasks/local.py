"""Local tasks: the answer at a token depends on its near past, so a bias towards recent tokens helps."""

import torch
from torch import Tensor

from pe_experiments.tasks.base import IGNORE, Task, require_symbols
from pe_experiments.tasks.ceilings import mean_mode_share, mode_share


class Lag(Task):
    """Name, at every token, the symbol that stood k tokens before it: with k=2, 3 1 4 1 5 -> . . 3 1 4.

    The first k targets are not scored (-100):

    >>> Lag(k=2).solve(torch.tensor([[3, 1, 4, 1, 5]])).tolist()
    [[-100, -100, 3, 1, 4]]

    Read out in place (format ``aligned``): behind a separator the symbol would be n + k tokens away and
    nothing would be local. Shortest input: k + 1. Made for this project, after the shift tasks of the probing
    literature.

    Args:
        k: distance in tokens, at least 1.
        vocab_size: symbols, at least 2.
    """

    formats = ("aligned",)

    def __init__(self, k: int = 3, vocab_size: int = 10):
        self.k = require_symbols("k", k, 1)
        self.vocab_size = require_symbols("vocab_size", vocab_size, 2)

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        inputs_BN = torch.randint(self.vocab_size, (batch_size, length), generator=generator)
        targets_BN = inputs_BN.roll(self.k, dims=-1)
        targets_BN[:, : self.k] = IGNORE
        return inputs_BN, targets_BN

    def solve(self, inputs_BN: Tensor) -> Tensor:
        rows = inputs_BN.tolist()
        return torch.tensor(
            [[row[t - self.k] if t >= self.k else IGNORE for t in range(len(row))] for row in rows]
        )

    def nearest_length(self, length: int) -> int | None:
        return length if length > self.k else None

    def chance(self, length: int) -> float:
        return 1 / self.vocab_size

    def bag_ceiling(self, length: int, prefix: bool = False) -> float:
        if prefix:  # at token t a decoder has the bag of t + 1 tokens
            return mean_mode_share(self.k + 1, length, self.vocab_size)
        return mode_share(length, self.vocab_size)
