"""Execute the runs of a sweep: skip finished runs, show the progress and print a summary."""

from __future__ import annotations

import math
import os
import pickle
import shlex
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.utils import JobReturn, JobStatus
from omegaconf import DictConfig, OmegaConf

from pe_experiments.configuration.compose import Composer
from pe_experiments.configuration.hydra_errors import explain_error
from pe_experiments.configuration.schema import LauncherConfig, validated
from pe_experiments.sweeps.engines import (
    ELSEWHERE,
    SCHEMAS,
    Application,
    Engine,
    Order,
    engine_for,
    gpus,
)
from pe_experiments.sweeps.jobs import (
    DONE,
    FAILED,
    NOT_APPLICABLE,
    PUBLISHED,
    Job,
    by_reason,
    look_up,
    totals,
)
from pe_experiments.terminal import process
from pe_experiments.terminal.console import Display, Lines, complain, say
from pe_experiments.terminal.errors import NotApplicable, UserError, one_line, sentence

if TYPE_CHECKING:
    from hydra_plugins.pe_experiments.sweeps import RunLauncher

MOST_LISTED = 10  # failed runs listed per reason
PROGRESS_SECONDS = 2.0  # between readings of the progress of all runs, one file per run
LAUNCHED: list[Job] = []  # all runs of the current sweep, which a sweeper may launch in several batches


def launch_runs(launcher: RunLauncher, runs: Sequence[Sequence[str]], first: int) -> Sequence[JobReturn]:
    """Execute the unfinished runs, or list all runs (``dry_run=true``).

    Args:
        launcher: the launcher of Hydra that received the runs.
        runs: the overrides of each run.
        first: number of the first run.
    """
    config = launcher.config
    if "training" not in config:
        raise UserError("-m is for train.py; the other commands take one value of each key")
    hydra_overrides: Any = OmegaConf.to_container(config.hydra.overrides.hydra, resolve=False)
    hydra_options = [text.lstrip("+") for text in hydra_overrides]
    settings = _validated_settings(launcher, hydra_options, len(runs))
    # Only these options of Hydra affect the choices of a run; others may belong to a preset.
    search_paths = [text for text in hydra_overrides if "hydra.searchpath" in text.partition("=")[0]]
    composer = Composer(launcher.hydra_context.config_loader, config.hydra.job.config_name, search_paths)
    is_dry_run = config.get("dry_run") is True
    jobs = look_up(runs, composer, Lines(), is_dry_run, first)
    LAUNCHED.extend(jobs)
    invalid_jobs = by_reason((job for job in jobs if not job.can_start), FAILED)
    if len(invalid_jobs) == 1 and sum(map(len, invalid_jobs.values())) == len(jobs):
        raise UserError(next(iter(invalid_jobs)))  # no run can start, all for the same reason
    callbacks = launcher.hydra_context.callbacks.callbacks
    reports = [callback for callback in callbacks if hasattr(callback, "before_runs")]
    for report in reports:
        report.before_runs(LAUNCHED)
    title = str(config.get("study") or "sweep")
    flags = _config_flags(config)
    if is_dry_run:
        _print_jobs(jobs)
        process.exit_code |= any(job.state == FAILED for job in jobs)
        return [_job_return(job) for job in jobs]
    _say_saved_progress(jobs, title)
    pending = [job for job in jobs if job.pending]
    if pending:
        engine = _engine(launcher, settings, hydra_options, pending[0])
        full_error = os.environ.get(process.FULL_ERROR) == "1"
        application = pickle.dumps(
            Application(launcher.hydra_context, launcher.task_function, config, full_error)
        )
        orders = {
            job: Order(application, list(job.overrides), job.number, job.single_run_command(flags))
            for job in pending
        }
        launch(orders, engine, title, Lines(), reports)
    _say_outcome(jobs, flags)
    process.exit_code |= any(job.state == FAILED for job in jobs)
    return [_job_return(job) for job in jobs]


