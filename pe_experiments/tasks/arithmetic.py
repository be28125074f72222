"""Arithmetic in decimal digits."""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from pe_experiments.tasks.base import OneAnswer, PositionIds
from pe_experiments.tasks.digits import TwoNumbers
from pe_experiments.terminal.argument_checks import one_of

Order = Literal["forward", "reversed"]
Width = Literal["free", "padded"]


class Addition(TwoNumbers):
    """Add two numbers: 95+7 -> 102. Digits are 0 .. 9, the plus is 10.

    >>> Addition().solve(torch.tensor([[9, 5, 10, 7]])).tolist()
    [[1, 0, 2]]
    >>> Addition("reversed", "reversed").solve(torch.tensor([[5, 9, 10, 7]])).tolist()
    [[2, 0, 1]]
    >>> Addition(width="padded").solve(torch.tensor([[9, 5, 10, 0, 7], [3, 5, 10, 0, 7]])).tolist()
    [[1, 0, 2], [0, 4, 2]]

    With ``width=free`` numbers have no leading zeros (a single digit may be 0). The digits, and the place of
    the plus, are uniform; the shortest input has 3 symbols. With ``width=padded`` numbers have d digits with
    leading zeros, each number is uniform below 10^d, and the answer has d+1 digits; inputs have 2d+1 symbols.

    Sources: Kazemnejad et al. 2023, arXiv:2305.19466 (forward, free; numbers to 8 digits, evaluated to 16);
    reversed throughout: McLeish et al. 2024, arXiv:2405.17399 (to 20 digits, evaluated to 100); padded with a
    reversed answer: Cho et al. 2024, arXiv:2405.20671 (to 30 digits, evaluated to 200).

    Args:
        operands: ``forward``, most significant digit first, or ``reversed``.
        answer: order of the digits of the sum, likewise.
        width: ``free`` or ``padded``.
    """

    vocab_size = 11
    answers = base = 10
    mark = 10  # the plus
    shortest = 3

    def __init__(self, operands: Order = "forward", answer: Order = "forward", width: Width = "free"):
        self.forward = one_of(Order, "operands", operands) == "forward"
        self.answer_forward = one_of(Order, "answer", answer) == "forward"
        self.is_padded = one_of(Width, "width", width) == "padded"
        self.step = 2 if self.is_padded else 1

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        size = length - 2  # digits of the longest number
        first_BW, second_BW = torch.randint(10, (2, batch_size, size), generator=generator)
        if self.is_padded:
            inputs_BN = self.to_inputs(first_BW, second_BW, torch.full((batch_size,), length // 2))
        else:
            split_B = torch.randint(1, length - 1, (batch_size,), generator=generator)
            inputs_BN = self.to_inputs(first_BW, second_BW, split_B)
            leading_BN = torch.randint(1, 10, inputs_BN.shape, generator=generator)
            inputs_BN = leading_BN.where(self._is_leading(inputs_BN), inputs_BN)
        first_BD, second_BD = self.operands(inputs_BN)
        total_BD = self.propagate_carries(first_BD + second_BD)
        width = self.target_length(length)
        if not self.is_padded:
            return inputs_BN, self.to_targets(total_BD, width, self.answer_forward)
        targets_BM = total_BD[:, :width]
        return inputs_BN, targets_BM.flip(1) if self.answer_forward else targets_BM

    def _is_leading(self, inputs_BN: Tensor) -> Tensor:
        """Return True at the most significant digit of a number of several digits, [B, N]."""
        places_BN = self.significance(inputs_BN)
        padded_BN = F.pad(places_BN, (1, 1), value=-1)
        return (places_BN > padded_BN[:, :-2]) & (places_BN > padded_BN[:, 2:]) & (places_BN > 0)

    def solve_row(self, row: list[int]) -> list[int]:
        width = self.target_length(len(row))
        text = "".join("+" if symbol == self.mark else str(symbol) for symbol in row)
        total = 0
        for digits in text.split("+"):
            number = digits if self.forward else digits[::-1]
            total += int(number or "0")
        answer = str(total)
        if self.is_padded:
            answer = answer.zfill(width)
        if not self.answer_forward:
            answer = answer[::-1]
        return [int(digit) for digit in answer][:width]

    def target_length(self, length: int) -> int:
        return length // 2 + 1 if self.is_padded else length - 1

    def position_ids(self, inputs_BN: Tensor, targets_BM: Tensor) -> dict[str, PositionIds]:
        """Return ``coupling`` (one id per place value) and ``abacus`` (index of a digit in its number).

        There is no ``coupling`` if the answer is ``forward`` and ``free``, because the id of its first digit
        would reveal whether the sum has one more digit.
        """
        index_1M = torch.arange(targets_BM.shape[1])[None]
        ids = {"abacus": PositionIds(1 + self.digit_index(inputs_BN, from_end=False), 1 + index_1M)}
        places_BN = self.significance(inputs_BN)
        if not self.answer_forward:
            ids["coupling"] = PositionIds(places_BN + 2, index_1M + 2, separator=1)
        elif self.is_padded:
            width = targets_BM.shape[1]
            ids["coupling"] = PositionIds(places_BN + 2, width + 1 - index_1M, separator=width + 2)
        return ids


class Polynomial(OneAnswer):
    """The value of a polynomial modulo ten: at x = 2, 3x^0 - 1x^3 is -5 -> 5.

    Symbols: answers 0 .. 9; coefficients -3 .. 3 are 10 .. 16, degrees 0 .. 3 are 17 .. 20, values of x from
    -2 to 2 are 21 .. 25. An input is x, then coefficient and degree of each term; the source's signs and
    pluses, which are redundant, are left out:

    >>> Polynomial().solve(torch.tensor([[25, 16, 17, 12, 20]])).tolist()
    [[5]]

    All symbols are independent and uniform. An input of t terms has 2t + 1 symbols. Source: Kazemnejad et al.
    2023, arXiv:2305.19466 (polynomial evaluation; to 8 terms, evaluated to 16).
    """

    vocab_size = 26
    shortest = 3
    step = 2

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        terms = length // 2
        coefficients_BT = torch.randint(10, 17, (batch_size, terms), generator=generator)
        degrees_BT = torch.randint(17, 21, (batch_size, terms), generator=generator)
        x_B1 = torch.randint(21, 26, (batch_size, 1), generator=generator)
        inputs_BN = torch.cat([x_B1, torch.stack([coefficients_BT, degrees_BT], dim=-1).flatten(1)], dim=1)
        values_BT = (coefficients_BT - 13) * (x_B1 - 23) ** (degrees_BT - 17)
        return inputs_BN, values_BT.sum(dim=1, keepdim=True) % 10

    def solve_row(self, row: list[int]) -> list[int]:
        x, *terms = row
        total = 0
        for coefficient, degree in zip(terms[::2], terms[1::2], strict=True):
            total += (coefficient - 13) * (x - 23) ** max(degree - 17, 0)
        return [total % 10]

    def chance(self, length: int) -> float:
        return 1 / (9 if length == 3 else 10)  # no single term ends in 5
