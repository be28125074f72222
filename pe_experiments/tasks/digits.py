"""Vectorised arithmetic on the digits of two numbers of any size, with a mark between them.

Shapes: B rows, N symbols, D = N - 1 digits (room for both numbers and their sum or product), M targets.
"""

import torch
from torch import Tensor

from pe_experiments.tasks.base import IGNORE, Task


class TwoNumbers(Task):
    """Base class of tasks whose input is two numbers, written in digits with a mark between them."""

    base: int  # of the digits
    mark: int  # symbol between the numbers
    forward = False  # whether the most significant digit stands first

    def to_inputs(self, first_BW: Tensor, second_BW: Tensor, split_B: Tensor) -> Tensor:
        """Return inputs [B, W + 2]: ``split_B`` digits, the mark, and ``W + 1 - split_B`` digits."""
        last = first_BW.shape[1] - 1
        index_N = torch.arange(last + 3)
        from_mark_BN = index_N - split_B[:, None]  # 0 at the mark
        first_BN = first_BW[:, index_N.clamp(max=last)]
        second_BN = second_BW.gather(1, (from_mark_BN - 1).clamp(0, last))
        return first_BN.where(from_mark_BN < 0, second_BN).where(from_mark_BN != 0, self.mark)

    def digit_index(self, inputs_BN: Tensor, from_end: bool) -> Tensor:
        """Return the index [B, N] of each digit from the first or last one of its number; -1 at the mark."""
        split_B1 = self._split(inputs_BN)
        index_N = torch.arange(inputs_BN.shape[1])
        if from_end:
            first_BN = split_B1 - 1 - index_N
            second_BN = index_N.flip(0).expand_as(inputs_BN)
        else:
            first_BN = index_N.expand_as(inputs_BN)
            second_BN = index_N - split_B1 - 1
        return first_BN.where(index_N < split_B1, second_BN).where(index_N != split_B1, -1)

    def significance(self, inputs_BN: Tensor) -> Tensor:
        """Return the place [B, N] of each digit, the power of the base: 0 for units; -1 at the mark."""
        return self.digit_index(inputs_BN, from_end=self.forward)

    def operands(self, inputs_BN: Tensor) -> tuple[Tensor, Tensor]:
        """Return digits [B, D] of the two numbers, units first, with zeros after the last digit."""
        split_B1 = self._split(inputs_BN)
        index_N = torch.arange(inputs_BN.shape[1])
        places_BN = self.significance(inputs_BN).clamp(min=0)
        first_BN = inputs_BN.where(index_N < split_B1, 0)
        second_BN = inputs_BN.where(index_N > split_B1, 0)
        zeros_BD = torch.zeros_like(inputs_BN[:, 1:])
        return zeros_BD.scatter_add(1, places_BN, first_BN), zeros_BD.scatter_add(1, places_BN, second_BN)

    def propagate_carries(self, sums_BD: Tensor) -> Tensor:
        """Return digits [B, D], units first, given the sum at each place, which may exceed the base."""
        digits_BD = torch.empty_like(sums_BD)
        carry_B = torch.zeros_like(sums_BD[:, 0])
        for place in range(sums_BD.shape[1]):
            total_B = sums_BD[:, place] + carry_B
            digits_BD[:, place] = total_B % self.base
            carry_B = total_B // self.base
        assert not carry_B.any(), "the result does not fit"
        return digits_BD

    def to_targets(self, digits_BD: Tensor, width: int, forward: bool) -> Tensor:
        """Return targets [B, width]: the digits of each number without leading zeros, then -100."""
        count_D = torch.arange(1, digits_BD.shape[1] + 1)
        count_B1 = (count_D * (digits_BD != 0)).amax(dim=1, keepdim=True).clamp(min=1)
        index_M = torch.arange(width)
        place_BM = count_B1 - 1 - index_M if forward else index_M.expand(len(digits_BD), -1)
        is_digit_BM = index_M < count_B1
        return digits_BD.gather(1, place_BM.where(is_digit_BM, 0)).where(is_digit_BM, IGNORE)

    def _split(self, inputs_BN: Tensor) -> Tensor:
        """Return the index of the mark, [B, 1]."""
        return (inputs_BN == self.mark).long().argmax(dim=1, keepdim=True)
