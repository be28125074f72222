"""Copying: the answer is the input in some order, or a part of it."""

import torch
from torch import Tensor

from pe_experiments.tasks.base import IGNORE, OneAnswer, PositionIds, Task, distinct_symbols
from pe_experiments.tasks.ceilings import bag_share
from pe_experiments.terminal.errors import at_least


class Copy(Task):
    """Repeat the input: 3 1 4 -> 3 1 4. Symbols are independent and uniform.

    >>> Copy().solve(torch.tensor([[3, 1, 4]])).tolist()
    [[3, 1, 4]]

    With ``vocab_size=2`` symbols repeat so often that a prefix no longer identifies a position:
    `repeat_copy` (Huang et al. 2024, arXiv:2410.02140: trained to 50, evaluated to 150). Copying symbols:
    Kazemnejad et al. 2023, arXiv:2305.19466 (100 symbols, trained to 20, evaluated to 40).

    Args:
        vocab_size: symbols, at least 2.
    """

    def __init__(self, vocab_size: int = 10):
        self.vocab_size = at_least(2, "vocab_size", vocab_size)

    def source_indices(self, length: int) -> Tensor:
        """Return the index of the input symbol that each target repeats, [M]; subclasses override it."""
        return torch.arange(length)

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        inputs_BN = torch.randint(self.vocab_size, (batch_size, length), generator=generator)
        return inputs_BN, inputs_BN[:, self.source_indices(length)]

    def solve_row(self, row: list[int]) -> list[int]:
        return row

    def needed_indices(self, inputs_BN: Tensor) -> Tensor:
        return self.source_indices(inputs_BN.shape[1]).expand(len(inputs_BN), -1)

    def bag_ceiling(self, length: int, prefix: bool = False) -> float:
        return bag_share(length, length, self.vocab_size, prefix)

    def position_ids(self, inputs_BN: Tensor, targets_BM: Tensor) -> dict[str, PositionIds]:
        """Return ``coupling``: a target shares the id of its source symbol; the separator has id 1."""
        length = inputs_BN.shape[1]
        ids_1N = torch.arange(2, length + 2)[None]
        return {"coupling": PositionIds(ids_1N, ids_1N[:, self.source_indices(length)], separator=1)}


