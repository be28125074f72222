"""Vectorised arithmetic on the digits of two numbers with a mark between them, of any size.

Shapes: B rows, N symbols, D = N - 1 digits (room for both numbers and their sum or product), M targets.
"""

import torch
from torch import Tensor

from pe_experiments.tasks.base import IGNORE, Task


class TwoNumbers(Task):
    """Base class of tasks with two written numbers."""

    base: int  # of the digits
    mark: int  # symbol between the numbers
    forward = False  # whether the most significant digit stands first

    def joined(self, first_BW: Tensor, second_BW: Tensor, split_B: Tensor) -> Tensor:
        """Return inputs [B, W + 2]: ``split_B`` digits, the mark, and W + 1 - ``split_B`` digits."""
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
        first_BN = split_B1 - 1 - index_N if from_end else index_N.expand_as(inputs_BN)
        second_BN = (index_N.flip(0) if from_end else index_N - split_B1 - 1).expand_as(inputs_BN)
        return first_BN.where(index_N < split_B1, second_BN).where(index_N != split_B1, -1)

    def significance(self, inputs_BN: Tensor) -> Tensor:
        """Return place values [B, N] of the digits, 0 for units; -1 at the mark."""
        return self.digit_index(inputs_BN, from_end=self.forward)

    def operands(self, inputs_BN: Tensor) -> tuple[Tensor, Tensor]:
        """Return digits [B, D] of the two numbers by place value, zeros above their ends."""
        split_B1 = self._split(inputs_BN)
        index_N = torch.arange(inputs_BN.shape[1])
        values_BN = self.significance(inputs_BN).clamp(min=0)
        none_BD = torch.zeros_like(inputs_BN[:, 1:])
        first_BN, second_BN = (
            inputs_BN.where(in_number, 0) for in_number in (index_N < split_B1, index_N > split_B1)
        )
        return none_BD.scatter_add(1, values_BN, first_BN), none_BD.scatter_add(1, values_BN, second_BN)

    def carried(self, sums_BD: Tensor) -> Tensor:
        """Return digits [B, D] of numbers given by a sum per place value, which may exceed the base."""
        digits_BD = torch.empty_like(sums_BD)
        carry_B = torch.zeros_like(sums_BD[:, 0])
        for power in range(sums_BD.shape[1]):
            total_B = sums_BD[:, power] + carry_B
            digits_BD[:, power] = total_B % self.base
            carry_B = total_B // self.base
        assert not carry_B.any(), "the result does not fit"
        return digits_BD

    def written(self, digits_BD: Tensor, width: int, forward: bool) -> Tensor:
        """Return targets [B, width]: the digits of each number without leading zeros, then -100."""
        count_D = torch.arange(1, digits_BD.shape[1] + 1)
        count_B1 = (count_D * (digits_BD != 0)).amax(dim=1, keepdim=True).clamp(min=1)
        index_M = torch.arange(width)
        power_BM = count_B1 - 1 - index_M if forward else index_M.expand(len(digits_BD), -1)
        written_BM = index_M < count_B1
        return digits_BD.gather(1, power_BM.where(written_BM, 0)).where(written_BM, IGNORE)

    def _split(self, inputs_BN: Tensor) -> Tensor:
        return (inputs_BN == self.mark).long().argmax(dim=1, keepdim=True)
