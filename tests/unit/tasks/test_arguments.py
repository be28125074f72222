"""Arguments of tasks that are refused, each in one sentence with the value and what is allowed."""

from __future__ import annotations

from typing import Any

import pytest

from pe_experiments.tasks.arithmetic import Addition
from pe_experiments.tasks.counting import InterleavedMajority, Parity
from pe_experiments.tasks.expressions import ModularArithmeticBrackets
from pe_experiments.tasks.groups import WordProblem
from pe_experiments.tasks.needle import Needle
from pe_experiments.tasks.recall import MultiHop, NoisyRecall, OverwrittenRecall
from pe_experiments.tasks.state import DyckDepth, FlipFlop


@pytest.mark.parametrize(
    ("task", "arguments", "message"),
    [
        (Addition, {"operands": "backwards"}, "operands=backwards is not one of the choices"),
        (Addition, {"scratchpad": True}, "scratchpad=True needs width=padded, and width=free"),
        (Addition, {"hints": 5}, "hints=5 needs width=padded, and width=free"),
        (Addition, {"width": "padded", "hints": 1}, "hints=1 must be at least 2"),
        (Parity, {"hints": -1}, "hints=-1 must be at least 0"),
        (ModularArithmeticBrackets, {"operators": "*"}, r"operators=\* is not one of"),
        (FlipFlop, {"ignore": 1.0}, "ignore=1.0 is outside"),
        (InterleavedMajority, {"period": 1}, "period=1 must be at least 2"),
        (DyckDepth, {"deepest": 1}, "deepest=1 must be at least 2"),
        (WordProblem, {"group": "s4"}, "group=s4 is not one of the choices: s5, a5"),
        (WordProblem, {"reveals": 1.0}, r"reveals=1\.0 is outside 0 \.\. 1"),
        (Needle, {"k": 0}, "k=0 must be at least 1"),
        (Needle, {"symbols": 1}, "symbols=1 must be at least 2"),
        (Needle, {"filler": "words"}, "filler=words is not one of the choices: symbols, text"),
        (Needle, {"path": "books"}, "path=books is read only with filler=text"),
        (Needle, {"filler": "text", "path": "nowhere"}, "path=nowhere: there is no such file"),
        (MultiHop, {"hops": 0}, "hops=0 must be at least 1"),
        (MultiHop, {"hops": 3, "variables": 3}, "variables=3 must be more than hops=3"),
        (NoisyRecall, {"noise": 0.0}, "noise=0.0 is outside 0 .. 1"),
        (NoisyRecall, {"fillers": 0}, "fillers=0 must be at least 1"),
        (OverwrittenRecall, {"keys": 1}, "keys=1 must be at least 2"),
    ],
)
def test_bad_arguments_are_refused(task: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        task(**arguments)
