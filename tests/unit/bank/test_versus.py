"""Test what a comparison with a bank accepts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest

from pe_experiments.bank.versus import Versus
from pe_experiments.comparison.runs import Runs
from pe_experiments.configuration.experiment import Experiment
from pe_experiments.store.names import jsonable
from pe_experiments.sweeps.jobs import Job
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
    saved = {name: {"identity": {"trained": jsonable(e.trained)}} for name, e in experiments.items()}
    return Runs(runs, pd.DataFrame(points), saved=saved)


def job_of(experiment: Experiment, name: str) -> Job:
    job = Job((), config=jsonable(experiment.config.model_dump(by_alias=True)))
    job.name = name
    return job


def test_tasks_of_one_class_are_told_apart_by_their_arguments(tiny: Tiny) -> None:
    names = ("addition", "addition_reversed")
    experiments = {name: tiny(f"task={name}", "pe=none", LENGTHS) for name in names}
    versus = Versus("small")
    versus.bank_runs = bank_of(**experiments)
    jobs = [job_of(tiny(f"task={name}", "pe=rope", LENGTHS), name) for name in names]
    versus._require_settings(jobs)
    assert [versus._task(job) for job in jobs] == ["addition", "addition_reversed"]
    other = job_of(tiny("task=addition", "task.answer=reversed", "pe=rope", LENGTHS), "other")
    with pytest.raises(UserError, match="must be as in small"):
        versus._require_settings([other])
