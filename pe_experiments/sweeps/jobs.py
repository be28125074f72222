"""Determine the states of the runs of a sweep without starting any."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pe_experiments.configuration.compose import Composer
from pe_experiments.configuration.overrides import key_of
from pe_experiments.configuration.schema import check
from pe_experiments.store.directory import RunDirectory, run_directory, seed_and_hash
from pe_experiments.terminal.console import Display
from pe_experiments.terminal.errors import NotApplicable, UserError, one_line, sentence
from pe_experiments.terminal.process import typed_command

FINISHED, DIVERGED, FAILED, NOT_APPLICABLE = "finished", "diverged", "failed", "not applicable"
PUBLISHED = "published"  # its results are in the published study, so no files are needed
DONE = (FINISHED, DIVERGED)
PENDING = ("new", "in progress", "interrupted", FAILED, "to evaluate")  # states with work to do


@dataclass(eq=False)
class Job:
    """One run of a sweep and its state."""

    overrides: tuple[str, ...]  # arguments of train.py for this run alone
    number: int = 0  # index in the sweep
    config: dict[str, Any] = field(default_factory=dict)  # composed configuration; empty if composing failed
    state: str = FAILED
    name: str = ""  # empty if the configuration is invalid
    reason: str = ""  # why it failed or does not apply
    key: str = ""  # shared with a published run of the same configuration
    can_start: bool = False  # False if it failed before the start
    loss: float | None = None  # on fresh examples of the training lengths

    @property
    def run(self) -> RunDirectory:
        return run_directory(self.config["results_dir"], self.name)

    @property
    def steps(self) -> int:
        return int(self.config["training"]["steps"])

    @property
    def study(self) -> tuple[str, str]:
        return str(self.config["results_dir"]), str(self.config["study"] or "")

    @property
    def same(self) -> tuple[str, ...]:
        """Return a key that is equal for identical runs."""
        where, evaluation = (str(self.config.get(key)) for key in ("results_dir", "evaluation"))
        return (where, seed_and_hash(self.name), evaluation) if self.name else self.overrides

    def alone(self, flags: Sequence[str]) -> list[str]:
        """Return the command that executes this run alone; ``flags`` select the user's config files."""
        preset = any(text.startswith("sweep=") for text in self.overrides)
        mode = ["hydra.mode=RUN"] if preset else []
        return [*typed_command("train"), *flags, *mode, *self.overrides]

    @property
    def pending(self) -> bool:
        return self.state in PENDING and self.can_start


def look_up(
    runs: Sequence[Sequence[str]], composer: Composer, display: Display, dry_run: bool, first: int = 0
) -> list[Job]:
    """Return every distinct run with its state; an error in one run affects only that run."""
    jobs: dict[tuple[str, ...], Job] = {}
    known: dict[str, Any] = {}
    published: dict[tuple[str, str], set[str]] = {}
    display.start("looking up runs", len(runs))
    for number, overrides in enumerate(runs, 1):
        job = Job(tuple(overrides), first + number - 1)
        try:
            job.config = composer.compose(overrides)
            if job.config.get("init_from") is not None:
                from pe_experiments.store.parent import continued  # imports torch

                job.config = continued(job.config, map(key_of, overrides))
            if job.study not in published:
                published[job.study] = _published_in(*job.study)
            _look_up_one(job, known, dry_run, set() if job.config["rerun"] else published[job.study])
        except Exception as error:
            job.state = NOT_APPLICABLE if isinstance(error, NotApplicable) else FAILED
            job.reason = sentence(error)
            job.can_start = False
        first_of_its_kind = jobs.setdefault((*job.same, str(job.config.get("study"))), job)
        _refuse_ignored(first_of_its_kind, job)
        display.step(number)
    display.stop()
    return list(jobs.values())


def _refuse_ignored(first: Job, job: Job) -> None:
    """Refuse several values of an option that does not make another run, such as ``label`` or ``logger``."""
    if first.config != job.config:
        typed = " ".join(text for text in job.overrides if text not in first.overrides)
        earlier = " ".join(text for text in first.overrides if text not in job.overrides)
        raise UserError(f"{typed} is the same run as {earlier}; a sweep runs it once, so give one value")


def _published_in(results_dir: str, study: str) -> set[str]:
    if not (study and Path(results_dir, study, "provenance.csv").exists()):
        return set()
    from pe_experiments.published.archive import published_keys  # imports pandas

    return published_keys(Path(results_dir, study))


def _look_up_one(job: Job, known: dict[str, Any], dry_run: bool, published: Collection[str]) -> None:
    checked = check(job.config)  # before torch is imported
    import torch

    from pe_experiments.configuration.experiment import Experiment, resolve
    from pe_experiments.configuration.parts import user_errors
    from pe_experiments.store.names import short_hash
    from pe_experiments.store.status import run_status

    def built() -> Experiment:
        experiment = resolve(checked)
        with user_errors("pe"), torch.random.fork_rng(devices=[]):
            experiment.components["pe"].build(experiment.shape)
        return experiment

    experiment = _once(known, str(job.config | {"seed": None}), built)  # only the name depends on the seed
    status = run_status(replace(experiment, config=checked))
    job.name = status.run.name
    job.can_start = True
    job.state = status.state
    hashed = status.identity.hashed
    job.key = "" if hashed["classes"] else short_hash([hashed["config"], hashed["data"]])
    if job.key in published and job.state not in DONE:
        job.state = PUBLISHED
    if job.state in (FAILED, DIVERGED):
        job.reason = (job.run.read_result() or {}).get("reason", "")
    if dry_run and job.pending:  # checks that would fail when a run starts
        from pe_experiments.run import try_out

        sizes = ("batch_size", "min_length", "max_length", "batching")
        shared = [
            job.config["model"],
            job.config["evaluation"],
            job.config["trainer"]["precision"],
            *map(job.config["training"].get, sizes),
        ]
        halves = [str([*shared, *map(job.config.get, parts)]) for parts in (("pe", "positions"), ("task",))]
        if not all(map(known.get, halves)):  # every encoding and every task has passed with some other part
            _once(known, str(halves), lambda: try_out(experiment))
            known.update(dict.fromkeys(halves, True))
        job.reason = job.reason or status.remark


def _once(known: dict[str, Any], key: str, make: Callable[[], Any]) -> Any:
    """Return or raise the result of the first call of ``make`` with this key."""
    if key not in known:
        try:
            known[key] = make()
        except Exception as error:
            known[key] = error
    if isinstance(known[key], Exception):
        raise known[key]
    return known[key]


def totals(jobs: Iterable[Job]) -> str:
    """Return ``60 runs: 58 finished, 2 failed``."""
    counts = Counter(job.state for job in jobs)
    return f"{counts.total()} runs: " + ", ".join(f"{n} {state}" for state, n in counts.most_common())


def by_reason(jobs: Iterable[Job], state: str) -> dict[str, list[Job]]:
    """Return the jobs in a state, by its reason."""
    reasons: dict[str, list[Job]] = {}
    for job in jobs:
        if job.state == state:
            reasons.setdefault(one_line(job.reason), []).append(job)
    return reasons
