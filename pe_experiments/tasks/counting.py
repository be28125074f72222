"""Counting: controls, which a bag of tokens solves, and `InterleavedMajority`, which counts by position."""

from functools import reduce
from math import comb

import numpy as np
import torch
from torch import Tensor

from pe_experiments.tasks.base import IGNORE, OneAnswer, Task
from pe_experiments.tasks.ceilings import coin_flips, mean_mode_share, mean_signs
from pe_experiments.terminal.errors import at_least


class Majority(OneAnswer):
    """Which bit is more frequent? 1 0 1 -> "ones" (symbol 3; "zeros" is 2). There are no ties.

    >>> Majority().solve(torch.tensor([[1, 0, 1], [0, 0, 1]])).tolist()
    [[3], [2]]

    The number of ones is uniform (independent bits would put every long input near a tie), their positions
    random. A control: order carries no information. Source: Huang et al. 2024, arXiv:2410.02140 (trained to
    50).
    """

    vocab_size = 4
    answers = 2
    order_sensitive = False

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        ones_B = _ones_without_ties((batch_size,), length, generator)
        return _random_bits(ones_B, length, generator), (2 + (2 * ones_B > length).long())[:, None]

    def solve_row(self, row: list[int]) -> list[int]:
        return [3 if row.count(1) > row.count(0) else 2]


class Count(Task):
    """How many ones are there, in decimal digits? Digits d are the symbols 2 + d: 1 0 1 1 -> "3" (5).

    Twelve ones are written "1", "2", without leading zeros:

    >>> Count().solve(torch.tensor([[1, 0, 1, 1], [0, 0, 0, 0]])).tolist()
    [[5], [2]]
    >>> Count().solve(torch.ones(1, 12, dtype=torch.long)).tolist()
    [[3, 4]]

    The number of ones is uniform, their positions random. A control: order carries no information. Made for
    this project, after the counting tasks of the length-generalisation literature.
    """

    vocab_size = 12
    order_sensitive = False

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        ones_B = torch.randint(length + 1, (batch_size,), generator=generator)
        powers_M = 10 ** torch.arange(self.target_length(length))
        width_B = (ones_B[:, None] >= powers_M).sum(dim=1).clamp(min=1)
        power_BM = width_B[:, None] - 1 - torch.arange(len(powers_M))
        digits_BM = ones_B[:, None] // powers_M[power_BM.clamp(min=0)] % 10
        return _random_bits(ones_B, length, generator), (2 + digits_BM).where(power_BM >= 0, IGNORE)

    def solve_row(self, row: list[int]) -> list[int]:
        return [2 + int(digit) for digit in str(row.count(1))]

    def target_length(self, length: int) -> int:
        return len(str(length))

    def chance(self, length: int) -> float:
        return 1 / min(length + 1, 10)

    def input_blind(self, length: int) -> float:
        # Guess the most frequent digit at each place of the numbers 0 .. length.
        numbers = [str(ones) for ones in range(length + 1)]
        correct = 0
        total = 0
        for place in range(len(numbers[-1])):
            digits = [number[place] for number in numbers if len(number) > place]
            correct += max(digits.count(digit) for digit in set(digits))
            total += len(digits)
        return correct / total


