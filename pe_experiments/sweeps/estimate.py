"""How long a sweep will take, from what runs like these took, or from a few steps tried here."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from pe_experiments.command_line import sentence
from pe_experiments.errors import NotApplicable
from pe_experiments.runs import COMPLETED, kind_of, read_json
from pe_experiments.sweeps.overview import duration, progress
from pe_experiments.sweeps.planning import FAILED, LEFT, NOT_APPLICABLE, Job

PROBE_SECONDS = 20.0  # spent on probes at most
PROBE_STEPS = 3


def estimate(jobs: Sequence[Job], processes: int) -> str:
    """One sentence on the time that is left."""
    todo = [job for job in jobs if job.state in LEFT and job.can_start]
    if not todo:
        return "nothing is left to do"
    known = measured(todo)
    wanted = {kind_of(job.config): job for job in todo}
    deadline = time.monotonic() + PROBE_SECONDS
    probed = {}
    for kind, job in wanted.items():
        if kind not in known and time.monotonic() < deadline and (seconds := probe(job)) is not None:
            probed[kind] = seconds
    speeds = known | probed
    if not speeds:
        return "the time is unknown: no run like these has finished, and none could be tried"
    typical = sum(speeds.values()) / len(speeds)
    total = sum(_steps_left(job) * speeds.get(kind_of(job.config), typical) for job in todo)
    sources = [
        f"{n} of {len(wanted)} kinds of run {how}"
        for how, n in (
            ("measured in finished runs", len(known)),
            ("tried for a few steps", len(probed)),
            ("guessed from the others", len(wanted) - len(speeds)),
        )
        if n
    ]
    longest = max(_steps_left(job) * speeds.get(kind_of(job.config), typical) for job in todo)
    span = duration(max(longest, total / processes))
    return f"about {span} of training on {processes} processes ({'; '.join(sources)})"


def measured(jobs: Sequence[Job]) -> dict[str, float]:
    """Seconds per step of finished runs of these kinds, in the results directories of the jobs."""
    wanted = {kind_of(job.config) for job in jobs}
    found: dict[str, list[float]] = {}
    for results_dir in {job.config["results_dir"] for job in jobs}:
        for path in Path(results_dir).glob("runs/*/result.json"):
            try:
                result = read_json(path)
                if result["status"] != COMPLETED or "seconds_per_step" not in result:
                    continue
                kind = result["kind"]
            except (OSError, ValueError, KeyError, TypeError):
                continue
            if kind in wanted:
                found.setdefault(kind, []).append(float(result["seconds_per_step"]))
    return {kind: sum(seconds) / len(seconds) for kind, seconds in found.items()}


def problem(job: Job) -> tuple[str, str]:
    """State and reason of a run that would fail at once; empty where it can be carried out."""
    from pe_experiments.config import check, resolve
    from pe_experiments.experiment import try_out

    try:
        try_out(resolve(check(job.config)))
    except NotApplicable as error:
        return NOT_APPLICABLE, str(error)
    except Exception as error:
        return FAILED, sentence(error)
    return "", ""


def probe(job: Job) -> float | None:
    """Seconds per step over a few steps of this run; None where it fails."""
    import torch

    from pe_experiments.config import check, resolve
    from pe_experiments.data import TrainingStream
    from pe_experiments.environment import prepare_hardware
    from pe_experiments.instantiation import build_model, source_of
    from pe_experiments.training import TrainingModule

    try:
        experiment = resolve(check(job.config))
        training = experiment.config.training
        device = prepare_hardware(experiment.config.hardware)
        stream = TrainingStream(source_of(experiment), training.batch_size, training.batching)
        module = TrainingModule(build_model(experiment), training, experiment.config.seed).to(device)
        optimizer = torch.optim.AdamW(module.parameters())
        for step in range(PROBE_STEPS + 1):
            if step == 1:
                started = time.perf_counter()
            batch = type(stream.batch(step))(*(part.to(device) for part in stream.batch(step)))
            module.training_step(batch, step).backward()
            optimizer.step()
            optimizer.zero_grad()
        return (time.perf_counter() - started) / PROBE_STEPS
    except Exception:  # an estimate; what is wrong with the run is said elsewhere
        return None


def _steps_left(job: Job) -> int:
    if job.state == "to evaluate":
        return 0
    return job.steps - (progress(job)[0] if job.state == "interrupted" else 0)
