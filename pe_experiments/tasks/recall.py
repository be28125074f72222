"""Recall: name the symbol that followed an earlier occurrence of a queried symbol."""

import torch
from torch import Tensor

from pe_experiments.tasks.base import IGNORE, OneAnswer, Task, distinct_symbols
from pe_experiments.tasks.ceilings import mean_mode_share, mode_share
from pe_experiments.terminal.argument_checks import at_least


class AssociativeRecall(Task):
    """Pairs of a key and its value, then a key: what was its value? a 1 b 4 c 1 | b -> 4.

    Symbols: keys ``0 .. keys-1``, then the values. With three keys and values 3, 4, 5:

    >>> AssociativeRecall(keys=3, values=3).solve(torch.tensor([[0, 4, 2, 3, 1, 4, 2]])).tolist()
    [[3]]
    >>> AssociativeRecall(keys=3, values=3, queries=2).solve(torch.tensor([[0, 4, 2, 3, 2, 0]])).tolist()
    [[3, 4]]

    Keys are distinct, values independent and uniform, queried keys distinct and random. An input of p pairs
    has 2p + ``queries`` symbols; p is at least ``queries`` and at most ``keys``. Sources: Ba et al. 2016,
    arXiv:1610.06258 (one query); with more than one, multi-query associative recall of Arora et al. 2023,
    arXiv:2312.04927 (64 to 512 tokens).

    Args:
        keys: key symbols, at least 2.
        values: value symbols, at least 2.
        queries: number of queried keys, at least 1.
    """

    step = 2

    def __init__(self, keys: int = 80, values: int = 10, queries: int = 1):
        self.keys = at_least(2, "keys", keys)
        self.values = self.answers = at_least(2, "values", values)
        self.queries = at_least(1, "queries", queries)
        if queries > keys:
            raise ValueError(f"queries={queries} must be at most keys={keys}")
        self.shortest = 3 * queries
        self.longest = 2 * keys + queries
        self.vocab_size = keys + values

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        pairs = self._pairs(length)
        keys_BP = distinct_symbols(self.keys, pairs, batch_size, generator)
        values_BP = torch.randint(self.keys, self.vocab_size, (batch_size, pairs), generator=generator)
        queried_BQ = distinct_symbols(pairs, self.queries, batch_size, generator)
        pairs_B2P = torch.stack([keys_BP, values_BP], dim=-1).flatten(1)
        return torch.cat([pairs_B2P, keys_BP.gather(1, queried_BQ)], dim=1), values_BP.gather(1, queried_BQ)

    def solve_row(self, row: list[int]) -> list[int]:
        pairs = row[: -self.queries]
        queried_keys = row[-self.queries :]
        values = dict(zip(pairs[::2], pairs[1::2], strict=True))
        return [values.get(key, IGNORE) for key in queried_keys]

    def target_length(self, length: int) -> int:
        return self.queries

    def depth(self, inputs_BN: Tensor) -> Tensor | None:
        if self.queries > 1:
            return None
        pair_B = (inputs_BN[:, :-1:2] == inputs_BN[:, -1:]).long().argmax(dim=1)
        return pair_B / max(1, self._pairs(inputs_BN.shape[1]) - 1)

    def bag_ceiling(self, length: int, prefix: bool = False) -> float:
        pairs = self._pairs(length)  # the bag tells which keys are queried, not their values
        if prefix:
            return mean_mode_share(pairs - self.queries + 1, pairs, self.values)
        return mode_share(pairs, self.values)

    def _pairs(self, length: int) -> int:
        """Return the number of pairs in an input of this length."""
        return (length - self.queries) // 2


class Induction(OneAnswer):
    """Which symbol followed the trigger at its first occurrence? 3 1 ! 4 1 5 ! -> 4.

    The trigger is the symbol after the fillers, here 6. It occurs at the end and once before, at random but
    never next to the end:

    >>> Induction(fillers=6).solve(torch.tensor([[3, 1, 6, 4, 1, 5, 6]])).tolist()
    [[4]]

    Fillers are independent and uniform. Shortest input: 3. Source: the induction heads task of Gu and Dao
    2023, arXiv:2312.00752 (16 symbols, trained at 256, evaluated from 64 to 1,048,576), after Olsson et al.
    2022, arXiv:2209.11895.

    Args:
        fillers: filler symbols, at least 2.
    """

    shortest = 3

    def __init__(self, fillers: int = 15):
        self.fillers = self.answers = at_least(2, "fillers", fillers)
        self.vocab_size = fillers + 1

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        inputs_BN = torch.randint(self.fillers, (batch_size, length), generator=generator)
        trigger_B1 = torch.randint(length - 2, (batch_size, 1), generator=generator)
        inputs_BN = inputs_BN.scatter(1, trigger_B1, self.fillers)
        inputs_BN[:, -1] = self.fillers
        return inputs_BN, inputs_BN.gather(1, trigger_B1 + 1)

    def solve_row(self, row: list[int]) -> list[int]:
        return [row[row.index(self.fillers) + 1]]

    def depth(self, inputs_BN: Tensor) -> Tensor:
        trigger_B = (inputs_BN == self.fillers).long().argmax(dim=1)
        return trigger_B / max(1, inputs_BN.shape[1] - 3)

    def bag_ceiling(self, length: int, prefix: bool = False) -> float:
        return mode_share(length - 2, self.fillers)
