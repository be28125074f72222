"""Hands the runs that are left to an engine, shows how far they are, and brings each to an end."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pe_experiments.sweeps.engines import Engine
from pe_experiments.sweeps.jobs import DONE, FAILED, Job
from pe_experiments.sweeps.worker import ELSEWHERE, METRICS, Order, Outcome
from pe_experiments.terminal.console import Display, say
from pe_experiments.terminal.errors import InUse, one_line


def launch(jobs: Sequence[Job], engine: Engine, own: Path | None, display: Display) -> None:
    """Bring every job to an end: afterwards each is finished, diverged, failed or not applicable.

    A run that another process has is waited for. One whose process is killed has failed, and resumes when the
    sweep is repeated.

    Args:
        jobs: to carry out.
        engine: what carries them out; it is ended.
        own: folder of config files of the user's own.
        display: shows how far they are.

    Raises:
        UserError: the engine cannot start anything.
    """
    try:
        while jobs:
            _round(jobs, engine, own, display)
            jobs = [job for job in jobs if job.state == ELSEWHERE]
            while any(map(_held, jobs)):
                time.sleep(engine.look_seconds)
    finally:
        display.stop()
        engine.end()


def _round(jobs: Sequence[Job], engine: Engine, own: Path | None, display: Display) -> None:
    """Have the engine carry the jobs out, as far as it can."""
    left = dict(enumerate(engine.submit([Order(job.config, job.alone(own)) for job in jobs])))
    display.start(
        str(jobs[0].config["study"] or "sweep"), sum(job.steps for job in jobs), sum(map(_step, jobs))
    )
    while left:
        time.sleep(engine.look_seconds)
        for index in [index for index, one in left.items() if one.done()]:
            try:
                outcome = left.pop(index).result()
            except Exception as error:  # of the engine: a run does not raise
                outcome = {"state": FAILED, "reason": f"its job ended early: {error}"}
            _conclude(jobs[index], outcome)
        ended = [job for index, job in enumerate(jobs) if index not in left]
        states = Counter("done" if job.state in DONE else job.state for job in ended)
        states["to go"] = len(left)
        display.note(", ".join(f"{count} {state}" for state, count in sorted(states.items()) if count))
        display.step(sum(_step(job) if index in left else job.steps for index, job in enumerate(jobs)))


def _conclude(job: Job, outcome: Outcome) -> None:
    """Note and say what has become of a run."""
    job.state, job.reason = outcome["state"], outcome["reason"]
    job.name = outcome.get("name", job.name)  # another one where code was edited in between
    for line in outcome.get("said", []):
        say(line)
    if job.state == ELSEWHERE:
        say(f"{job.name}: being run by another process; waiting for it")
        return
    exact, twice, loss = (outcome.get("metrics", {}).get(key) for key in METRICS)
    metrics = "" if exact is None else f", exact match in distribution {exact:.3f}"
    if exact is None and loss is not None:
        metrics = f", loss in distribution {loss:.3f}"
    metrics += "" if twice is None else f", at 2x {twice:.3f}"
    reason = "" if job.state == "finished" else f" ({one_line(job.reason)})"
    done = f"{outcome['done']}, " if outcome.get("done") and job.state != FAILED else ""
    say(f"{job.name}: {done}{job.state}{reason}{metrics}")


def _step(job: Job) -> int:
    """The last step in a run's training curve."""
    try:
        return int(job.run.metrics.read_text().splitlines()[-1].partition(",")[0])
    except (OSError, ValueError, IndexError):
        return 0


def _held(job: Job) -> bool:
    """Whether another process has the run."""
    try:
        with job.run.lock():
            return False
    except InUse:
        return True
    except OSError:  # the directory is gone: the other process could not carry it out
        return False
