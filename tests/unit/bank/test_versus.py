"""Test what a comparison with a bank accepts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest

from pe_experiments.bank.baselines import tasks_in_bank
from pe_experiments.comparison.runs import Runs
from pe_experiments.configuration.experiment import Experiment
from pe_experiments.store.names import jsonable
from pe_experiments.store.record import Record
from pe_experiments.store.status import Run
from pe_experiments.terminal.errors import UserError

Tiny = Callable[..., Experiment]
LENGTHS = "evaluation.lengths=[5,12]"


def bank_of(**experiments: Experiment) -> Runs:
    """Return one run of each experiment, under the name of its task."""
    runs = pd.DataFrame({"name": [*experiments], "task": [*experiments]})
    points: list[dict[str, Any]] = []
    for name, experiment in experiments.items():
        for length in experiment.evaluation_lengths:
            content = experiment.evaluation_task.nearest_length(length)
            examples = experiment.config.evaluation.examples
            points.append({"name": name, "content_length": content, "examples": examples})
    saved = {name: Record(name, jsonable(e.trained), 1, {}) for name, e in experiments.items()}
    return Runs(runs, pd.DataFrame(points), saved=saved)


def test_tasks_of_one_class_are_told_apart_by_their_arguments(tiny: Tiny) -> None:
    names = ("addition", "addition_reversed")
    bank = bank_of(**{name: tiny(f"task={name}", "pe=none", LENGTHS) for name in names})
    runs = [Run(tiny(f"task={name}", "pe=rope", LENGTHS).config) for name in names]
    assert tasks_in_bank("small", bank, runs) == dict(zip((run.name for run in runs), names, strict=True))
    other = Run(tiny("task=addition", "task.answer=reversed", "pe=rope", LENGTHS).config)
    with pytest.raises(UserError, match="must be as in small"):
        tasks_in_bank("small", bank, [other])
