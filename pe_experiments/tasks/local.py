"""Local tasks: the answer depends on a few neighbouring tokens."""

from typing import Literal

import torch
from torch import Tensor

from pe_experiments.tasks.base import IGNORE, OneAnswer, Task
from pe_experiments.tasks.ceilings import mean_mode_share, mode_share
from pe_experiments.terminal.errors import at_least, one_of

Side = Literal["prefix", "suffix"]


class Lag(Task):
    """Name, at every token, the symbol that stood k tokens before it: with k=2, 3 1 4 1 5 -> . . 3 1 4.

    Targets without such a symbol are not scored (-100). A negative k looks ahead, which only an encoder can:

    >>> Lag(k=2).solve(torch.tensor([[3, 1, 4, 1, 5]])).tolist()
    [[-100, -100, 3, 1, 4]]
    >>> Lag(k=-2).solve(torch.tensor([[3, 1, 4, 1, 5]])).tolist()
    [[4, 1, 5, -100, -100]]

    Targets are predicted at the inputs (format ``aligned``): after a separator the symbol would be n + k
    tokens away and nothing would be local. Shortest input: abs(k) + 1. Made for this project, after the shift
    tasks of the probing literature.

    Args:
        k: distance in tokens, not 0; a negative k looks ahead.
        vocab_size: symbols, at least 2.
    """

    formats = ("aligned",)

    def __init__(self, k: int = 3, vocab_size: int = 10):
        if k == 0:
            raise ValueError("k=0 must be at least 1, or negative to look ahead")
        self.k = k
        self.shortest = abs(k) + 1
        self.vocab_size = at_least(2, "vocab_size", vocab_size)

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        inputs_BN = torch.randint(self.vocab_size, (batch_size, length), generator=generator)
        targets_BN = inputs_BN.roll(self.k, dims=-1)
        targets_BN[:, slice(self.k) if self.k > 0 else slice(self.k, None)] = IGNORE
        return inputs_BN, targets_BN

    def solve_row(self, row: list[int]) -> list[int]:
        return [row[t - self.k] if 0 <= t - self.k < len(row) else IGNORE for t in range(len(row))]

    def needed_indices(self, inputs_BN: Tensor) -> Tensor:
        last = inputs_BN.shape[1] - 1
        return (torch.arange(last + 1) - self.k).clamp(0, last).expand_as(inputs_BN)

    def bag_ceiling(self, length: int, prefix: bool = False) -> float:
        # The answer is one of the bag's symbols other than the one at the same position.
        if prefix:  # at token t a decoder has read t other tokens
            return mean_mode_share(self.k, length - 1, self.vocab_size) if self.k > 0 else 1 / self.vocab_size
        return mode_share(length - 1, self.vocab_size)


class NGramLookup(OneAnswer):
    """Which symbol follows these k? With k=2 and the key after a mark: 3 1 4 1 5 | 4 1 -> 5.

    The mark is the symbol after the others, here 6:

    >>> NGramLookup(k=2, symbols=6).solve(torch.tensor([[3, 1, 4, 1, 5, 6, 4, 1]])).tolist()
    [[5]]
    >>> NGramLookup(k=2, symbols=6, key="prefix").solve(torch.tensor([[4, 1, 6, 3, 1, 4, 1, 5]])).tolist()
    [[5]]

    The key is taken from a random position of the string; where it occurs more than once, its first
    occurrence counts. Symbols are independent and uniform. Shortest input: 2k + 2. Source: Jelassi et al.
    2024, arXiv:2402.01032 (lookup of an n-gram; with a suffix key the whole string must be kept until the key
    is known, with a prefix key the model can look for it).

    Args:
        k: length of the key, at least 1.
        symbols: number of symbols in string and key, at least 2.
        key: ``prefix`` or ``suffix``, before or after the string.
    """

    def __init__(self, k: int = 2, symbols: int = 10, key: Side = "suffix"):
        self.k = at_least(1, "k", k)
        self.symbols = self.answers = self.mark = at_least(2, "symbols", symbols)
        self.key = one_of(Side, "key", key)
        self.shortest = 2 * k + 2
        self.vocab_size = symbols + 1

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        size = length - self.k - 1
        string_BS = torch.randint(self.symbols, (batch_size, size), generator=generator)
        start_B = torch.randint(size - self.k, (batch_size,), generator=generator)
        windows_BPK = string_BS.unfold(1, self.k, 1)[:, :-1]
        key_BK = windows_BPK[torch.arange(batch_size), start_B]
        matches_BP = (windows_BPK == key_BK[:, None]).all(dim=-1)
        first_B1 = matches_BP.long().argmax(dim=1, keepdim=True)  # the first occurrence
        mark_B1 = torch.full((batch_size, 1), self.symbols)
        parts = [string_BS, mark_B1, key_BK]
        inputs_BN = torch.cat(parts if self.key == "suffix" else parts[::-1], dim=1)
        return inputs_BN, string_BS.gather(1, first_B1 + self.k)

    def solve_row(self, row: list[int]) -> list[int]:
        left = row[: row.index(self.symbols)]
        right = row[row.index(self.symbols) + 1 :]
        string, key = (left, right) if self.key == "suffix" else (right, left)
        for end in range(len(key), len(string)):
            if string[end - len(key) : end] == key:
                return [string[end]]
        return []  # an absent key has no answer
