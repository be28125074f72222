"""Modular arithmetic written as expressions, as in the suite of Delétang et al. 2022."""

from collections.abc import Sequence
from functools import cache
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from pe_experiments.tasks.base import OneAnswer
from pe_experiments.terminal.errors import at_least, one_of

Operators = Literal["+-", "+-*"]


class ModularArithmetic(OneAnswer):
    """The value of an expression modulo five: 1+2*3 -> 2. Products bind tighter.

    Symbols: digits 0 .. 4, plus 5, minus 6, times 7:

    >>> ModularArithmetic().solve(torch.tensor([[1, 5, 2, 7, 3], [1, 6, 1, 6, 1]])).tolist()
    [[2], [4]]

    Digits and operators are independent and uniform. Input lengths: odd. Source: Delétang et al. 2022,
    arXiv:2207.02098 (modular arithmetic, simple; trained to 40, evaluated to 500).

    Args:
        modulus: at least 2.
    """

    step = 2

    def __init__(self, modulus: int = 5):
        self.modulus = self.answers = at_least(2, "modulus", modulus)
        self.vocab_size = modulus + 3

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        inputs_BN = torch.randint(self.modulus, (batch_size, length), generator=generator)
        shape = batch_size, length // 2
        inputs_BN[:, 1::2] = torch.randint(self.modulus, self.vocab_size, shape, generator=generator)
        plus = self.modulus
        minus = self.modulus + 1
        total_B = torch.zeros_like(inputs_BN[:, 0])
        term_B = inputs_BN[:, 0]
        for index in range(1, length, 2):  # left to right; a term ends at a plus or minus
            operator_B = inputs_BN[:, index]
            digit_B = inputs_BN[:, index + 1]
            ends_B = (operator_B == plus) | (operator_B == minus)
            total_B = total_B + term_B.where(ends_B, 0)
            signed_B = digit_B.where(operator_B != minus, -digit_B)
            term_B = signed_B.where(ends_B, term_B * digit_B % self.modulus)
        return inputs_BN, ((total_B + term_B) % self.modulus)[:, None]

    def solve_row(self, row: list[int]) -> list[int]:
        if [symbol >= self.modulus for symbol in row] != [index % 2 == 1 for index in range(len(row))]:
            return []  # not an expression
        values = [row[0]]
        signs = [1]
        for operator, digit in zip(row[1::2], row[2::2], strict=True):
            if operator == self.modulus + 2:
                values[-1] *= digit
            else:
                values.append(digit)
                signs.append(1 if operator == self.modulus else -1)
        return [sum(sign * value for sign, value in zip(signs, values, strict=True)) % self.modulus]


