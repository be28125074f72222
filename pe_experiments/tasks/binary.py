"""Arithmetic in bits, as in the suite of Delétang et al. 2022."""

import operator
from abc import abstractmethod
from collections.abc import Callable
from math import isqrt

import numpy as np
import torch
from torch import Tensor

from pe_experiments.tasks.base import PositionIds, Task
from pe_experiments.tasks.digits import TwoNumbers


class BinaryOperation(TwoNumbers):
    """Two positive binary numbers, least significant bit first, with an operator (2) between them.

    The place of the operator is uniform. Each number is uniform among the positive numbers that fit its bits,
    and may have leading zeros (at the right); the answer has none. The shortest input has 3 symbols; the
    published code fills lengths 1 and 2 with placeholders that do not follow this rule.
    """

    vocab_size = 3
    answers = base = 2
    mark = 2  # the operator
    shortest = 3
    combine_integers: Callable[[int, int], int]  # the operation on two integers

    @abstractmethod
    def combine(self, first_BD: Tensor, second_BD: Tensor) -> Tensor:
        """Return bits [B, D] of the result of two numbers given by their bits."""

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        split_B = torch.randint(1, length - 1, (batch_size,), generator=generator)
        first_BW = _positive_numbers(split_B, length - 2, generator)
        second_BW = _positive_numbers(length - 1 - split_B, length - 2, generator)
        inputs_BN = self.to_inputs(first_BW, second_BW, split_B)
        result_BD = self.combine(*self.operands(inputs_BN))
        return inputs_BN, self.to_targets(result_BD, self.target_length(length), forward=False)

    def solve_row(self, row: list[int]) -> list[int]:
        split = row.index(self.mark)
        parts = row[:split], row[split + 1 :]
        numbers = (sum(bit << i for i, bit in enumerate(bits)) for bits in parts)
        return [int(bit) for bit in reversed(f"{self.combine_integers(*numbers):b}")]

    def position_ids(self, inputs_BN: Tensor, targets_BM: Tensor) -> dict[str, PositionIds]:
        """Return ``abacus``: the index of a bit in its number."""
        index_1M = torch.arange(1, targets_BM.shape[1] + 1)[None]
        return {"abacus": PositionIds(self.significance(inputs_BN) + 1, index_1M)}


class BinaryAddition(BinaryOperation):
    """Add two binary numbers, least significant bit first: 001+01101 is 4 + 22 = 26 -> 01011.

    >>> BinaryAddition().solve(torch.tensor([[0, 0, 1, 2, 0, 1, 1, 0, 1]])).tolist()
    [[0, 1, 0, 1, 1, -100, -100, -100, -100, -100]]

    Both numbers are above 0 and may have leading zeros, the answer has none. Source: Delétang et al. 2022,
    arXiv:2207.02098 (trained to 40, evaluated to 500). As in the source, there are n+1 targets (the answer
    and its end mark, here EOS), which are scored up to that mark; unlike there, the zeros after the mark have
    no loss.
    """

    combine_integers = staticmethod(operator.add)

    def combine(self, first_BD: Tensor, second_BD: Tensor) -> Tensor:
        return self.propagate_carries(first_BD + second_BD)

    def target_length(self, length: int) -> int:
        return length + 1

    def position_ids(self, inputs_BN: Tensor, targets_BM: Tensor) -> dict[str, PositionIds]:
        """Return ``coupling`` (one id per place value) and ``abacus`` (index of a bit in its number)."""
        index_1M = torch.arange(2, targets_BM.shape[1] + 2)[None]
        coupling = PositionIds(self.significance(inputs_BN) + 2, index_1M, separator=1)
        return {"coupling": coupling, **super().position_ids(inputs_BN, targets_BM)}


class BinaryMultiplication(BinaryOperation):
    """Multiply two binary numbers, least significant bit first: 001*01101 is 4 * 22 = 88 -> 0001101.

    >>> BinaryMultiplication().solve(torch.tensor([[0, 0, 1, 2, 0, 1, 1, 0, 1]])).tolist()
    [[0, 0, 0, 1, 1, 0, 1, -100, -100]]

    Both numbers are above 0 and may have leading zeros, the answer has none. Source: Delétang et al. 2022,
    arXiv:2207.02098 (trained to 40, evaluated to 500). As in the source, there are n targets (the answer and
    its end mark, here EOS), which are scored up to that mark; unlike there, the zeros after the mark have no
    loss.
    """

    combine_integers = staticmethod(operator.mul)

    def combine(self, first_BD: Tensor, second_BD: Tensor) -> Tensor:
        size = 2 * first_BD.shape[1]  # multiply as polynomials by FFT, then propagate the carries
        spectrum = torch.fft.rfft(first_BD.double(), size) * torch.fft.rfft(second_BD.double(), size)
        sums_BD = torch.fft.irfft(spectrum, size).round().long()[:, : first_BD.shape[1]]
        return self.propagate_carries(sums_BD)

    def chance(self, length: int) -> float:
        return 0.5 if length > 3 else 1.0


class Sqrt(Task):
    """The square root of a binary number, rounded down, most significant bit first: 100101 is 37 -> 6, 110.

    >>> Sqrt().solve(torch.tensor([[1, 0, 0, 1, 0, 1]])).tolist()
    [[1, 1, 0]]

    Numbers are uniform from 1 to 2^n - 1, with leading zeros; the answer has ceil(n/2) bits. Source:
    Delétang et al. 2022, arXiv:2207.02098 (trained to 40, evaluated to 500).
    """

    vocab_size = 2

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        inputs_BN = _positive_numbers(torch.full((batch_size,), length), length, generator)
        weights = np.array([1 << bit for bit in reversed(range(length))], dtype=object)
        roots = np.frompyfunc(isqrt, 1, 1)(inputs_BN.numpy() @ weights)  # integers of any size
        bits = [(roots >> bit) & 1 for bit in reversed(range(self.target_length(length)))]
        return inputs_BN, torch.from_numpy(np.stack(bits, axis=1).astype(np.int64))

    def solve_row(self, row: list[int]) -> list[int]:
        number = int("".join(map(str, row)), 2)
        root = 0
        for bit in reversed(range(self.target_length(len(row)))):  # bit by bit, as on paper
            if (root + (1 << bit)) ** 2 <= number:
                root += 1 << bit
        return [int(bit) for bit in f"{root:b}".zfill(self.target_length(len(row)))]

    def target_length(self, length: int) -> int:
        return (length + 1) // 2

    def chance(self, length: int) -> float:
        return 0.5 if length > 2 else 1.0


def _positive_numbers(lengths_B: Tensor, width: int, generator: torch.Generator) -> Tensor:
    """Return bits [B, width] of numbers that are uniform from 1 to 2^length - 1; later bits are 0."""
    bits_BD = torch.zeros(len(lengths_B), width, dtype=torch.long)
    while (empty_B := ~bits_BD.any(dim=1)).any():
        random_bits = torch.randint(2, (int(empty_B.sum()), width), generator=generator)
        bits_BD[empty_B] = random_bits * (torch.arange(width) < lengths_B[empty_B, None])
    return bits_BD