def _validated_settings(
    launcher: RunLauncher, hydra_options: Sequence[str], run_count: int
) -> LauncherConfig:
    """Return the settings of the launcher; raise a UserError for options that a sweep cannot have."""
    if any(text.startswith("hydra.launcher.kind") for text in hydra_options):
        raise UserError("hydra.launcher.kind is not a setting; a launcher is chosen with hydra/launcher=NAME")
    settings = validated(SCHEMAS[launcher.kind], launcher.settings, "hydra", "launcher")
    if run_count > settings.max_runs:
        limit = f"hydra.launcher.max_runs={settings.max_runs}"
        raise UserError(f"{run_count} runs are more than {limit}; raise the limit")
    if launcher.config.hydra.job.chdir:
        raise UserError("hydra.job.chdir=true: the runs of a sweep stay in the working directory; omit it")
    for option in hydra_options:
        if option.startswith("hydra.run."):
            raise UserError(f"{option} is an option of a single run; for a sweep set hydra.sweep.dir")
    return settings


def _engine(
    launcher: RunLauncher, settings: LauncherConfig, hydra_options: Sequence[str], first_job: Job
) -> Engine:
    """Return the engine for all runs of a sweep, with the threads and devices of its first run."""
    trainer = first_job.config["trainer"]
    threads, devices = int(trainer["threads"]), int(trainer["devices"])
    gpus_each = 0 if trainer["accelerator"] == "cpu" else devices
    per_device = [text for text in hydra_options if text.startswith("hydra.launcher.jobs_per_device=")]
    if per_device and not (gpus_each and gpus(gpus_each)):
        raise UserError(f"{per_device[-1]}: these runs use no GPU; allowed instead: hydra.launcher.jobs")
    log_folder = Path(str(first_job.config["results_dir"])).absolute() / ".launched"
    return engine_for(launcher.kind, settings, threads * devices, gpus_each, log_folder)


def say_failures(job_returns: Sequence[JobReturn]) -> None:
    """Print the errors of runs executed by another launcher, since Hydra does not print them."""
    for job_return in job_returns:
        if job_return.status == JobStatus.FAILED:
            error = job_return._return_value
            process.exit_code |= not isinstance(error, NotApplicable)
            complain(one_line(f"{' '.join(job_return.overrides or [])}: {sentence(explain_error(error))}"))


def _config_flags(config: DictConfig) -> list[str]:
    """Return the flags ``--config-dir`` and ``--config-name`` of the command."""
    folders = [
        source.path for source in config.hydra.runtime.config_sources if source.provider == "command-line"
    ]
    flags = [word for folder in folders for word in ("--config-dir", str(folder))]
    name = config.hydra.job.config_name
    if name != "config":
        flags += ["--config-name", name]
    return flags


def _job_return(job: Job) -> JobReturn:
    """Return the result for Hydra's sweepers: the validation loss of a run, or NaN if unknown."""
    job_return = JobReturn(overrides=list(job.overrides), status=JobStatus.COMPLETED)
    if job.state == "diverged":
        job.loss = math.inf
    elif job.state in DONE and job.loss is None:
        from pe_experiments.store.csv_files import validation_loss

        job.loss = validation_loss(job.run)
    job_return.return_value = math.nan if job.loss is None else job.loss
    if job.state == FAILED:
        job_return.status = JobStatus.FAILED
        job_return.return_value = UserError(job.reason)
    return job_return


def _print_jobs(jobs: Sequence[Job]) -> None:
    """Print all runs with their states (``dry_run=true``)."""
    for job in jobs:
        reason = f"  ({one_line(job.reason)})" if job.reason else ""
        say(f"{job.state:<14} {job.name or ' '.join(job.overrides)}{reason}")
    say(totals(jobs))
    say("nothing was run (dry_run=true)")


