"""The rules of tasks: worked examples of their sources, what inputs look like, and refused arguments."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from pe_experiments.tasks import IGNORE, Task
from pe_experiments.tasks.arithmetic import Addition
from pe_experiments.tasks.binary import BinaryAddition, BinaryMultiplication, Sqrt
from pe_experiments.tasks.ceilings import mode_share
from pe_experiments.tasks.copying import Duplicate, MissingDuplicate, OddsFirst, Reverse
from pe_experiments.tasks.counting import CycleNavigation, Parity
from pe_experiments.tasks.expressions import (
    ModularArithmetic,
    ModularArithmeticBrackets,
    PrefixArithmetic,
    SolveEquation,
)
from pe_experiments.tasks.groups import Group, WordProblem
from pe_experiments.tasks.needle import Needle
from pe_experiments.tasks.order import EvenPairs
from pe_experiments.tasks.recall import MultiHop
from pe_experiments.tasks.sorting import BucketSort
from pe_experiments.tasks.state import FlipFlop, StackManipulation
from tests.unit.tasks import draw


def symbols(text: str, alphabet: str = "0123456789") -> list[int]:
    return [alphabet.index(character) for character in text]


MODULAR = "01234+-*"
STACK = "01POI"  # pop, push 0, push 1


@pytest.mark.parametrize(
    ("task", "question", "expected"),
    [
        (EvenPairs(), symbols("001110"), [2]),
        (Parity(), symbols("1010100"), [3]),
        (CycleNavigation(), symbols("+-0--", "-0+"), [3 + 3]),
        (ModularArithmetic(), symbols("0*1+4*3-2", MODULAR), [0]),
        (Reverse(2), symbols("011010"), symbols("010110")),
        (Duplicate(), symbols("101"), symbols("101101")),
        (MissingDuplicate(), symbols("01100210"), [1]),
        (OddsFirst(), symbols("00110101"), symbols("01000111")),
        (OddsFirst(), symbols("110"), symbols("101")),
        (BucketSort(), symbols("10204112"), symbols("00111224")),
        (BinaryAddition(), symbols("1001+000001", "01+"), symbols("100101")),
        (BinaryMultiplication(), symbols("1001*000001", "01*"), symbols("000001001")),
        (Sqrt(), symbols("100101"), symbols("110")),
        (Sqrt(), symbols("111"), symbols("10")),
        (StackManipulation(), symbols("0110IPP", STACK), symbols("110")),
        (StackManipulation(), symbols("110PPP", STACK), []),
    ],
)
def test_examples_of_deletang_et_al(task: Task, question: list[int], expected: list[int]) -> None:
    """The root of 37 is given as 101 in the paper (2022), but floor(sqrt(37)) is 110."""
    answer = task.solve(torch.tensor([question]))[0]
    assert answer[answer != IGNORE].tolist() == expected
    assert len(answer) == task.target_length(len(question))


@pytest.mark.parametrize("operators", ["+-", "+-*"])
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 11, 40])
def test_expressions_have_the_value_that_python_computes(operators: str, length: int) -> None:
    task = ModularArithmeticBrackets(operators=operators)
    for row, (value,) in zip(*(part.tolist() for part in draw(task, length, 300)), strict=True):
        text = "".join("01234+-*()"[symbol] for symbol in row)
        assert eval(text) % 5 == value
        assert operators == "+-*" or "*" not in text


def test_equations_have_one_solution() -> None:
    inputs, targets = draw(SolveEquation(), 9, 400)
    assert (inputs == 9).sum(dim=1).eq(1).all()
    for row, (solution,) in zip(inputs.tolist(), targets.tolist(), strict=True):
        text = "".join("01234+-()x="[symbol] for symbol in row)
        left, right = text.split("=")
        solutions = [d for d in range(5) if eval(left.replace("x", str(d))) % 5 == int(right)]
        assert solutions == [solution]


@pytest.mark.parametrize(("group", "order"), [("s5", 120), ("a5", 60)])
def test_the_table_is_the_product_of_permutation_matrices(group: Group, order: int) -> None:
    task = WordProblem(group)
    elements = np.zeros((task.order, 5, 5), dtype=int)
    for element, permutation in enumerate(task.elements):
        elements[element, list(permutation), range(5)] = 1
    assert task.order == len({element.tobytes() for element in elements}) == order
    assert set(np.linalg.det(elements).round()) == ({1.0} if group == "a5" else {1.0, -1.0})
    table = task.product_GG.numpy()
    for y in range(order):
        assert np.array_equal(elements[table[y]], elements[y] @ elements)


@pytest.mark.parametrize(("length", "symbols"), [(1, 4), (2, 2), (5, 3), (7, 2), (4, 9), (9, 3)])
def test_mode_share_equals_enumeration(length: int, symbols: int) -> None:
    words = list(itertools.product(range(symbols), repeat=length))
    expected = sum(max(Counter(word).values()) for word in words) / len(words) / length
    assert mode_share(length, symbols) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("task", "arguments", "message"),
    [
        (Addition, {"scratchpad": True}, "scratchpad=True needs width=padded, and width=free"),
        (FlipFlop, {"ignore": 1.0}, "ignore=1.0 is outside"),
        (WordProblem, {"group": "s4"}, "group=s4 is not one of the choices: s5, a5"),
        (Needle, {"path": "books"}, "path=books is read only with filler=text"),
        (Needle, {"filler": "text", "path": "nowhere"}, "path=nowhere: there is no such file"),
        (MultiHop, {"hops": 3, "variables": 3}, "variables=3 must be more than hops=3"),
    ],
)
def test_bad_arguments_are_refused(task: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        task(**arguments)


def test_one_number_has_no_order() -> None:
    assert PrefixArithmetic().bag_ceiling(1) == 1.0
    assert PrefixArithmetic().bag_ceiling(3) is None
