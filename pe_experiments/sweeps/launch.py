"""Execute the runs of a sweep: look them up, submit those with work to do, show progress, summarise."""

from __future__ import annotations

import math
import shlex
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.utils import JobReturn, JobStatus
from omegaconf import DictConfig, OmegaConf

from pe_experiments.configuration.choices import key_of
from pe_experiments.configuration.hydra_errors import explain_error
from pe_experiments.configuration.schema import Config, validated
from pe_experiments.store.directory import State, validation_loss
from pe_experiments.sweeps.executors import SCHEMAS, Executor, RunCall, RunOutcome, executor_for
from pe_experiments.terminal import process
from pe_experiments.terminal.console import Lines, complain, say
from pe_experiments.terminal.errors import NotApplicable, UserError, one_line, sentence
from pe_experiments.terminal.files import make_folder

if TYPE_CHECKING:
    from hydra_plugins.pe_experiments.sweeps import RunLauncher
    from pe_experiments.store.requested import Run

MOST_LISTED = 10  # failed runs listed per reason
# Keys of evaluations that no published study has.
OTHER_EVALUATIONS = {"window", "decoding", "save", "metrics"}
PROGRESS_SECONDS = 2.0  # between readings of the progress of all runs, one file per run
Published = dict[str, set[tuple[int, int]]]  # see `published_keys`
LAUNCHED: list[Job] = []  # all runs of the current sweep, which a sweeper may launch in several batches


@dataclass(eq=False)
class Job:
    overrides: list[str]  # arguments of train.py for this run alone
    flags: Sequence[str] = ()  # of the sweep's command, which select the user's config files
    run: Run | None = None  # None if the configuration is invalid
    state: State = State.FAILED
    reason: str = ""  # why it failed or does not apply

    @property
    def name(self) -> str:
        return self.run.name if self.run else " ".join(self.overrides)

    @property
    def pending(self) -> bool:
        """Whether the run has work to do and can start."""
        done = (State.FINISHED, State.DIVERGED, State.PUBLISHED, State.NOT_APPLICABLE)
        return self.run is not None and self.state not in done

    @property
    def done(self) -> bool:
        return self.state in (State.FINISHED, State.DIVERGED)

    @property
    def loss(self) -> float:
        result = self.run.directory.read_result() if self.done and self.run else None
        return validation_loss(result) if result else math.nan

    @property
    def command(self) -> list[str]:
        """Return the command that executes only this run."""
        has_preset = any(text.startswith("sweep=") for text in self.overrides)
        mode = ["hydra.mode=RUN"] if has_preset else []
        return [*process.typed_command("train"), *self.flags, *mode, *self.overrides]


def launch(launcher: RunLauncher, job_overrides: Sequence[Sequence[str]]) -> Sequence[JobReturn]:
    """Execute the unfinished runs of a sweep, or list all runs (``dry_run=true``)."""
    config = launcher.config
    if "training" not in config:
        raise UserError("-m is for train.py; the other commands take one value of each key")
    settings = validated(SCHEMAS[launcher.kind], launcher.settings, "hydra", "launcher")
    if len(job_overrides) > settings.max_runs:
        limit = f"hydra.launcher.max_runs={settings.max_runs}"
        raise UserError(f"{len(job_overrides)} runs are more than {limit}; raise the limit")
    jobs = look_up(launcher, job_overrides)
    LAUNCHED.extend(jobs)
    if "GridSweeper" not in config.hydra.sweeper._target_:  # others may write files there
        make_folder(Path(config.hydra.sweep.dir))
    failed = [job for job in jobs if job.run is None and job.state is State.FAILED]
    if len(failed) == len(jobs) and len(by_reason(failed)) == 1:
        raise UserError(failed[0].reason)
    callbacks = launcher.hydra_context.callbacks.callbacks
    reports = [callback for callback in callbacks if hasattr(callback, "before_runs")]
    for report in reports:
        report.before_runs(LAUNCHED)
    dry_run = config.get("dry_run") is True
    if dry_run:
        for job in jobs:
            say(f"{job.state:<14} {job.name}" + (f"  ({one_line(job.reason)})" if job.reason else ""))
        say(totals(jobs))
        say("nothing was run (dry_run=true)")
    else:
        title = str(config.get("study") or "sweep")
        if ready := sum(job.done or job.state is State.PUBLISHED for job in jobs):
            say(f"{title}: {ready} of {len(jobs)} runs are finished already")
        for reason, invalid in by_reason(job for job in jobs if job.run is None).items():
            say(f"{title}: {len(invalid)} of {len(jobs)} runs cannot start: {reason}")
        pending = {job: job.run for job in jobs if job.run and job.pending}
        if pending:
            executor = executor_for(launcher.kind, settings, next(iter(pending.values())).config)
            _execute(pending, executor, title, reports)
        _say_outcome(jobs)
        if "GridSweeper" not in config.hydra.sweeper._target_:  # which chooses the next runs by these
            for job in jobs:
                say(f"{' '.join(job.overrides)}: validation loss {job.loss:.4g}")
    process.exit_code |= any(job.state is State.FAILED and not (dry_run and job.pending) for job in jobs)
    # Sweepers of Hydra minimise the loss.
    return [JobReturn(job.overrides, status=JobStatus.COMPLETED, _return_value=job.loss) for job in jobs]


