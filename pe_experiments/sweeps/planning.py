"""How far each run of a sweep is, found out without starting any."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pe_experiments.command_line import sentence
from pe_experiments.config import Config, check
from pe_experiments.errors import NotApplicable
from pe_experiments.runs import RunDirectory, run_directory, state_of
from pe_experiments.sweeps.expansion import Overrides, Request
from pe_experiments.sweeps.memory import Memory

UNNAMED = "multirun"  # where a sweep that names no study lists its runs and leaves its comparison
FINISHED, DIVERGED, FAILED, NOT_APPLICABLE = "finished", "diverged", "failed", "not applicable"
DONE = (FINISHED, DIVERGED)
LEFT = ("new", "interrupted", FAILED, "to evaluate")  # states in which there is something to do


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


def plan_jobs(
    requests: Iterable[Request], remember: bool, before_torch: Callable[[], None] = lambda: None
) -> list[Job]:
    """The state of every run, each run once.

    Args:
        requests: the runs asked for.
        remember: note the names that had to be worked out.
        before_torch: called when a name has to be worked out.
    """
    memories: dict[Path, Memory] = {}
    jobs: dict[tuple[str, ...], Job] = {}
    for request in requests:
        job = Job(request.overrides, request.config, FAILED, reason=request.problem, can_start=False)
        if not request.problem:
            try:
                checked = check(request.config)
                if job.study_folder not in memories:
                    memories[job.study_folder] = Memory(job.study_folder)
                _plan(job, checked, memories[job.study_folder], before_torch)
            except NotApplicable as error:
                job.state, job.reason = NOT_APPLICABLE, str(error)
            except Exception as error:  # the others must go on
                job.reason = sentence(error) or type(error).__name__
        evaluation = str(request.config.get("evaluation"))
        jobs.setdefault((*job.place, job.name, evaluation) if job.name else job.overrides, job)
    if remember and any(job.name for job in jobs.values()):
        for memory in memories.values():
            memory.save()
    return list(jobs.values())


def _plan(job: Job, checked: Config, memory: Memory, before_torch: Callable[[], None]) -> None:
    facts = memory.recall(job.config)
    if facts is None:
        before_torch()
        facts = _facts(checked)
        memory.learn(job.config, facts)
    if "not_applicable" in facts:
        raise NotApplicable(facts["not_applicable"])
    job.name, job.can_start = facts["name"], True
    if checked.rerun:
        job.state = "new"
        return
    job.state = state_of(job.run, facts["evaluation"])
    if job.state in (FAILED, DIVERGED):
        job.reason = (job.run.read_result() or {}).get("reason", "")


def _facts(checked: Config) -> dict[str, str]:
    """What follows from configuration and code alone; this is what imports torch."""
    import torch

    from pe_experiments.components import user_errors
    from pe_experiments.config import resolve
    from pe_experiments.identity import identify, short_hash
    from pe_experiments.runs import evaluated

    try:
        experiment = resolve(checked)
        with user_errors("pe"), torch.random.fork_rng(devices=[]):
            experiment.components["pe"].build(experiment.shape)
    except NotApplicable as error:
        return {"not_applicable": str(error)}
    return {"name": identify(experiment).name, "evaluation": short_hash(evaluated(experiment))}