class SelectiveCopy(Task):
    """Repeat the symbols that stand among blanks, in their order: _ 3 _ _ 1 _ -> 3 1.

    Symbols are ``0 .. vocab_size-1``, the blank is ``vocab_size``:

    >>> SelectiveCopy(vocab_size=4, every=3).solve(torch.tensor([[4, 3, 4, 4, 1, 4]])).tolist()
    [[3, 1]]

    One symbol for ``every`` places, at least one in all, stands at random places. Symbols are independent and
    uniform.
    Source: MAD of Poli et al. 2024, arXiv:2403.17844 (16 symbols to copy out of 256 places).

    Args:
        vocab_size: symbols to copy, at least 2.
        every: places for each symbol, at least 1.
    """

    def __init__(self, vocab_size: int = 10, every: int = 4):
        self.blank = self.answers = at_least(2, "vocab_size", vocab_size)
        self.every = at_least(1, "every", every)
        self.vocab_size = vocab_size + 1

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        copied = self.target_length(length)
        places_BM = distinct_symbols(length, copied, batch_size, generator).sort(dim=1).values
        targets_BM = torch.randint(self.blank, (batch_size, copied), generator=generator)
        blanks_BN = torch.full((batch_size, length), self.blank)
        return blanks_BN.scatter(1, places_BM, targets_BM), targets_BM

    def solve_row(self, row: list[int]) -> list[int]:
        return [symbol for symbol in row if symbol != self.blank]

    def target_length(self, length: int) -> int:
        return max(1, length // self.every)

    def needed_indices(self, inputs_BN: Tensor) -> Tensor:
        is_blank_BN = inputs_BN == self.blank
        return is_blank_BN.long().argsort(dim=1, stable=True)[:, : self.target_length(inputs_BN.shape[1])]

    def bag_ceiling(self, length: int, prefix: bool = False) -> float:
        copied = self.target_length(length)
        return bag_share(copied, copied, self.blank, prefix)


class Reverse(Copy):
    """Repeat the input backwards: 3 1 4 -> 4 1 3. Symbols are independent and uniform.

    >>> Reverse().solve(torch.tensor([[3, 1, 4]])).tolist()
    [[4, 1, 3]]

    Sources: Delétang et al. 2022, arXiv:2207.02098 (V=2, trained to 40, evaluated to 500); Kazemnejad et al.
    2023, arXiv:2305.19466 (100 symbols, trained to 20, evaluated to 40).
    """

    def source_indices(self, length: int) -> Tensor:
        return torch.arange(length).flip(0)

    def solve_row(self, row: list[int]) -> list[int]:
        return row[::-1]


class Duplicate(Copy):
    """Repeat the input twice: 1 0 1 -> 1 0 1 1 0 1. Symbols are independent and uniform.

    >>> Duplicate().solve(torch.tensor([[1, 0, 1]])).tolist()
    [[1, 0, 1, 1, 0, 1]]

    Source: Delétang et al. 2022, arXiv:2207.02098 (duplicate string; V=2, trained to 40, evaluated to 500).

    Args:
        vocab_size: symbols, at least 2.
    """

    def __init__(self, vocab_size: int = 2):
        super().__init__(vocab_size)

    def source_indices(self, length: int) -> Tensor:
        return torch.arange(length).repeat(2)

    def solve_row(self, row: list[int]) -> list[int]:
        return row + row

    def target_length(self, length: int) -> int:
        return 2 * length

    def bag_ceiling(self, length: int, prefix: bool = False) -> float:
        first = super().bag_ceiling(length, prefix)
        return (first + 1) / 2 if prefix else first  # the second half repeats targets already seen


class OddsFirst(Copy):
    """First the 1st, 3rd, 5th, ... symbol, then the others: 0 0 1 1 0 1 -> 0 1 0 0 1 1.

    >>> OddsFirst().solve(torch.tensor([[0, 0, 1, 1, 0, 1]])).tolist()
    [[0, 1, 0, 0, 1, 1]]

    Symbols are independent and uniform. Source: Delétang et al. 2022, arXiv:2207.02098 (V=2, trained to 40,
    evaluated to 500). The paper, and the docstring of the published code, describe this task; the code itself
    puts the 2nd, 4th, ... symbol first.

    Args:
        vocab_size: symbols, at least 2.
    """

    def __init__(self, vocab_size: int = 2):
        super().__init__(vocab_size)

    def source_indices(self, length: int) -> Tensor:
        return torch.cat([torch.arange(0, length, 2), torch.arange(1, length, 2)])

    def solve_row(self, row: list[int]) -> list[int]:
        return row[::2] + row[1::2]


class Swap(Copy):
    """Repeat the input with neighbours exchanged: 3 1 4 1 5 -> 1 3 1 4 5. At odd lengths the last one stays.

    >>> Swap().solve(torch.tensor([[3, 1, 4, 1, 5]])).tolist()
    [[1, 3, 1, 4, 5]]

    Symbols are independent and uniform. Made for this project: copying at an offset that is not constant.
    """

    def source_indices(self, length: int) -> Tensor:
        pairs = torch.arange(length - length % 2).view(-1, 2).flip(1).flatten()
        return torch.cat([pairs, torch.arange(length - length % 2, length)])

    def solve_row(self, row: list[int]) -> list[int]:
        for i in range(0, len(row) - 1, 2):
            row[i], row[i + 1] = row[i + 1], row[i]
        return row


class Rotate(Copy):
    """Repeat the input with its first k symbols moved to the end: with k=2, 3 1 4 1 5 -> 4 1 5 3 1.

    >>> Rotate(k=2).solve(torch.tensor([[3, 1, 4, 1, 5]])).tolist()
    [[4, 1, 5, 3, 1]]

    Symbols are independent and uniform. k counts modulo the length. Made for this project: copying with one
    jump.

    Args:
        k: symbols that move, at least 1.
        vocab_size: symbols, at least 2.
    """

    def __init__(self, k: int = 1, vocab_size: int = 10):
        super().__init__(vocab_size)
        self.k = at_least(1, "k", k)

    def source_indices(self, length: int) -> Tensor:
        return torch.arange(length).roll(-self.k)

    def solve_row(self, row: list[int]) -> list[int]:
        for _ in range(self.k):
            row = row[1:] + row[:1]
        return row


class UniqueCopy(Copy):
    """Repeat an input whose symbols are all different: 7 2 5 -> 7 2 5.

    >>> UniqueCopy().solve(torch.tensor([[7, 2, 5]])).tolist()
    [[7, 2, 5]]

    The symbol just written determines the next one to read. Inputs are at most ``vocab_size`` long.
    Source: Huang et al. 2024, arXiv:2410.02140 (150 symbols, trained to 50, evaluated to 150).

    Args:
        vocab_size: symbols, at least 2; also the longest input.
    """

    def __init__(self, vocab_size: int = 80):
        super().__init__(vocab_size)
        self.longest = vocab_size

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        inputs_BN = distinct_symbols(self.vocab_size, length, batch_size, generator)
        return inputs_BN, inputs_BN.clone()

    def bag_ceiling(self, length: int, prefix: bool = False) -> float:
        if prefix:  # guess one of the symbols that remain
            return sum(1 / remaining for remaining in range(1, length + 1)) / length
        return 1 / length


class MissingDuplicate(OneAnswer):
    """A string twice, with one bit masked (2): which bit is it? 1 0 1 1 2 1 -> 0.

    >>> MissingDuplicate().solve(torch.tensor([[1, 0, 1, 1, 2, 1], [0, 1, 1, 0, 1, 2]])).tolist()
    [[0], [1]]

    Bits are independent and uniform, the masked position is uniform over both copies; at odd lengths a 3
    follows at the end. Every bit but the masked one occurs twice, so the answer is the parity of the ones: a
    bag of tokens suffices, and the task, although about copying, is a control. Source: Delétang et al. 2022,
    arXiv:2207.02098 (missing duplicate string; trained to 40, evaluated to 500). Shortest input: 2; the
    published code fills length 1 with a placeholder that follows no rule.
    """

    vocab_size = 4
    answers = 2
    order_sensitive = False
    shortest = 2

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        half_BH = torch.randint(2, (batch_size, length // 2), generator=generator)
        twice_BN = torch.cat([half_BH, half_BH, half_BH.new_full((batch_size, length % 2), 3)], dim=1)
        masked_B1 = torch.randint(length - length % 2, (batch_size, 1), generator=generator)
        targets_B1 = twice_BN.gather(1, masked_B1)
        return twice_BN.scatter(1, masked_B1, 2), targets_B1

    def solve_row(self, row: list[int]) -> list[int]:
        return [row.count(1) % 2]


class Deduplicate(Task):
    """Repeat each distinct symbol once, in the order of first appearance: 3 1 3 4 1 -> 3 1 4.

    >>> Deduplicate(vocab_size=5).solve(torch.tensor([[3, 1, 3, 4, 1]])).tolist()
    [[3, 1, 4, -100, -100]]

    Symbols are independent and uniform. Made for this project: only symbols not yet copied are copied.

    Args:
        vocab_size: symbols, at least 2.
    """

    def __init__(self, vocab_size: int = 10):
        self.vocab_size = at_least(2, "vocab_size", vocab_size)

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        inputs_BN = torch.randint(self.vocab_size, (batch_size, length), generator=generator)
        index_BN = torch.arange(length).expand_as(inputs_BN)
        absent_BV = torch.full((len(inputs_BN), self.vocab_size), length)
        first_BV = absent_BV.scatter_reduce(1, inputs_BN, index_BN, "amin")
        order_BM = first_BV.argsort(dim=1)[:, : self.target_length(length)]
        return inputs_BN, order_BM.where(first_BV.gather(1, order_BM) < length, IGNORE)

    def solve_row(self, row: list[int]) -> list[int]:
        return list(dict.fromkeys(row))

    def target_length(self, length: int) -> int:
        return min(length, self.vocab_size)