def look_up(launcher: RunLauncher, job_overrides: Sequence[Sequence[str]]) -> list[Job]:
    """Compose each run once and read its state; an error in one run affects only that run."""
    from pe_experiments.store.identity import untracked  # imports torch
    from pe_experiments.store.requested import Run
    from pe_experiments.store.study_folder import published_keys

    loader = launcher.hydra_context.config_loader
    published = cache(published_keys)
    flags = _config_flags(launcher.config)
    jobs: list[Job] = []
    display = Lines()
    display.start("looking up runs", len(job_overrides))
    for overrides in job_overrides:
        job = Job(list(overrides), flags)
        jobs.append(job)
        try:
            composed = loader.load_sweep_config(launcher.config, list(overrides))
            job.run = Run(_checked(composed, overrides))
            if names := untracked(job.run.identity.classes):
                why = "is made at run time, so a sweep cannot find its runs again"
                raise UserError(f"{names[0]} {why}; allowed: a class at the top level of a file")
            _read_state(job, job.run, published)
        except Exception as error:
            explanation = explain_error(error, overrides)
            job.state = State.NOT_APPLICABLE if isinstance(explanation, NotApplicable) else State.FAILED
            job.reason = sentence(explanation)
            job.run = None
        display.step(len(jobs))
    display.stop()
    return jobs


def _checked(composed: DictConfig, overrides: Sequence[str]) -> Config:
    from pe_experiments.store.parent import inherited

    sections = OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"])
    config = validated(Config, inherited(sections, map(key_of, overrides)))
    if config.trainer.devices * config.trainer.num_nodes > 1:
        problem = f"trainer.devices={config.trainer.devices}: a sweep trains each run on one device"
        raise UserError(f"{problem}; run it alone, without -m")
    return config


def _read_state(job: Job, run: Run, published: Callable[[Path], Published]) -> None:
    job.state = run.shown_state
    if job.state in (State.FAILED, State.DIVERGED):
        job.reason = str((run.directory.read_result() or {}).get("reason", ""))
    lengths = published(Path(run.config.results_dir, run.config.study or "")).get(run.identity.key)
    requested = [(length, run.config.evaluation.examples) for length in run.experiment.evaluation_lengths]
    if lengths is None or run.identity.classes or not OTHER_EVALUATIONS.isdisjoint(run.evaluation):
        is_published = False
    else:  # a published run that diverged has no lengths
        is_published = not lengths or lengths.issuperset(requested)
    if is_published and not (job.done or run.config.rerun):
        job.state = State.PUBLISHED
    if run.config.dry_run and job.pending:  # checks that would fail when the run starts
        from pe_experiments.run import try_out

        try_out(run)
        job.reason = job.reason or run.remark


def _config_flags(config: DictConfig) -> list[str]:
    folders = [
        source.path for source in config.hydra.runtime.config_sources if source.provider == "command-line"
    ]
    flags = [word for folder in folders for word in ("--config-dir", str(folder))]
    name = config.hydra.job.config_name
    if name != "config":
        flags += ["--config-name", name]
    return flags


