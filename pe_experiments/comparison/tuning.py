"""Tuned settings, such as the learning rate: each encoding is compared at its best value.

The best value has the lowest mean loss on fresh examples of the *training* lengths, over the seeds;
nothing past training enters the choice.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from statistics import fmean
from typing import Any, Protocol

from pe_experiments.store.csv_files import Row, validation_loss
from pe_experiments.store.directory import DIVERGED, RunDirectory


class ReadRun(Protocol):
    """What is needed of a run."""

    directory: RunDirectory
    row: Row  # with its protocol, which leaves the tuned settings out, and its encoding
    saved: Row


Choice = dict[str, Any]


def best_of_each(runs: Sequence[ReadRun], tuned: Collection[str]) -> tuple[set[str], list[Choice]]:
    """The names of the runs at the best value of each encoding, and how each value was chosen."""
    names, choices = {run.directory.name for run in runs}, list[Choice]()
    for setting in tuned:
        groups: dict[tuple[str, str], dict[str, list[ReadRun]]] = {}
        for run in runs:
            key = run.row["protocol"], run.row["encoding"]
            groups.setdefault(key, {}).setdefault(_value(run, setting), []).append(run)
        for values in groups.values():
            if len(values) > 1:
                choice = _choose(values, setting)
                choices.append(choice)
                names -= {row["name"] for row in choice["losses"] if row["value"] != choice["chosen"]}
    return names, choices


def _value(run: ReadRun, setting: str) -> str:
    section, _, key = setting.partition(".")
    return str(run.saved["identity"]["trained"][section].get(key))


def _choose(values: dict[str, list[ReadRun]], setting: str) -> Choice:
    """The value with the lowest mean loss; of values with fewer seeds than others none is chosen."""
    losses = {value: {run.directory.name: _loss(run) for run in runs} for value, runs in values.items()}
    most = max(map(len, losses.values()))
    means = {value: fmean(own.values()) for value, own in losses.items()}
    chosen = min((value for value in means if len(losses[value]) == most), key=lambda value: means[value])
    first = values[chosen][0]
    seeds = {run.directory.name: run.row["seed"] for runs in values.values() for run in runs}
    rows = [(name, value, loss) for value, own in losses.items() for name, loss in own.items()]
    return {
        "encoding": first.row["label"],
        "task": first.row["task"],
        "model": first.row["model"],
        "settings": first.saved["task"],
        "setting": setting,
        "seed": sorted(set(seeds.values())),
        "tried": {value: _finite(means[value]) for value in sorted(means, key=_number)},
        "chosen": chosen,
        "losses": [
            {"name": name, "seed": seeds[name], "value": value, "loss": _finite(loss)}
            for name, value, loss in rows
        ],
    }


def _loss(run: ReadRun) -> float:
    return math.inf if run.row["status"] == DIVERGED else validation_loss(run.directory)


def _number(text: str) -> tuple[float, str]:
    try:
        return float(text), text
    except ValueError:
        return math.inf, text


def _finite(loss: float) -> float | None:
    return loss if math.isfinite(loss) else None


def varying(configs: Iterable[Row], settings: Iterable[str]) -> list[str]:
    """The settings of which these configurations have several values."""
    sections = list(configs)
    found = []
    for setting in settings:
        section, _, key = setting.partition(".")
        if len({str(config[section].get(key)) for config in sections}) > 1:
            found.append(setting)
    return found
