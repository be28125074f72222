"""A sweep that first chooses a setting per scheme, then repeats the chosen one over the seeds.

The choice is made on the loss on fresh examples of the *training* lengths, in the run's ``metrics.csv``.
Nothing is ever selected on the lengths beyond.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pe_experiments.errors import UserError
from pe_experiments.runs import RunDirectory, write_manifest
from pe_experiments.sweeps.expansion import Overrides, Request, value_of, without
from pe_experiments.sweeps.planning import DIVERGED, DONE, Job


class Tuning:
    """The two halves of a tuned sweep.

    Args:
        requests: every combination, over the values of ``key`` and over seeds.
        key: the setting to choose, for example ``training.learning_rate``.

    Raises:
        UserError: the sweep does not vary that key, or is no study of its own.
    """

    def __init__(self, requests: Sequence[Request], key: str):
        self.requests, self.key = requests, key
        if not all(request.config.get("study") for request in requests if request.config):
            raise UserError(f"sweep.tune={key} needs a study of its own; add study=NAME")
        if any(value_of(request.overrides, key) is None for request in requests):
            raise UserError(
                f"sweep.tune={key}: the sweep gives no values for it; for example {key}=0.001,0.003"
            )

    def grid(self) -> list[Request]:
        """The first seed of every group at every value, in a study of its own."""
        first: dict[Overrides, str | None] = {}
        chosen = []
        for request in self.requests:
            seed = value_of(request.overrides, "seed")
            if first.setdefault(self._group(request.overrides), seed) == seed:
                study = f"{request.config.get('study')}_grid"
                overrides = (*without(request.overrides, "study"), f"study={study}")
                config = request.config | ({"study": study} if request.config else {})
                chosen.append(replace(request, overrides=overrides, config=config))
        return chosen

    def best(self, grid: Sequence[Job]) -> dict[Overrides, str]:
        """The value with the lowest validation loss per group; none where no run of a group has finished."""
        losses: dict[Overrides, dict[str, float]] = {}
        for job in grid:
            value = value_of(job.overrides, self.key)
            if job.state in DONE and value is not None:
                loss = math.inf if job.state == DIVERGED else validation_loss(job.run)
                losses.setdefault(self._group(without(job.overrides, "study")), {})[value] = loss
        return {group: min(tried, key=lambda value: tried[value]) for group, tried in losses.items()}

    def repeats(self, best: dict[Overrides, str]) -> list[Request]:
        """Every seed at the chosen values."""
        return [
            request
            for request in self.requests
            if best.get(self._group(request.overrides)) == value_of(request.overrides, self.key)
        ]

    def _group(self, overrides: Overrides) -> Overrides:
        return without(overrides, self.key, "seed", "study")


def note_tuned(jobs: Sequence[Job], key: str, grid: Sequence[Job]) -> None:
    """List the runs at the values now chosen, and what was tuned and how: no part of the protocol.

    Runs of an earlier grid leave the list: a scheme at two values is not one scheme.
    """
    done = [job for job in jobs if job.state in DONE]
    for place in {job.place for job in done}:
        names = [job.name for job in done if job.place == place]
        chosen = choices(grid, key)
        write_manifest(Path(place[0]), place[1], names, tuned=[key], tuning=chosen)


def choices(grid: Sequence[Job], key: str) -> list[dict[str, Any]]:
    """What was chosen: scheme, task, model, setting, the loss of each value tried, the value, the seed."""
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for job in grid:
        value = value_of(job.overrides, key)
        result = job.run.read_result() if job.state in DONE else None
        if value is None or result is None:
            continue
        group = without(job.overrides, key, "study")
        about = {
            "scheme": result["label"], "task": result["task"], "model": result["model"], "setting": key,
            "seed": result["seed"], "tried": {},
        }  # fmt: skip
        loss = None if job.state == DIVERGED else validation_loss(job.run)
        found.setdefault(group, about)["tried"][value] = None if loss is None or math.isinf(loss) else loss
    for choice in found.values():
        tried = choice["tried"]
        choice["chosen"] = min(tried, key=lambda value: math.inf if tried[value] is None else tried[value])
    return list(found.values())


def validation_loss(run: RunDirectory) -> float:
    """The last loss on fresh examples of the training lengths; infinite where it is none."""
    from pe_experiments.tracking import read_metrics

    losses = [row["validation_loss"] for row in read_metrics(run.metrics) if "validation_loss" in row]
    return losses[-1] if losses and math.isfinite(losses[-1]) else math.inf
