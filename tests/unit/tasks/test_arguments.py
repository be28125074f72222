"""Arguments of tasks that are refused, each in one sentence with the value and what is allowed."""

from __future__ import annotations

from typing import Any

import pytest

from pe_experiments.tasks.arithmetic import Addition
from pe_experiments.tasks.groups import WordProblem
from pe_experiments.tasks.needle import Needle
from pe_experiments.tasks.recall import MultiHop
from pe_experiments.tasks.state import FlipFlop


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
