"""The runs of a sweep: how far each is, found out without starting any, and how long the rest will take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pe_experiments.config import check
from pe_experiments.console import Display, duration, say
from pe_experiments.errors import NotApplicable, sentence
from pe_experiments.files import read_json
from pe_experiments.runs import COMPLETED, RunDirectory, kind_of, run_directory, seed_and_hash
from pe_experiments.sweeps.expansion import Overrides

UNNAMED = "multirun"  # where a sweep that names no study lists its runs and leaves its comparison
FINISHED, DIVERGED, FAILED, NOT_APPLICABLE = "finished", "diverged", "failed", "not applicable"
DONE = (FINISHED, DIVERGED)
PENDING = ("new", "interrupted", FAILED, "to evaluate")  # states in which there is something to do


@dataclass
class Job:
    """One run of a sweep and what has become of it so far.

    Attributes:
        overrides: what train.py would be given for it alone.
        config: composed; empty where that failed.
        state: ``finished``, ``diverged``, ``interrupted``, ``failed``, ``new``, ``to evaluate`` (trained,
            evaluated otherwise) or ``not applicable``; while it is carried out also those of `worker`.
        name: of the run; empty where its configuration is wrong.
        reason: why it failed or does not apply.
        can_start: False where it failed before it could be tried.
    """

    overrides: Overrides
    config: dict[str, Any] = field(default_factory=dict)
    state: str = FAILED
    name: str = ""
    reason: str = ""
    can_start: bool = False

    @property
    def run(self) -> RunDirectory:
        return run_directory(self.config["results_dir"], self.name)

    @property
    def steps(self) -> int:
        """Of its training."""
        return int(self.config["training"]["steps"])

    @property
    def study(self) -> tuple[str, str]:
        """Its results directory and the name of its study there."""
        return str(self.config["results_dir"]), str(self.config["study"] or "")

    @property
    def same(self) -> tuple[str, ...]:
        """Equal for runs that are one and the same."""
        if not self.name:
            return self.overrides
        return str(self.config["results_dir"]), seed_and_hash(self.name), str(self.config["evaluation"])

    @property
    def pending(self) -> bool:
        """Whether there is something to do."""
        return self.state in PENDING and self.can_start


def look_up(
    runs: Sequence[Overrides], compose: Callable[[Overrides], dict[str, Any]], display: Display
) -> list[Job]:
    """The state of every run, each run once; what is wrong with one costs that run alone."""
    jobs: dict[tuple[str, ...], Job] = {}
    resolved: dict[str, Any] = {}  # by configuration but for the seed, on which only the name depends
    display.start("looking up runs", len(runs))
    for number, overrides in enumerate(runs, 1):
        job = Job(overrides)
        try:
            job.config = compose(overrides)
            _plan(job, resolved)
        except NotApplicable as error:
            job.state, job.reason = NOT_APPLICABLE, str(error)
        except Exception as error:
            job.reason = sentence(error)
        jobs.setdefault((*job.same, str(job.config.get("study"))), job)
        display.step(number)
    display.stop()
    return list(jobs.values())


def _plan(job: Job, resolved: dict[str, Any]) -> None:
    checked = check(job.config)  # before torch is imported
    import torch

    from pe_experiments.components import user_errors
    from pe_experiments.config import resolve
    from pe_experiments.runs import plan

    same = str(job.config | {"seed": None})
    if same not in resolved:
        experiment = resolve(checked)
        with user_errors("pe"), torch.random.fork_rng(devices=[]):
            experiment.components["pe"].build(experiment.shape)
        resolved[same] = experiment
    planned = plan(replace(resolved[same], config=checked))
    job.name, job.can_start, job.state = planned.run.name, True, planned.state
    if job.state in (FAILED, DIVERGED):
        job.reason = (job.run.read_result() or {}).get("reason", "")


def try_out(jobs: Iterable[Job], display: Display) -> None:
    """Mark the runs that would fail at once; runs that differ in nothing but seed and rate are tried once."""
    from pe_experiments import experiment
    from pe_experiments.config import resolve

    pending = [job for job in jobs if job.pending]
    tried: dict[str, tuple[str, str]] = {}
    display.start("trying out runs", len(pending))
    for number, job in enumerate(pending, 1):
        kind = f"{kind_of(job.config)} {job.config['evaluation']}"
        if kind not in tried:
            tried[kind] = "", ""
            try:
                experiment.try_out(resolve(check(job.config)))
            except NotApplicable as error:
                tried[kind] = NOT_APPLICABLE, str(error)
            except Exception as error:
                tried[kind] = FAILED, sentence(error)
        if tried[kind][0]:
            (job.state, job.reason), job.can_start = tried[kind], False
        display.step(number)
    display.stop()


def estimate(jobs: Sequence[Job], processes: int) -> str:
    """The training time that is left, from the seconds per step that finished runs here recorded."""
    training = [job for job in jobs if job.pending and job.state != "to evaluate"]
    kinds = {id(job): kind_of(job.config) for job in training}
    recorded: dict[str, list[float]] = {}
    for results_dir in {job.config["results_dir"] for job in training}:
        for path in Path(results_dir).glob("runs/*/result.json"):
            try:
                result = read_json(path)
                if result["status"] == COMPLETED and result["kind"] in kinds.values():
                    recorded.setdefault(result["kind"], []).append(float(result["seconds_per_step"]))
            except (OSError, ValueError, KeyError, TypeError):  # for a comparison to complain of
                continue
    if not training:
        return "nothing is left to train"
    if not recorded:
        return "the time is unknown: none like these has been run here"
    speeds = {kind: sum(seconds) / len(seconds) for kind, seconds in recorded.items()}
    typical = sum(speeds.values()) / len(speeds)
    seconds = [job.steps * speeds.get(kinds[id(job)], typical) for job in training]
    known = f"{len(speeds)} of {len(set(kinds.values()))} kinds of run measured in finished runs"
    return f"about {duration(max(*seconds, sum(seconds) / processes))} of training ({known})"


def totals(jobs: Iterable[Job]) -> str:
    """``60 runs: 58 finished, 2 failed``."""
    counts = Counter(job.state for job in jobs)
    return f"{counts.total()} runs: " + ", ".join(f"{n} {state}" for state, n in counts.most_common())


def by_reason(jobs: Iterable[Job], state: str) -> dict[str, list[Job]]:
    """The runs in that state by the reason for it."""
    reasons: dict[str, list[Job]] = {}
    for job in jobs:
        if job.state == state:
            reasons.setdefault(" ".join(job.reason.split()), []).append(job)
    return reasons


def say_jobs(jobs: Iterable[Job]) -> None:
    """One line per run: its state, its name, and why where there is a reason."""
    for job in jobs:
        reason = " ".join(job.reason.split())
        say(f"{job.state:<14} {job.name or ' '.join(job.overrides)}" + (f"  ({reason})" if reason else ""))
