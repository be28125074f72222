"""Tasks of the literature, compared with their sources: worked examples, lengths and distributions."""

from __future__ import annotations

import pytest
import torch

from pe_experiments.tasks import IGNORE, Task
from pe_experiments.tasks.binary import BinaryAddition, BinaryMultiplication, Sqrt
from pe_experiments.tasks.copying import Duplicate, MissingDuplicate, OddsFirst, Reverse
from pe_experiments.tasks.counting import CycleNavigation, Parity
from pe_experiments.tasks.expressions import ModularArithmetic, ModularArithmeticBrackets, SolveEquation
from pe_experiments.tasks.order import EvenPairs
from pe_experiments.tasks.sorting import BucketSort
from pe_experiments.tasks.state import StackManipulation


def draw(task: Task, length: int, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    return task.sample(length, rows, torch.Generator().manual_seed(length))


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