class InterleavedMajority(Task):
    """Three majorities at once, of every third bit: 1 0 0, 1 1 0, 0 1 0 -> "ones" "ones" "zeros" (3 3 2).

    >>> InterleavedMajority().solve(torch.tensor([[1, 0, 0, 1, 1, 0, 0, 1, 0]])).tolist()
    [[3, 3, 2]]

    In each residue class the number of ones is uniform without ties, their positions random. Lengths are
    multiples of the period. The task requires counting by position. Source: Huang et al. 2024,
    arXiv:2410.02140 (period 3, trained to 50, evaluated to 150).

    Args:
        period: residue classes, at least 2.
    """

    vocab_size = 4
    answers = 2

    def __init__(self, period: int = 3):
        self.period = self.shortest = self.step = at_least(2, "period", period)

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        size = length // self.period
        ones_BP = _ones_without_ties((batch_size, self.period), size, generator)
        bits_BPS = _random_bits(ones_BP.flatten(), size, generator).view(batch_size, self.period, size)
        return bits_BPS.transpose(1, 2).flatten(1), 2 + (2 * ones_BP > size).long()

    def solve_row(self, row: list[int]) -> list[int]:
        classes = [row[start :: self.period] for start in range(self.period)]
        return [3 if bits.count(1) > bits.count(0) else 2 for bits in classes]

    def target_length(self, length: int) -> int:
        return self.period

    def bag_ceiling(self, length: int, prefix: bool = False) -> float:
        size = length // self.period
        ones = np.arange(size + 1)
        is_few = (2 * ones < size).astype(float)
        is_many = (2 * ones > size).astype(float)
        untied = (is_few + is_many).sum()
        few = is_few / untied
        many = is_many / untied
        # A decoder has seen 0, 1, ... other answers. Without them all classes are equivalent.
        numbers_known = range(self.period if prefix else 1)
        return float(np.mean([self._class_ceiling(few, many, known) for known in numbers_known]))

    def _class_ceiling(self, few: np.ndarray, many: np.ndarray, known: int) -> float:
        """Return the ceiling of one class given the answers of ``known`` other classes.

        Only the number of "ones" among these answers matters, because the classes are exchangeable.

        Args:
            few: P(number of ones in a class, answer "zeros").
            many: P(number of ones in a class, answer "ones").
            known: number of other classes whose answers are known.
        """
        unknown = [few + many] * (self.period - 1 - known)
        total = 0.0
        for ones in range(known + 1):
            others = [many] * ones + [few] * (known - ones) + unknown
            sums = reduce(np.convolve, others)  # P(ones in the other classes, the known answers)
            total += comb(known, ones) * np.maximum(np.convolve(sums, few), np.convolve(sums, many)).sum()
        return float(total)


class Parity(Task):
    """Is the number of ones even or odd? 1 0 1 1 -> "odd" (3); "even" is 2.

    >>> Parity().solve(torch.tensor([[1, 0, 1, 1], [0, 1, 1, 0]])).tolist()
    [[3], [2]]

    With a scratchpad the answer is the parity of the first bit, of the first two, and so on:

    >>> Parity(scratchpad=True).solve(torch.tensor([[1, 0, 1, 1]])).tolist()
    [[3, 3, 2, 3]]

    With hints an index stands before each bit and each parity of the scratchpad. Indices are consecutive from
    a random start, so that short inputs show the indices of long ones. With four hints, symbols 4 to 7:

    >>> Parity(scratchpad=True, hints=4).solve(torch.tensor([[5, 1, 6, 0, 7, 1]])).tolist()
    [[5, 3, 6, 3, 7, 2]]

    Bits are independent and uniform. Without a scratchpad this is a control: order carries no information.
    With hints an input of n bits has 2n symbols, and n is at most ``hints``. Sources: Delétang et al. 2022,
    arXiv:2207.02098 (parity check; trained to 40, evaluated to 500), whose classes 0 and 1 are 2 and 3 here;
    Kazemnejad et al. 2023, arXiv:2305.19466 (trained to 8, evaluated to 16). Scratchpad: Anil et al. 2022,
    arXiv:2207.04901, as in the released code of Cho et al. 2024, arXiv:2405.20671. Hints: Zhou et al. 2023,
    arXiv:2310.16028, in the form of Cho et al.'s code for addition; Zhou et al. write a parity only where it
    changes.

    Args:
        scratchpad: whether the answer spells out the parity after each bit.
        hints: number of indices; 0 means no hints.
    """

    answers = 2

    def __init__(self, scratchpad: bool = False, hints: int = 0):
        self.scratchpad = self.order_sensitive = scratchpad
        self.hints = at_least(0, "hints", hints)
        self.first_hint = 4
        self.vocab_size = self.first_hint + hints
        if hints:
            self.shortest = self.step = 2
            self.longest = 2 * hints
        if scratchpad:
            self.answers = 2 + hints

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        bits = length // 2 if self.hints else length
        bits_BN = torch.randint(2, (batch_size, bits), generator=generator)
        if self.scratchpad:
            parities_BM = 2 + bits_BN.cumsum(dim=1) % 2
        else:
            parities_BM = 2 + bits_BN.sum(dim=1, keepdim=True) % 2
        if not self.hints:
            return bits_BN, parities_BM
        start_B1 = torch.randint(self.hints - bits + 1, (batch_size, 1), generator=generator)
        hints_BN = self.first_hint + start_B1 + torch.arange(bits)
        inputs_BN = torch.stack([hints_BN, bits_BN], dim=-1).flatten(1)
        if not self.scratchpad:
            return inputs_BN, parities_BM
        return inputs_BN, torch.stack([hints_BN, parities_BM], dim=-1).flatten(1)

    def solve_row(self, row: list[int]) -> list[int]:
        if not self.scratchpad:
            return [2 + row.count(1) % 2]
        bits = [symbol for symbol in row if symbol < self.first_hint]
        parities = [2 + sum(bits[: end + 1]) % 2 for end in range(len(bits))]
        if not self.hints:
            return parities
        first = min(symbol for symbol in row if symbol >= self.first_hint)
        return [symbol for index, parity in enumerate(parities) for symbol in (first + index, parity)]

    def target_length(self, length: int) -> int:
        return length if self.scratchpad else 1

    def bag_ceiling(self, length: int, prefix: bool = False) -> float:
        if not self.scratchpad:
            return 1.0
        bits = length // 2 if self.hints else length
        if prefix:  # earlier parities tell the earlier bits, so a bag of the later ones is left
            share = mean_mode_share(1, bits, 2)
        else:
            chance_of_count = coin_flips(bits)
            signs = [chance_of_count @ np.abs(mean_signs(bits, first)) for first in range(1, bits + 1)]
            share = float(1 + np.mean(signs)) / 2
        return (1 + share) / 2 if self.hints else share  # the bag tells the hints