class PrefixArithmetic(OneAnswer):
    """The value of an expression in prefix notation modulo 23: + 2 * 3 4 -> 14. No brackets are needed.

    Symbols: digits 0 .. 22, plus 23, minus 24, times 25:

    >>> PrefixArithmetic().solve(torch.tensor([[23, 2, 25, 3, 4], [24, 24, 1, 2, 3]])).tolist()
    [[14], [19]]

    An operator stands before its two operands. Digits and operators are independent and uniform, and so is
    the number of the operators in the first operand. Inputs of L operators have 2L + 1 symbols. Source: Mano
    of Allen-Zhu 2025, Physics of Language Models part 4.1 (trained on up to L operations, tested on L; how
    operators are split there was not found).

    Args:
        modulus: at least 2.
    """

    step = 2

    def __init__(self, modulus: int = 23):
        self.modulus = self.answers = at_least(2, "modulus", modulus)
        self.vocab_size = modulus + 3

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        digits_BN = torch.randint(self.modulus, (batch_size, length), generator=generator)
        operators_BN = torch.randint(self.modulus, self.vocab_size, (batch_size, length), generator=generator)
        splits_BN = torch.rand(batch_size, length, generator=generator, dtype=torch.float64)
        rows_B = torch.arange(batch_size)
        # The numbers of operators of the operands still to be written, the next one on top.
        stack_BN = torch.zeros(batch_size, length + 1, dtype=torch.long)
        stack_BN[:, 0] = length // 2
        top_B = torch.zeros(batch_size, dtype=torch.long)
        inputs_BN = digits_BN
        for index in range(length):
            operators_B = stack_BN[rows_B, top_B]
            is_operator_B = operators_B > 0
            first_B = (splits_BN[:, index] * operators_B).long()
            inputs_BN[:, index] = operators_BN[:, index].where(is_operator_B, digits_BN[:, index])
            second_B = (operators_B - 1 - first_B).where(is_operator_B, 0)
            stack_BN[rows_B, top_B] = second_B
            stack_BN[rows_B, top_B + 1] = first_B
            top_B = torch.where(is_operator_B, top_B + 1, (top_B - 1).clamp(min=0))
        return inputs_BN, self._values(inputs_BN)[:, None]

    def solve_row(self, row: list[int]) -> list[int]:
        stack: list[int] = []
        for symbol in reversed(row):
            if symbol < self.modulus:
                stack.append(symbol)
            elif len(stack) < 2:
                return []  # not an expression
            else:
                first = stack.pop()
                second = stack.pop()
                results = (first + second, first - second, first * second)
                stack.append(results[symbol - self.modulus] % self.modulus)
        return stack if len(stack) == 1 else []

    def input_blind(self, length: int) -> float:
        return float(_value_shares(self.modulus, length // 2)[-1].max())

    def bag_ceiling(self, length: int, prefix: bool = False) -> float | None:
        return 1.0 if length == 1 else None

    def _values(self, inputs_BN: Tensor) -> Tensor:
        """Return the value of each expression, computed from its end with a stack."""
        rows_B = torch.arange(len(inputs_BN))
        stack_BN = torch.zeros(len(inputs_BN), inputs_BN.shape[1] + 2, dtype=torch.long)
        top_B = torch.full((len(inputs_BN),), 1)  # the two entries below the first value are never read
        for index in reversed(range(inputs_BN.shape[1])):
            symbol_B = inputs_BN[:, index]
            first_B = stack_BN[rows_B, top_B]
            second_B = stack_BN[rows_B, top_B - 1]
            results_3B = torch.stack([first_B + second_B, first_B - second_B, first_B * second_B])
            operator_B = (symbol_B - self.modulus).clamp(min=0)
            is_digit_B = symbol_B < self.modulus
            value_B = symbol_B.where(is_digit_B, results_3B[operator_B, rows_B] % self.modulus)
            top_B = torch.where(is_digit_B, top_B + 1, top_B - 1)
            stack_BN[rows_B, top_B] = value_B
        return stack_BN[rows_B, top_B]


@cache
def _value_shares(modulus: int, operators: int) -> np.ndarray:
    """Return the probability of each value of `PrefixArithmetic` with 0 .. ``operators`` operators."""
    digits = np.arange(modulus)
    values_3DD = (
        np.stack([digits[:, None] + digits, digits[:, None] - digits, digits[:, None] * digits]) % modulus
    )
    shares_LD = np.full((operators + 1, modulus), 1 / modulus)
    for number in range(1, operators + 1):
        pairs_DD = shares_LD[:number].T @ shares_LD[:number][::-1] / number
        weights = np.broadcast_to(pairs_DD / 3, values_3DD.shape)
        shares_LD[number] = np.bincount(values_3DD.ravel(), weights.ravel(), modulus)
    return shares_LD


class Expressions(OneAnswer):
    """Base class of tasks with bracketed expressions: d, -d, (d), (-d), and (left operator right).

    Digits are ``0 .. modulus-1``; ``signs`` are the symbols of plus, minus and, if it occurs, times; the
    closing bracket is the symbol after the opening one.
    """

    def __init__(self, modulus: int, signs: Sequence[int], opening: int):
        self.modulus = self.answers = at_least(2, "modulus", modulus)
        self.signs = signs
        self.minus = signs[1]
        self.opening = opening
        self.closing = opening + 1

    def solve_row(self, row: list[int]) -> list[int]:
        try:
            value, end = self._parse(row, 0)
        except (IndexError, ValueError):
            return []  # not an expression
        return [value % self.modulus] if end == len(row) else []

    def _parse(self, symbols: list[int], index: int) -> tuple[int, int]:
        """Return the value of the expression that starts at ``index``, and the index after it."""
        if symbols[index] < self.modulus:
            return symbols[index], index + 1
        if symbols[index] == self.minus and symbols[index + 1] < self.modulus:
            return -symbols[index + 1], index + 2
        if symbols[index] != self.opening:
            raise ValueError("no expression starts so")
        left, index = self._parse(symbols, index + 1)
        if symbols[index] == self.closing:
            return left, index + 1
        operator = self.signs.index(symbols[index])
        right, index = self._parse(symbols, index + 1)
        if symbols[index] != self.closing:
            raise ValueError("no expression ends so")
        return (left + right, left - right, left * right)[operator], index + 1

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        symbols_BN = torch.full((batch_size, length), self.closing)
        row_B = torch.arange(batch_size)
        parts_3B = torch.stack([row_B, torch.zeros_like(row_B), torch.full_like(row_B, length)])
        return symbols_BN, self._write_expressions(symbols_BN, parts_3B, generator)[:, None]

    def _write_expressions(self, symbols_BN: Tensor, parts_3X: Tensor, generator: torch.Generator) -> Tensor:
        """Write random expressions into ``symbols_BN``, depth by depth, and return their values [X].

        Args:
            symbols_BN: filled with closing brackets at first.
            parts_3X: row, first index and size of each expression.
            generator: source of random numbers.
        """
        is_leaf_X = parts_3X[2] < 5
        values_X = torch.zeros_like(parts_3X[0])
        row, start, size = parts_3X[:, is_leaf_X]
        digits = torch.randint(self.modulus, (len(row),), generator=generator)
        bracketed = size >= 3
        negative = size % 2 == 0
        symbols_BN[row[bracketed], start[bracketed]] = self.opening  # closing brackets are already there
        symbols_BN[row[negative], (start + bracketed.long())[negative]] = self.minus
        symbols_BN[row, start + bracketed.long() + negative.long()] = digits
        values_X[is_leaf_X] = digits.where(~negative, -digits) % self.modulus
        row, start, size = parts_3X[:, ~is_leaf_X]
        if not len(row):
            return values_X
        left = 1 + (torch.rand(len(row), generator=generator, dtype=torch.float64) * (size - 4)).long()
        operator = torch.randint(len(self.signs), (len(row),), generator=generator)
        symbols_BN[row, start] = self.opening
        symbols_BN[row, start + 1 + left] = torch.tensor(self.signs)[operator]
        sides = torch.stack([row, start + 1, left]), torch.stack([row, start + left + 2, size - left - 3])
        first, second = self._write_expressions(symbols_BN, torch.cat(sides, dim=1), generator).chunk(2)
        results = torch.stack([first + second, first - second, first * second])
        values_X[~is_leaf_X] = results[operator, torch.arange(len(row))] % self.modulus
        return values_X


class ModularArithmeticBrackets(Expressions):
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

    def __init__(self, modulus: int = 5, operators: Operators = "+-"):
        signs = range(modulus, modulus + len(one_of(Operators, "operators", operators)))
        super().__init__(modulus, signs, modulus + 3)
        self.vocab_size = modulus + 5


class SolveEquation(Expressions):
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

    shortest = 3

    def __init__(self, modulus: int = 5):
        super().__init__(modulus, (modulus, modulus + 1), modulus + 2)
        self.unknown = modulus + 4
        self.equals = modulus + 5
        self.vocab_size = modulus + 6

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        size = length - 2
        left_BS, values_B1 = super().sample(size, batch_size, generator)
        start_B1 = torch.randint(size, (batch_size, 1), generator=generator)
        distance_BS = (torch.arange(size) - start_B1) % size
        is_digit_BS = left_BS < self.modulus
        unknown_B1 = distance_BS.where(is_digit_BS, size).argmin(dim=1, keepdim=True)
        equals_B1 = torch.full_like(values_B1, self.equals)
        equations_BN = torch.cat([left_BS.scatter(1, unknown_B1, self.unknown), equals_B1, values_B1], dim=1)
        return equations_BN, left_BS.gather(1, unknown_B1)

    def solve_row(self, row: list[int]) -> list[int]:
        *left, equals, right = row
        if equals != self.equals:
            return []  # not an equation
        solutions = []
        for digit in range(self.modulus):
            value = super().solve_row([digit if symbol == self.unknown else symbol for symbol in left])
            if value == [right]:
                solutions.append(digit)
        return solutions[-1:]
