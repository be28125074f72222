"""Arithmetic in decimal digits."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from pe_experiments.tasks.base import PositionIds, Task, padded
from pe_experiments.tasks.digits import TwoNumbers

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

    ``width=free``: numbers without leading zeros (a single digit may be 0); the digits, and their division
    between the numbers, are uniform; shortest input 3. ``width=padded``: numbers of d digits with leading
    zeros, each uniform below 10^d, and an answer of d+1 digits; inputs have 2d+1 symbols.

    Sources: Kazemnejad et al. 2023, arXiv:2305.19466 (forward, free; numbers to 8 digits, evaluated to 16);
    reversed throughout: McLeish et al. 2024, arXiv:2405.17399 (to 20 digits, evaluated to 100); padded with a
    reversed answer: Cho et al. 2024, arXiv:2405.20671 (to 30 digits, evaluated to 200).

    Args:
        operands: ``forward``, most significant digit first, or ``reversed``.
        answer: the same for the sum.
        width: ``free`` or ``padded``.
    """

    vocab_size = 11
    base = 10
    mark = 10  # the plus

    def __init__(self, operands: Order = "forward", answer: Order = "forward", width: Width = "free"):
        for name, value, choices in (
            ("operands", operands, get_args(Order)),
            ("answer", answer, get_args(Order)),
            ("width", width, get_args(Width)),
        ):
            if value not in choices:
                raise ValueError(f"{name}={value} is not one of the choices: {', '.join(choices)}")
        self.forward = operands == "forward"
        self.answer_forward = answer == "forward"
        self.is_padded = width == "padded"

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        size = length - 2  # digits of the longest number
        first_BW, second_BW = torch.randint(10, (2, batch_size, size), generator=generator)
        if self.is_padded:
            inputs_BN = self.joined(first_BW, second_BW, torch.full((batch_size,), length // 2))
            return inputs_BN, self._answer(inputs_BN)
        split_B = torch.randint(1, length - 1, (batch_size,), generator=generator)
        inputs_BN = self.joined(first_BW, second_BW, split_B)
        leading_BN = torch.randint(1, 10, inputs_BN.shape, generator=generator)
        inputs_BN = leading_BN.where(self._leads(inputs_BN), inputs_BN)
        return inputs_BN, self._answer(inputs_BN)

    def _leads(self, inputs_BN: Tensor) -> Tensor:
        """True at the most significant digit of a number of several digits, [B, N]."""
        values_BN = self.significance(inputs_BN)
        ends = torch.full((len(values_BN), 1), -1)
        before_BN = torch.cat([ends, values_BN[:, :-1]], dim=1)
        after_BN = torch.cat([values_BN[:, 1:], ends], dim=1)
        return (values_BN > before_BN) & (values_BN > after_BN) & (values_BN > 0)

    def _answer(self, inputs_BN: Tensor) -> Tensor:
        first_BD, second_BD = self.operands(inputs_BN)
        total_BD = self.carried(first_BD + second_BD)
        width = self.target_length(inputs_BN.shape[1])
        if not self.is_padded:
            return self.written(total_BD, width, self.answer_forward)
        return total_BD[:, :width].flip(1) if self.answer_forward else total_BD[:, :width]

    def solve(self, inputs_BN: Tensor) -> Tensor:
        width = self.target_length(inputs_BN.shape[1])
        answers = []
        for row in inputs_BN.tolist():
            total = 0
            for number in "".join("+" if symbol == self.mark else str(symbol) for symbol in row).split("+"):
                total += int((number if self.forward else number[::-1]) or "0")
            text = str(total).zfill(width) if self.is_padded else str(total)
            answers.append([int(digit) for digit in (text if self.answer_forward else text[::-1])][:width])
        return padded(answers, width)

    def nearest_length(self, length: int) -> int | None:
        if length < 3:
            return None
        return length - (length + 1) % 2 if self.is_padded else length

    def target_length(self, length: int) -> int:
        return length // 2 + 1 if self.is_padded else length - 1

    def chance(self, length: int) -> float:
        return 0.1

    def position_ids(self, inputs_BN: Tensor, targets_BM: Tensor) -> dict[str, PositionIds]:
        """``coupling``: digits of one place value share an id. ``abacus``: index of a digit in its number.

        No coupling where the answer is ``forward`` and ``free``: the id of its first digit would reveal
        whether the sum has one digit more.
        """
        index_1M = torch.arange(targets_BM.shape[1])[None]
        ids = {"abacus": PositionIds(1 + self.digit_index(inputs_BN, from_end=False), 1 + index_1M)}
        values_BN = self.significance(inputs_BN)
        if not self.answer_forward:
            ids["coupling"] = PositionIds(values_BN + 2, index_1M + 2, separator=1)
        elif self.is_padded:
            width = targets_BM.shape[1]
            ids["coupling"] = PositionIds(values_BN + 2, width + 1 - index_1M, separator=width + 2)
        return ids


class Polynomial(Task):
    """The value of a polynomial modulo ten: at x = 2, 3x^0 - 1x^3 is -5 -> 5.

    Symbols: answers 0 .. 9; coefficients -3 .. 3 are 10 .. 16, degrees 0 .. 3 are 17 .. 20, values of x from
    -2 to 2 are 21 .. 25. An input is x, then coefficient and degree of each term; the source's signs and
    pluses, which are redundant, are left out:

    >>> Polynomial().solve(torch.tensor([[25, 16, 17, 12, 20]])).tolist()
    [[5]]

    All are independent and uniform. Input lengths: 2 terms + 1. Source: Kazemnejad et al. 2023,
    arXiv:2305.19466 (polynomial evaluation; to 8 terms, evaluated to 16).
    """

    vocab_size = 26

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        terms = length // 2
        coefficients_BT = torch.randint(10, 17, (batch_size, terms), generator=generator)
        degrees_BT = torch.randint(17, 21, (batch_size, terms), generator=generator)
        x_B1 = torch.randint(21, 26, (batch_size, 1), generator=generator)
        inputs_BN = torch.cat([x_B1, torch.stack([coefficients_BT, degrees_BT], dim=-1).flatten(1)], dim=1)
        return inputs_BN, self._answer(inputs_BN)

    def _answer(self, inputs_BN: Tensor) -> Tensor:
        x_B1, coefficients_BT, degrees_BT = (
            inputs_BN[:, :1] - 23,
            inputs_BN[:, 1::2] - 13,
            inputs_BN[:, 2::2] - 17,
        )
        return (coefficients_BT * x_B1**degrees_BT).sum(dim=1, keepdim=True) % 10

    def solve(self, inputs_BN: Tensor) -> Tensor:
        answers = []
        for x, *terms in inputs_BN.tolist():
            total = 0
            for coefficient, degree in zip(terms[::2], terms[1::2], strict=True):
                total += (coefficient - 13) * (x - 23) ** max(degree - 17, 0)
            answers.append([total % 10])
        return torch.tensor(answers)

    def nearest_length(self, length: int) -> int | None:
        return length - (length + 1) % 2 if length >= 3 else None

    def target_length(self, length: int) -> int:
        return 1

    def chance(self, length: int) -> float:
        return 1 / (9 if length == 3 else 10)  # no single term ends in 5
