"""How long a sweep will take, from what runs like these took."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pe_experiments.files import read_json
from pe_experiments.runs import COMPLETED, kind_of
from pe_experiments.sweeps.overview import duration, progress
from pe_experiments.sweeps.planning import PENDING, Job


def estimate(jobs: Sequence[Job], processes: int) -> str:
    """One sentence on the time that is left."""
    todo = [job for job in jobs if job.state in PENDING and job.can_start]
    if not todo:
        return "nothing is left to do"
    speeds = measured(todo)
    kinds = {kind_of(job.config) for job in todo}
    if not speeds:
        return "the time is unknown: none like these has been run here"
    typical = sum(speeds.values()) / len(speeds)
    seconds = [_steps_left(job) * speeds.get(kind_of(job.config), typical) for job in todo]
    known = f"{len(speeds)} of {len(kinds)} kinds of run measured in finished runs"
    return f"about {duration(max(*seconds, sum(seconds) / processes))} of training ({known})"


def measured(jobs: Sequence[Job]) -> dict[str, float]:
    """Seconds per step of finished runs of these kinds, in the results directories of the jobs."""
    wanted = {kind_of(job.config) for job in jobs}
    found: dict[str, list[float]] = {}
    for results_dir in {job.config["results_dir"] for job in jobs}:
        for path in Path(results_dir).glob("runs/*/result.json"):
            try:
                result = read_json(path)
                if result["status"] == COMPLETED and result["kind"] in wanted:
                    found.setdefault(result["kind"], []).append(float(result["seconds_per_step"]))
            except (OSError, ValueError, KeyError, TypeError):
                continue
    return {kind: sum(seconds) / len(seconds) for kind, seconds in found.items()}


def _steps_left(job: Job) -> int:
    if job.state == "to evaluate":
        return 0
    return job.steps - (progress(job)[0] if job.state == "interrupted" else 0)
