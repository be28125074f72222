"""How far each run of a sweep is, found out without starting any."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pe_experiments.command_line import sentence
from pe_experiments.config import Config, check
from pe_experiments.console import Display
from pe_experiments.errors import NotApplicable
from pe_experiments.runs import RunDirectory, run_directory, seed_and_hash
from pe_experiments.sweeps.expansion import Overrides, Request

UNNAMED = "multirun"  # where a sweep that names no study lists its runs and leaves its comparison
FINISHED, DIVERGED, FAILED, NOT_APPLICABLE = "finished", "diverged", "failed", "not applicable"
DONE = (FINISHED, DIVERGED)
PENDING = ("new", "interrupted", FAILED, "to evaluate")  # states in which there is something to do


@dataclass
class Job:
    """One run of a sweep and what has become of it so far.

    Attributes:
        overrides: what train.py would be given for it alone.
        config: composed.
        state: ``finished``, ``diverged``, ``interrupted``, ``failed``, ``new``, ``to evaluate`` (trained,
            evaluated otherwise) or ``not applicable``; while it is carried out also those of `launching`.
        name: of the run; empty where its configuration is wrong.
        reason: why it failed or does not apply.
        can_start: False where it failed before it could be tried.
    """

    overrides: Overrides
    config: dict[str, Any]
    state: str
    name: str = ""
    reason: str = ""
    can_start: bool = True

    @property
    def run(self) -> RunDirectory:
        return run_directory(self.config["results_dir"], self.name)

    @property
    def steps(self) -> int:
        """Of its training."""
        return int(self.config["training"]["steps"])

    @property
    def place(self) -> tuple[str, str]:
        """Its results directory and study."""
        return str(self.config["results_dir"]), str(self.config["study"] or "")

    @property
    def study_folder(self) -> Path:
        return Path(self.config["results_dir"]) / str(self.config["study"] or UNNAMED)


def plan_jobs(requests: Sequence[Request], display: Display) -> list[Job]:
    """The state of every run, each run once."""
    jobs: dict[tuple[str, ...], Job] = {}
    display.start("looking up runs", len(requests))
    for number, request in enumerate(requests, 1):
        job = Job(request.overrides, request.config, FAILED, reason=request.problem, can_start=False)
        if not request.problem:
            try:
                _plan(job, check(request.config))
            except NotApplicable as error:
                job.state, job.reason = NOT_APPLICABLE, str(error)
            except Exception as error:  # the others must go on
                job.reason = sentence(error) or type(error).__name__
        evaluation = str(request.config.get("evaluation"))
        jobs.setdefault((*job.place, seed_and_hash(job.name), evaluation) if job.name else job.overrides, job)
        display.step(number)
    display.stop()
    return list(jobs.values())


def _plan(job: Job, checked: Config) -> None:
    import torch

    from pe_experiments.components import user_errors
    from pe_experiments.config import resolve
    from pe_experiments.runs import plan

    experiment = resolve(checked)
    with user_errors("pe"), torch.random.fork_rng(devices=[]):
        experiment.components["pe"].build(experiment.shape)
    planned = plan(experiment)
    job.name, job.can_start, job.state = planned.run.name, True, planned.state
    if job.state in (FAILED, DIVERGED):
        job.reason = (job.run.read_result() or {}).get("reason", "")
