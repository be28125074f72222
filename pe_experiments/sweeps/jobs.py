"""Determine the state of each run of a sweep without starting it."""

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
PUBLISHED = "published"  # results are in the published study, so the run need not be repeated
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
    key: str = ""  # `config_key`, by which published runs are found; empty for runs with user classes
    can_start: bool = False  # False if the configuration is invalid
    loss: float | None = None  # on fresh examples of the training lengths

    @property
    def run(self) -> RunDirectory:
        return run_directory(self.config["results_dir"], self.name)

    @property
    def steps(self) -> int:
        return int(self.config["training"]["steps"])

    @property
    def study(self) -> tuple[str, str]:
        """The results directory and the name of the study, which may be empty."""
        return str(self.config["results_dir"]), str(self.config["study"] or "")

    @property
    def deduplication_key(self) -> tuple[str, ...]:
        """A key that is equal for identical runs; invalid configurations are compared by their overrides."""
        if not self.name:
            return self.overrides
        return str(self.config["results_dir"]), seed_and_hash(self.name), str(self.config["evaluation"])

    def single_run_command(self, flags: Sequence[str]) -> list[str]:
        """Return the command that executes only this run; ``flags`` select the user's config files."""
        has_preset = any(text.startswith("sweep=") for text in self.overrides)
        mode = ["hydra.mode=RUN"] if has_preset else []
        return [*typed_command("train"), *flags, *mode, *self.overrides]

    @property
    def pending(self) -> bool:
        """Whether the run has work to do and can start."""
        return self.state in PENDING and self.can_start


def look_up(
    runs: Sequence[Sequence[str]], composer: Composer, display: Display, dry_run: bool, first_number: int = 0
) -> list[Job]:
    """Return every distinct run with its state; an error in one run affects only that run.

    Args:
        runs: the overrides of each run.
        composer: composes the configurations.
        display: shows the progress.
        dry_run: also execute the checks that a run makes when it starts.
        first_number: number of the first run.

    Raises:
        UserError: two runs differ only in options that do not identify a run.
    """
    jobs: dict[tuple[str, ...], Job] = {}
    cache: dict[str, Any] = {}  # of `_look_up_job`
    published: dict[tuple[str, str], set[str]] = {}  # keys of published runs by `Job.study`
    display.start("looking up runs", len(runs))
    for number, overrides in enumerate(runs, 1):
        job = Job(tuple(overrides), first_number + number - 1)
        try:
            job.config = composer.compose(overrides)
            if job.config.get("init_from") is not None:
                from pe_experiments.store.parent import inherit_settings  # imports torch

                job.config = inherit_settings(job.config, map(key_of, overrides))
            if job.study not in published:
                published[job.study] = _published_keys(*job.study)
            _look_up_job(job, cache, dry_run, set() if job.config["rerun"] else published[job.study])
        except Exception as error:
            job.state = NOT_APPLICABLE if isinstance(error, NotApplicable) else FAILED
            job.reason = sentence(error)
            job.can_start = False
        first_job = jobs.setdefault((*job.deduplication_key, str(job.config.get("study"))), job)
        _refuse_conflict(first_job, job)
        display.step(number)
    display.stop()
    return list(jobs.values())


def _refuse_conflict(first: Job, job: Job) -> None:
    """Raise an error if two jobs are the same run but differ in an option such as ``label`` or ``logger``."""
    if first.config != job.config:
        overrides = " ".join(text for text in job.overrides if text not in first.overrides)
        earlier = " ".join(text for text in first.overrides if text not in job.overrides)
        raise UserError(f"{overrides} is the same run as {earlier}; a sweep runs it once, so give one value")


def _published_keys(results_dir: str, study: str) -> set[str]:
    """Return the keys of the published runs of a study, or an empty set if it is not published."""
    if not (study and Path(results_dir, study, "provenance.csv").exists()):
        return set()
    from pe_experiments.published.archive import published_keys  # imports pandas

    return published_keys(Path(results_dir, study))


def _look_up_job(job: Job, cache: dict[str, Any], dry_run: bool, published: Collection[str]) -> None:
    """Check the configuration of a job and set its name, key, state and reason.

    Args:
        job: the job, with its composed configuration.
        cache: results shared by all jobs of a sweep.
        dry_run: also execute the checks that a run makes when it starts.
        published: keys of published runs.
    """
    valid_config = check(job.config)  # before torch is imported
    import torch

    from pe_experiments.configuration.experiment import Experiment, resolve
    from pe_experiments.configuration.parts import user_errors
    from pe_experiments.store.names import short_hash
    from pe_experiments.store.status import run_status

    def build_experiment() -> Experiment:
        experiment = resolve(valid_config)
        with user_errors("pe"), torch.random.fork_rng(devices=[]):
            experiment.components["pe"].build(experiment.shape)
        return experiment

    config_without_seed = str(job.config | {"seed": None})  # only the name of a run depends on the seed
    experiment = _cached(cache, config_without_seed, build_experiment)
    status = run_status(replace(experiment, config=valid_config))
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
        encoding = str([*shared, job.config.get("pe"), job.config.get("positions")])
        task = str([*shared, job.config.get("task")])
        # It suffices that every encoding passes with some task, and every task with some encoding.
        if not (cache.get(encoding) and cache.get(task)):
            _cached(cache, str([encoding, task]), lambda: try_out(experiment))
            cache[encoding] = cache[task] = True
        job.reason = job.reason or status.remark


def _cached(cache: dict[str, Any], key: str, compute: Callable[[], Any]) -> Any:
    """Return the cached result of ``compute``, or raise its cached exception."""
    if key not in cache:
        try:
            cache[key] = compute()
        except Exception as error:
            cache[key] = error
    if isinstance(cache[key], Exception):
        raise cache[key]
    return cache[key]


def totals(jobs: Iterable[Job]) -> str:
    """Return the number of jobs in each state, as ``60 runs: 58 finished, 2 failed``."""
    counts = Counter(job.state for job in jobs)
    return f"{counts.total()} runs: " + ", ".join(f"{n} {state}" for state, n in counts.most_common())


def by_reason(jobs: Iterable[Job], state: str) -> dict[str, list[Job]]:
    """Return the jobs in a state, grouped by reason."""
    reasons: dict[str, list[Job]] = {}
    for job in jobs:
        if job.state == state:
            reasons.setdefault(one_line(job.reason), []).append(job)
    return reasons