class CycleNavigation(OneAnswer):
    """In which state on a circle of five does this walk from state 0 end? Back (0), stay (1), forward (2).

    State s is the symbol 3 + s. Forward, back, stay, back, back ends at -2, which is state 3:

    >>> CycleNavigation().solve(torch.tensor([[2, 0, 1, 0, 0], [2, 2, 2, 0, 1]])).tolist()
    [[6], [5]]

    Steps are independent and uniform. A control: order carries no information. Source: Delétang et al. 2022,
    arXiv:2207.02098 (trained to 40, evaluated to 500).

    Args:
        states: number of states on the circle, at least 2.
    """

    order_sensitive = False

    def __init__(self, states: int = 5):
        self.states = at_least(2, "states", states)
        self.vocab_size = 3 + states

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        inputs_BN = torch.randint(3, (batch_size, length), generator=generator)
        return inputs_BN, 3 + (inputs_BN - 1).sum(dim=1, keepdim=True) % self.states

    def solve_row(self, row: list[int]) -> list[int]:
        state = 0
        for step in row:
            state = (state + (-1, 0, 1)[step]) % self.states
        return [3 + state]

    def chance(self, length: int) -> float:
        return 1 / min(2 * length + 1, self.states)


class SumMod(OneAnswer):
    """The sum of these digits modulo ten: 3 1 9 -> 3.

    >>> SumMod().solve(torch.tensor([[3, 1, 9]])).tolist()
    [[3]]

    Digits are independent and uniform from 1 to 9, without 0 as in the source. A control: order carries
    no information. Source: Kazemnejad et al. 2023, arXiv:2305.19466 (summation; trained to 8, evaluated to
    16).

    Args:
        modulus: at least 3; inputs are 1 .. modulus-1.
    """

    order_sensitive = False

    def __init__(self, modulus: int = 10):
        self.vocab_size = at_least(3, "modulus", modulus)

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        inputs_BN = torch.randint(1, self.vocab_size, (batch_size, length), generator=generator)
        return inputs_BN, inputs_BN.sum(dim=1, keepdim=True) % self.vocab_size

    def solve_row(self, row: list[int]) -> list[int]:
        return [sum(row) % self.vocab_size]

    def chance(self, length: int) -> float:
        if length == 1:  # one digit alone is not 0
            return 1 / (self.vocab_size - 1)
        return 1 / self.vocab_size


def _ones_without_ties(shape: tuple[int, ...], length: int, generator: torch.Generator) -> Tensor:
    """Return uniform numbers of ones among ``length`` bits, never half of them."""
    counts = torch.tensor([count for count in range(length + 1) if 2 * count != length])
    return counts[torch.randint(len(counts), shape, generator=generator)]


def _random_bits(ones_B: Tensor, length: int, generator: torch.Generator) -> Tensor:
    """Return bits [B, length] with the given number of ones per row, at random positions."""
    order_BN = torch.rand(len(ones_B), length, generator=generator, dtype=torch.float64).argsort(dim=-1)
    return (order_BN < ones_B[:, None]).long()
