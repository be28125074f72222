"""The runs of a sweep: how far each is, found out without starting any, and how long the rest will take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from pe_experiments.config import check
from pe_experiments.console import Display, duration, say
from pe_experiments.errors import NotApplicable, one_line, sentence
from pe_experiments.files import read_json
from pe_experiments.process import typed_command
from pe_experiments.runs import RunDirectory, kind_of, run_directory, seed_and_hash
from pe_experiments.sweeps.expansion import Overrides, value_of

FINISHED, DIVERGED, FAILED, NOT_APPLICABLE = "finished", "diverged", "failed", "not applicable"
PUBLISHED = "published"  # its results stand in the published study; nothing of it needs to be here
DONE = (FINISHED, DIVERGED)
PENDING = ("new", "interrupted", FAILED, "to evaluate")  # states in which there is something to do


@dataclass
class Job:
    """One run of a sweep and what has become of it so far.

    Attributes:
        overrides: what train.py would be given for it alone.
        config: composed; empty where that failed.
        state: ``finished``, ``diverged``, ``interrupted``, ``failed``, ``new``, ``to evaluate`` (trained,
            evaluated otherwise), ``published`` or ``not applicable``; while it is carried out also those of
            `worker`.
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
        """Number of training steps."""
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

    def alone(self, own: Path | None) -> list[str]:
        """The command that carries out this run alone; ``own`` is a folder of config files of one's own."""
        flags = ["--config-dir", str(own)] if own else []
        flags += ["hydra.mode=RUN"] if value_of(self.overrides, "sweep") else []
        return [*typed_command("train"), *flags, *self.overrides]

    @property
    def pending(self) -> bool:
        """Whether there is something to do."""
        return self.state in PENDING and self.can_start


def look_up(
    runs: Sequence[Overrides],
    compose: Callable[[Overrides], dict[str, Any]],
    display: Display,
    dry_run: bool = False,
    published: Collection[str] = (),
) -> list[Job]:
    """The state of every run, each run once; an error in one run affects only that run.

    Args:
        runs: as train.py would be given them.
        compose: makes a configuration of one.
        display: shows how far this is.
        dry_run: also try what would fail as soon as a run starts, once for all that differ in seed and rate.
        published: names of runs that need not be done again.
    """
    jobs: dict[tuple[str, ...], Job] = {}
    known: dict[str, Any] = {}
    display.start("looking up runs", len(runs))
    for number, overrides in enumerate(runs, 1):
        job = Job(overrides)
        try:
            job.config = compose(overrides)
            _plan(job, known, dry_run, published)
        except Exception as error:
            job.state = NOT_APPLICABLE if isinstance(error, NotApplicable) else FAILED
            job.reason, job.can_start = sentence(error), False
        jobs.setdefault((*job.same, str(job.config.get("study"))), job)
        display.step(number)
    display.stop()
    return list(jobs.values())


def _plan(job: Job, known: dict[str, Any], dry_run: bool, published: Collection[str]) -> None:
    checked = check(job.config)  # before torch is imported
    import torch

    from pe_experiments.components import user_errors
    from pe_experiments.config import Experiment, resolve
    from pe_experiments.runs import plan

    def built() -> Experiment:
        experiment = resolve(checked)
        with user_errors("pe"), torch.random.fork_rng(devices=[]):
            experiment.components["pe"].build(experiment.shape)
        return experiment

    experiment = _once(known, str(job.config | {"seed": None}), built)  # on the seed only the name depends
    planned = plan(replace(experiment, config=checked))
    job.name, job.can_start, job.state = planned.run.name, True, planned.state
    if job.name in published and job.state not in DONE:
        job.state = PUBLISHED
    if job.state in (FAILED, DIVERGED):
        job.reason = (job.run.read_result() or {}).get("reason", "")
    if dry_run and job.pending:
        from pe_experiments.experiment import try_out

        _once(known, f"{kind_of(job.config)} {job.config['evaluation']}", lambda: try_out(experiment))


def _once(known: dict[str, Any], key: str, make: Callable[[], Any]) -> Any:
    """What ``make`` returned or raised when it was first called under that key."""
    if key not in known:
        try:
            known[key] = make()
        except Exception as error:
            known[key] = error
    if isinstance(known[key], Exception):
        raise known[key]
    return known[key]


def list_jobs(jobs: Sequence[Job], processes: int) -> None:
    """Say state, name and reason of every run, and the time that is left with so many at once."""
    for job in jobs:
        reason = f"  ({one_line(job.reason)})" if job.reason else ""
        say(f"{job.state:<14} {job.name or ' '.join(job.overrides)}{reason}")
    say(f"{totals(jobs)}; {estimate([job for job in jobs if job.pending], processes)}")
    say("nothing was run (dry_run=true)")


def estimate(pending: Sequence[Job], processes: int) -> str:
    """How long training will take, from the seconds per step that finished runs of these kinds recorded."""
    steps: Counter[str] = Counter()
    for job in pending:
        steps[kind_of(job.config)] += job.steps if job.state != "to evaluate" else 0
    recorded: dict[str, list[float]] = {}
    for results_dir in {job.config["results_dir"] for job in pending}:
        for path in Path(results_dir).glob("runs/*/result.json"):
            with suppress(OSError, ValueError, KeyError, TypeError):  # for a comparison to complain of
                result = read_json(path)
                if result["kind"] in steps:
                    recorded.setdefault(result["kind"], []).append(float(result["seconds_per_step"]))
    if not steps.total():
        return "nothing is left to train"
    if not recorded:
        return "the time is unknown: none like these has been run here"
    speeds = {kind: fmean(seconds) for kind, seconds in recorded.items()}
    typical = fmean(speeds.values())
    seconds = sum(count * speeds.get(kind, typical) for kind, count in steps.items()) / processes
    known = f"{len(speeds)} of {len(steps)} kinds of run measured in finished runs"
    return f"about {duration(seconds)} of training ({known})"


def totals(jobs: Iterable[Job]) -> str:
    """``60 runs: 58 finished, 2 failed``."""
    counts = Counter(job.state for job in jobs)
    return f"{counts.total()} runs: " + ", ".join(f"{n} {state}" for state, n in counts.most_common())


def by_reason(jobs: Iterable[Job], state: str) -> dict[str, list[Job]]:
    """The runs in that state by the reason for it."""
    reasons: dict[str, list[Job]] = {}
    for job in jobs:
        if job.state == state:
            reasons.setdefault(one_line(job.reason), []).append(job)
    return reasons