def _say_saved_progress(jobs: Sequence[Job], title: str) -> None:
    """Print how many runs are finished, published or invalid before the sweep starts."""
    for states, words in ((DONE, "finished already"), ((PUBLISHED,), "published already")):
        count = sum(job.state in states for job in jobs)
        if count:
            say(f"{title}: {count} of {len(jobs)} runs are {words}")
    for reason, invalid_jobs in by_reason((job for job in jobs if not job.can_start), FAILED).items():
        say(f"{title}: {len(invalid_jobs)} of {len(jobs)} runs cannot start: {reason}")


def launch(
    orders: dict[Job, Order],
    engine: Engine,
    title: str,
    display: Display,
    reports: Sequence[Any] = (),
) -> None:
    """Execute every job, then stop the engine.

    When another process executes a run, wait until it ends and then submit the run again.
    """
    jobs = list(orders)
    try:
        while jobs:
            _execute({job: orders[job] for job in jobs}, engine, title, display, reports)
            jobs = [job for job in jobs if job.state == ELSEWHERE]
            while any(job.run.in_use for job in jobs):
                time.sleep(engine.poll_seconds)
    finally:
        display.stop()
        engine.end()


def _execute(
    orders: dict[Job, Order], engine: Engine, title: str, display: Display, reports: Sequence[Any]
) -> None:
    """Submit all orders, and update jobs, display and reports until every future is done."""
    jobs = list(orders)
    futures = dict(zip(jobs, engine.submit(list(orders.values())), strict=True))
    display.start(title, sum(job.steps for job in jobs), sum(map(_saved_steps, jobs)))
    last_read = time.monotonic()
    while futures:
        time.sleep(engine.poll_seconds)
        ended_jobs = [job for job, future in futures.items() if future.done()]
        for job in ended_jobs:
            try:
                outcome = futures.pop(job).result()
            except Exception as error:  # raised by the engine, since runs do not raise
                outcome = {"state": FAILED, "reason": f"its job ended early: {error}"}
            _record_outcome(job, outcome)
        if ended_jobs:
            for report in reports:
                report.after_run(LAUNCHED)
        if futures and time.monotonic() - last_read < PROGRESS_SECONDS:
            continue
        last_read = time.monotonic()
        states = Counter("done" if job.state in DONE else job.state for job in jobs if job not in futures)
        states["to go"] = len(futures)
        display.note(", ".join(f"{count} {state}" for state, count in sorted(states.items()) if count))
        display.step(sum(_saved_steps(job) if job in futures else job.steps for job in jobs))


def _record_outcome(job: Job, outcome: dict[str, Any]) -> None:
    """Copy an outcome to its job and print it."""
    job.state = outcome["state"]
    job.reason = outcome["reason"]
    job.loss = outcome.get("loss")
    for line in outcome.get("output", []):
        say(line)
    if job.state in DONE and not job.run.result.exists():
        job.state = FAILED
        job.reason = "its code was edited after the sweep began; repeat the command"
    if job.state == ELSEWHERE:
        say(f"{job.name}: another process executes this run; waiting for it")
    elif job.reason:
        say(f"{job.name}: {job.state} ({one_line(job.reason)})")


def _saved_steps(job: Job) -> int:
    """Return the last training step in the metrics file of a run, or 0."""
    try:
        return int(job.run.metrics.read_text().splitlines()[-1].partition(",")[0])
    except (OSError, ValueError, IndexError):
        return 0


def _say_outcome(jobs: Sequence[Job], flags: Sequence[str]) -> None:
    """Print totals and each reason once, with the commands that repeat failed runs."""
    say(totals(jobs))
    for reason, skipped in by_reason(jobs, NOT_APPLICABLE).items():
        say(f"not applicable: {reason} ({len(skipped)} run{'s' if len(skipped) > 1 else ''})")
    for reason, failed in by_reason(jobs, FAILED).items():
        complain(reason)
        for job in failed[:MOST_LISTED]:
            command = shlex.join(job.single_run_command(flags))
            say(f"failed{': ' if job.name else ''}{job.name}; run it alone: {command}")
        if len(failed) > MOST_LISTED:
            say(f"{len(failed) - MOST_LISTED} more failed for this reason")
