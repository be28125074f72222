"""Arithmetic in decimal digits."""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from pe_experiments.tasks.base import OneAnswer, PositionIds
from pe_experiments.tasks.digits import TwoNumbers
from pe_experiments.terminal.errors import at_least, one_of

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

    Padded numbers can have a scratchpad, which writes the digit and the carry of each place, units first,
    before the sum: 95+07 has 2 1, 0 1, then 102. They can also have hints. An index then stands before each
    digit of a number and each step of the scratchpad, the same index for the same place value. That of the
    units is random, so that short numbers show the indices of long ones. With four hints, symbols 11 to 14,
    the units have 12 here:

    >>> Addition(width="padded", scratchpad=True).solve(torch.tensor([[9, 5, 10, 0, 7]])).tolist()
    [[2, 1, 0, 1, 1, 0, 2]]
    >>> hinted = [[13, 9, 12, 5, 10, 13, 0, 12, 7]]
    >>> Addition(width="padded", hints=4).solve(torch.tensor(hinted)).tolist()
    [[14, 1, 13, 0, 12, 2]]

    With hints inputs of d digits have 4d+1 symbols, and d+1 is at most ``hints``. Sources: scratchpad: Lee et
    al. 2023, arXiv:2307.03381 (their simplified scratchpad, ``A->2 , C->1`` for a place, here two symbols);
    hints: Zhou et al. 2023, arXiv:2310.16028, as in the released code of Cho et al. 2024 (reversed answer, to
    40 digits, evaluated to 100; there the indices count from the first digit).

    Args:
        operands: ``forward``, most significant digit first, or ``reversed``.
        answer: order of the digits of the sum, likewise.
        width: ``free`` or ``padded``.
        scratchpad: whether the answer spells out digit and carry of each place first; needs ``padded``.
        hints: number of indices, at least 2, or 0 for no hints; needs ``padded``.
    """

    vocab_size = 11
    answers = base = 10
    mark = 10  # the plus
    shortest = 3

    def __init__(
        self,
        operands: Order = "forward",
        answer: Order = "forward",
        width: Width = "free",
        scratchpad: bool = False,
        hints: int = 0,
    ):
        self.forward = one_of(Order, "operands", operands) == "forward"
        self.answer_forward = one_of(Order, "answer", answer) == "forward"
        self.is_padded = one_of(Width, "width", width) == "padded"
        self.step = 2 if self.is_padded else 1
        self.scratchpad = scratchpad
        self.hints = at_least(2, "hints", hints) if hints else 0
        for option in ("scratchpad", "hints"):
            if getattr(self, option) and not self.is_padded:
                raise ValueError(f"{option}={getattr(self, option)} needs width=padded, and width={width}")
        if hints:
            self.vocab_size += hints
            self.answers = 10 + hints
            self.shortest = 5
            self.step = 4
            self.longest = 4 * (hints - 1) + 1

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        if self.is_padded:
            return self._sample_padded(length // 4 if self.hints else length // 2, batch_size, generator)
        first_BW, second_BW = torch.randint(10, (2, batch_size, length - 2), generator=generator)
        split_B = torch.randint(1, length - 1, (batch_size,), generator=generator)
        inputs_BN = self.to_inputs(first_BW, second_BW, split_B)
        leading_BN = torch.randint(1, 10, inputs_BN.shape, generator=generator)
        inputs_BN = leading_BN.where(self._is_leading(inputs_BN), inputs_BN)
        first_BD, second_BD = self.operands(inputs_BN)
        total_BD = self.propagate_carries(first_BD + second_BD)
        return inputs_BN, self.to_targets(total_BD, self.target_length(length), self.answer_forward)

    def _sample_padded(
        self, digits: int, batch_size: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return sums of two numbers of so many digits, with the scratchpad and the hints asked for."""
        first_BW, second_BW = torch.randint(10, (2, batch_size, 2 * digits - 1), generator=generator)
        inputs_BN = self.to_inputs(first_BW, second_BW, torch.full((batch_size,), digits))
        first_BD, second_BD = self.operands(inputs_BN)
        total_BD = self.propagate_carries(first_BD + second_BD)
        carries_BD = (first_BD + second_BD > total_BD)[:, :digits].long()  # a digit is reduced by ten
        places_P = torch.arange(digits + 1)  # units first, as in the total
        total_BP = total_BD[:, : digits + 1]
        hint_BP: Tensor | None = None
        if self.hints:
            hint_BP = 11 + places_P + torch.randint(self.hints - digits, (batch_size, 1), generator=generator)

        def spelled(places: Tensor, *symbols: Tensor) -> Tensor:
            """Return the symbols of each place one after the other, after its hint."""
            columns = symbols if hint_BP is None else (hint_BP[:, places], *symbols)
            return torch.stack(columns, dim=-1).flatten(1)

        operand_places = places_P[:digits].flip(0) if self.forward else places_P[:digits]
        answer_places = places_P.flip(0) if self.answer_forward else places_P
        targets_BM = spelled(answer_places, total_BP[:, answer_places])
        if self.scratchpad:
            steps_BM = spelled(places_P[:digits], total_BP[:, :digits], carries_BD)
            targets_BM = torch.cat([steps_BM, targets_BM], dim=1)
        first_BN = spelled(operand_places, inputs_BN[:, :digits])
        second_BN = spelled(operand_places, inputs_BN[:, digits + 1 :])
        return torch.cat([first_BN, inputs_BN[:, digits : digits + 1], second_BN], dim=1), targets_BM

    def _is_leading(self, inputs_BN: Tensor) -> Tensor:
        """Return True at the most significant digit of a number of several digits, [B, N]."""
        places_BN = self.significance(inputs_BN)
        padded_BN = F.pad(places_BN, (1, 1), value=-1)
        return (places_BN > padded_BN[:, :-2]) & (places_BN > padded_BN[:, 2:]) & (places_BN > 0)

    def solve_row(self, row: list[int]) -> list[int]:
        hints = [symbol for symbol in row if symbol > self.mark]
        text = "".join("+" if symbol == self.mark else str(symbol) for symbol in row if symbol <= self.mark)
        numbers = []
        for digits in text.split("+"):
            number = digits if self.forward else digits[::-1]
            numbers.append(int(number or "0"))
        answer = str(sum(numbers))
        if not self.is_padded:
            digits = answer if self.answer_forward else answer[::-1]
            return [int(digit) for digit in digits[: self.target_length(len(row))]]
        places = len(text) // 2
        answer = answer.zfill(places + 1)[: places + 1]

        def hint_of(place: int) -> list[int]:
            return [min(hints) + place] if hints else []

        steps = []
        if self.scratchpad:
            for place in range(places):
                below = 10 ** (place + 1)
                carry = sum(number % below for number in numbers) // below
                steps += [*hint_of(place), int(answer[-1 - place]), carry]
        spelled = []  # the digits of the sum, each with its hint
        for place in reversed(range(places + 1)) if self.answer_forward else range(places + 1):
            spelled += [*hint_of(place), int(answer[-1 - place])]
        return [*steps, *spelled]

    def target_length(self, length: int) -> int:
        if not self.is_padded:
            return length - 1
        digits = length // 4 if self.hints else length // 2
        symbols_per_digit = 2 if self.hints else 1
        sum_length = symbols_per_digit * (digits + 1)
        if not self.scratchpad:
            return sum_length
        return (symbols_per_digit + 1) * digits + sum_length  # each step has a carry, too

    def position_ids(self, inputs_BN: Tensor, targets_BM: Tensor) -> dict[str, PositionIds]:
        """Return ``coupling`` (one id per place value) and ``abacus`` (index of a digit in its number).

        There is no ``coupling`` if the answer is ``forward`` and ``free``, because the id of its first digit
        would reveal whether the sum has one more digit. There are no ids with a scratchpad or with hints.
        """
        if self.scratchpad or self.hints:
            return {}
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
