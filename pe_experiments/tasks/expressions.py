"""Modular arithmetic written as expressions, as in the suite of Delétang et al. 2022."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from pe_experiments.tasks.base import IGNORE, Task, require_symbols


class ModularArithmetic(Task):
    """The value of an expression modulo five: 1+2*3 -> 2. Products bind tighter.

    Symbols: digits 0 .. 4, plus 5, minus 6, times 7:

    >>> ModularArithmetic().solve(torch.tensor([[1, 5, 2, 7, 3], [1, 6, 1, 6, 1]])).tolist()
    [[2], [4]]

    Digits and operators are independent and uniform. Input lengths: odd. Source: Delétang et al. 2022,
    arXiv:2207.02098 (modular arithmetic, simple; trained to 40, evaluated to 500).

    Args:
        modulus: at least 2.
    """

    def __init__(self, modulus: int = 5):
        self.modulus = require_symbols("modulus", modulus, 2)
        self.vocab_size = modulus + 3

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        inputs_BN = torch.randint(self.modulus, (batch_size, length), generator=generator)
        operators = torch.randint(
            self.modulus, self.vocab_size, (batch_size, length // 2), generator=generator
        )
        inputs_BN[:, 1::2] = operators
        return inputs_BN, self._answer(inputs_BN)

    def _answer(self, inputs_BN: Tensor) -> Tensor:
        plus, minus = self.modulus, self.modulus + 1
        total_B, term_B = torch.zeros_like(inputs_BN[:, 0]), inputs_BN[:, 0]
        for index in range(1, inputs_BN.shape[1], 2):  # left to right; a term ends at a plus or minus
            operator_B, digit_B = inputs_BN[:, index], inputs_BN[:, index + 1]
            ends_B = (operator_B == plus) | (operator_B == minus)
            total_B = total_B + term_B.where(ends_B, 0)
            signed_B = digit_B.where(operator_B != minus, -digit_B)
            term_B = signed_B.where(ends_B, term_B * digit_B % self.modulus)
        return ((total_B + term_B) % self.modulus)[:, None]

    def solve(self, inputs_BN: Tensor) -> Tensor:
        answers = []
        for row in inputs_BN.tolist():
            if [symbol >= self.modulus for symbol in row] != [index % 2 == 1 for index in range(len(row))]:
                answers.append([IGNORE])  # no expression
                continue
            values, signs = [row[0]], [1]
            for operator, digit in zip(row[1::2], row[2::2], strict=True):
                if operator == self.modulus + 2:
                    values[-1] *= digit
                else:
                    values.append(digit)
                    signs.append(1 if operator == self.modulus else -1)
            total = sum(sign * value for sign, value in zip(signs, values, strict=True))
            answers.append([total % self.modulus])
        return torch.tensor(answers)

    def nearest_length(self, length: int) -> int | None:
        return length - (length + 1) % 2 if length >= 1 else None

    def target_length(self, length: int) -> int:
        return 1

    def chance(self, length: int) -> float:
        return 1 / self.modulus


class Marks(NamedTuple):
    """Symbols of an expression with brackets, beside its digits."""

    plus: int
    minus: int
    times: int
    opening: int
    closing: int


class ModularArithmeticBrackets(Task):
    """The value of an expression with brackets modulo five: ((1+2)-(-4)) -> 2.

    Symbols: digits 0 .. 4, plus 5, minus 6, times 7, opening bracket 8, closing bracket 9:

    >>> expression = [[8, 8, 1, 5, 2, 9, 6, 8, 6, 4, 9, 9]]
    >>> ModularArithmeticBrackets().solve(torch.tensor(expression)).tolist()
    [[2]]

    Expressions of 1 to 4 symbols are d, -d, (d), (-d); longer ones are (left operator right), with a uniform
    division of the length between both sides. Source: Delétang et al. 2022, arXiv:2207.02098 (trained to 40,
    evaluated to 500; plus and minus only).

    Args:
        modulus: at least 2.
        operators: ``+-`` or ``+-*``.
    """

    def __init__(self, modulus: int = 5, operators: Literal["+-", "+-*"] = "+-"):
        if operators not in ("+-", "+-*"):
            raise ValueError(f"operators={operators} is not one of the choices: +-, +-*")
        self.modulus = require_symbols("modulus", modulus, 2)
        self.operators = len(operators)
        self.marks = Marks(*range(modulus, modulus + 5))
        self.vocab_size = modulus + 5

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return grow(length, batch_size, self.modulus, self.operators, self.marks, generator)

    def solve(self, inputs_BN: Tensor) -> Tensor:
        values = [evaluate(row, self.modulus, self.marks) for row in inputs_BN.tolist()]
        return torch.tensor([[IGNORE if value is None else value] for value in values])

    def target_length(self, length: int) -> int:
        return 1

    def chance(self, length: int) -> float:
        return 1 / self.modulus


class SolveEquation(Task):
    """Which digit is x, modulo five? (x-(3))=4 -> 2.

    Symbols: digits 0 .. 4, plus 5, minus 6, opening bracket 7, closing bracket 8, x 9, equals 10:

    >>> SolveEquation().solve(torch.tensor([[7, 9, 6, 7, 3, 8, 8, 10, 4]])).tolist()
    [[2]]

    The left side is an expression of `ModularArithmeticBrackets` in which one digit is replaced by x: the
    first digit at or after a uniform position, cyclically. Shortest input: 3; the published code fills
    lengths 1 and 2 with placeholders that follow no rule. Source: Delétang et al. 2022,
    arXiv:2207.02098 (trained to 40, evaluated to 500).

    Args:
        modulus: at least 2.
    """

    def __init__(self, modulus: int = 5):
        self.modulus = require_symbols("modulus", modulus, 2)
        self.marks = Marks(modulus, modulus + 1, -1, modulus + 2, modulus + 3)
        self.unknown, self.equals = modulus + 4, modulus + 5
        self.vocab_size = modulus + 6

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        size = length - 2
        left_BS, values_B1 = grow(size, batch_size, self.modulus, 2, self.marks, generator)
        start_B1 = torch.randint(size, (batch_size, 1), generator=generator)
        round_S = torch.arange(size)
        ahead_BS = (round_S - start_B1) % size
        is_digit_BS = left_BS < self.modulus
        unknown_B1 = ahead_BS.where(is_digit_BS, size).argmin(dim=1, keepdim=True)
        equals_B1 = torch.full_like(values_B1, self.equals)
        equations_BN = torch.cat([left_BS.scatter(1, unknown_B1, self.unknown), equals_B1, values_B1], dim=1)
        return equations_BN, left_BS.gather(1, unknown_B1)

    def solve(self, inputs_BN: Tensor) -> Tensor:
        answers = []
        for row in inputs_BN.tolist():
            answer = IGNORE
            for digit in range(self.modulus):
                left = [digit if symbol == self.unknown else symbol for symbol in row[:-2]]
                if row[-2] == self.equals and evaluate(left, self.modulus, self.marks) == row[-1]:
                    answer = digit
            answers.append([answer])
        return torch.tensor(answers)

    def nearest_length(self, length: int) -> int | None:
        return length if length >= 3 else None

    def target_length(self, length: int) -> int:
        return 1

    def chance(self, length: int) -> float:
        return 1 / self.modulus


def evaluate(symbols: list[int], modulus: int, marks: Marks) -> int | None:
    """The value of an expression with brackets; None if the symbols are no expression."""
    try:
        value, end = _read(symbols, 0, modulus, marks)
    except (IndexError, ValueError):
        return None
    return value % modulus if end == len(symbols) else None


def _read(symbols: list[int], at: int, modulus: int, marks: Marks) -> tuple[int, int]:
    """The value of the expression that starts at index ``at``, and the index after it."""
    if symbols[at] < modulus:
        return symbols[at], at + 1
    if symbols[at] == marks.minus and symbols[at + 1] < modulus:
        return -symbols[at + 1], at + 2
    if symbols[at] != marks.opening:
        raise ValueError("no expression starts so")
    left, at = _read(symbols, at + 1, modulus, marks)
    if symbols[at] == marks.closing:
        return left, at + 1
    operator = symbols[at]
    right, at = _read(symbols, at + 1, modulus, marks)
    if symbols[at] != marks.closing or operator not in marks[:3]:
        raise ValueError("no expression ends so")
    results = {marks.plus: left + right, marks.minus: left - right, marks.times: left * right}
    return results[operator], at + 1


class _Level(NamedTuple):
    """Expressions at one depth in all rows: the row, the index of the first symbol, the number of symbols."""

    row_X: Tensor
    start_X: Tensor
    size_X: Tensor


def grow(
    length: int, rows: int, modulus: int, operators: int, marks: Marks, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Random expressions [B, N] with brackets and their values [B, 1], depth by depth, all rows at once."""
    symbols_BN = torch.full((rows, length), marks.closing)
    all_rows = torch.arange(rows)
    level = _Level(all_rows, torch.zeros_like(all_rows), torch.full_like(all_rows, length))
    values, inner = [], []
    while len(level.row_X):
        is_leaf_X = level.size_X < 5
        values.append(_plant(symbols_BN, level, is_leaf_X, modulus, marks, generator))
        row, start, size = (part[~is_leaf_X] for part in level)
        left = 1 + (torch.rand(len(row), generator=generator, dtype=torch.float64) * (size - 4)).long()
        operator = torch.randint(operators, (len(row),), generator=generator)
        symbols_BN[row, start] = marks.opening
        symbols_BN[row, start + 1 + left] = torch.tensor(marks[:3])[operator]
        inner.append((~is_leaf_X, operator))
        sides = (start + 1, left), (start + left + 2, size - left - 3)
        level = _Level(row.repeat(2), *(torch.cat(parts) for parts in zip(*sides, strict=True)))
    for depth in reversed(range(len(values) - 1)):
        is_inner_X, operator = inner[depth]
        left, right = values[depth + 1].chunk(2)
        results = torch.stack([left + right, left - right, left * right])
        values[depth][is_inner_X] = results[operator, torch.arange(len(left))] % modulus
    return symbols_BN, values[0][:, None]


def _plant(
    symbols_BN: Tensor,
    level: _Level,
    is_leaf_X: Tensor,
    modulus: int,
    marks: Marks,
    generator: torch.Generator,
) -> Tensor:
    """Write the expressions of up to four symbols of one depth; their values [X], 0 at the longer ones."""
    row, start, size = (part[is_leaf_X] for part in level)
    digits = torch.randint(modulus, (len(row),), generator=generator)
    bracketed, negative = size >= 3, size % 2 == 0
    symbols_BN[row[bracketed], start[bracketed]] = marks.opening  # its closing bracket is there already
    symbols_BN[row[negative], (start + bracketed.long())[negative]] = marks.minus
    symbols_BN[row, start + bracketed.long() + negative.long()] = digits
    values_X = torch.zeros_like(level.row_X)
    values_X[is_leaf_X] = digits.where(~negative, -digits) % modulus
    return values_X