def _execute(runs: Mapping[Job, Run], executor: Executor, title: str, reports: Sequence[Any]) -> None:
    """Submit all runs; update jobs, display and reports until every future is done."""
    display = Lines()
    steps = {job: run.config.training.steps for job, run in runs.items()}
    try:
        calls = [RunCall(run.config, job.command) for job, run in runs.items()]
        futures = dict(zip(runs, executor.submit(calls), strict=True))
        display.start(title, sum(steps.values()), sum(map(_saved_steps, runs.values())))
        last_read = time.monotonic()
        while futures:
            time.sleep(executor.poll_seconds)
            ended = [job for job, future in futures.items() if future.done()]
            for job in ended:
                _record(job, runs[job], futures.pop(job))
            if ended:
                for report in reports:
                    try:
                        report.after_run(LAUNCHED)
                    except Exception as error:  # such as a full disk, which must not stop the runs
                        complain(f"the report failed ({sentence(error)})")
            if not futures or time.monotonic() - last_read >= PROGRESS_SECONDS:
                last_read = time.monotonic()
                states = Counter("done" if job.done else str(job.state) for job in runs if job not in futures)
                states["remaining"] = len(futures)
                display.note(", ".join(f"{n} {state}" for state, n in sorted(states.items()) if n))
                display.step(sum(_saved_steps(runs[job]) if job in futures else steps[job] for job in runs))
    finally:
        display.stop()
        executor.stop()


def _record(job: Job, run: Run, future: Any) -> None:
    try:
        outcome: RunOutcome = future.result()
    except Exception as error:  # raised by the executor, since calls do not raise
        reason = f"its process ended before the run: {one_line(str(error))}"
        if getattr(error, "exitcode", 0) == -signal.SIGKILL:
            reason = "its process was killed (is there enough memory?)"
        outcome = RunOutcome(error=reason)
    for line in outcome.lines:
        say(line)
    job.reason = outcome.error
    if outcome.error:
        job.state = State.NOT_APPLICABLE if outcome.not_applicable else State.FAILED
    else:
        run.directory = run.final_directory  # a rerun has taken the place of the earlier run
        job.state = run.state
        if not job.done:
            job.reason = "its code was edited after the sweep began; repeat the command"
            job.state = State.FAILED
    if job.reason:
        say(f"{job.name}: {job.state} ({one_line(job.reason)})")


def _saved_steps(run: Run) -> int:
    """Return the last training step in the metrics file of a run, or 0."""
    try:
        return int(run.directory.metrics.read_text().splitlines()[-1].partition(",")[0])
    except (OSError, ValueError, IndexError):
        return 0


def by_reason(jobs: Iterable[Job]) -> dict[str, list[Job]]:
    reasons: dict[str, list[Job]] = {}
    for job in jobs:
        reasons.setdefault(one_line(job.reason), []).append(job)
    return reasons


def totals(jobs: Iterable[Job]) -> str:
    """Return the number of jobs in each state, as ``60 runs: 58 finished, 2 failed``."""
    counts = Counter(str(job.state) for job in jobs)
    runs = "1 run" if counts.total() == 1 else f"{counts.total()} runs"
    return f"{runs}: " + ", ".join(f"{n} {state}" for state, n in counts.most_common())


def _say_outcome(jobs: Sequence[Job]) -> None:
    say(totals(jobs))
    for reason, skipped in by_reason(job for job in jobs if job.state is State.NOT_APPLICABLE).items():
        say(f"not applicable: {reason} ({len(skipped)} run{'s' if len(skipped) > 1 else ''})")
    for reason, failed in by_reason(job for job in jobs if job.state is State.FAILED).items():
        complain(reason)
        for job in failed[:MOST_LISTED]:
            label = f"failed: {job.name}" if job.run else "failed"
            say(f"{label}; run it alone: {shlex.join(job.command)}")
        if len(failed) > MOST_LISTED:
            say(f"{len(failed) - MOST_LISTED} more failed for this reason")
