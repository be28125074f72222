"""Tune options such as the learning rate: compare each encoding at its best value.

The best value has the lowest mean loss over seeds on fresh examples of the *training* lengths. Values past
training are not used.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Protocol

import pandas as pd

from pe_experiments.store.csv_files import Row, validation_loss
from pe_experiments.store.directory import DIVERGED, RunDirectory

Choice = dict[str, Any]


class ReadRun(Protocol):
    """The attributes of a run that tuning reads."""

    directory: RunDirectory
    row: Row  # with its encoding and its protocol, which excludes the tuned options
    saved: Row


def best_of_each(runs: Sequence[ReadRun], tuned: Collection[str]) -> tuple[set[str], list[Choice]]:
    """Return the names of the runs at the best value of each encoding, and how each value was chosen."""
    names = {run.directory.name for run in runs}
    choices = []
    for setting in tuned:
        section, _, key = setting.partition(".")
        values = [str(run.saved["identity"]["trained"][section].get(key)) for run in runs]
        grid = pd.DataFrame([run.row for run in runs]).assign(
            value=values, loss=[_loss(run) for run in runs], settings=[run.saved["task"] for run in runs]
        )
        for _, rows in grid.groupby(["protocol", "encoding"], sort=False):
            if rows["value"].nunique() > 1:
                choices.append(_choose(rows, setting))
                names -= set(rows.loc[rows["value"] != choices[-1]["chosen"], "name"])
    return names, choices


def _choose(rows: pd.DataFrame, setting: str) -> Choice:
    """Return the choice with the lowest mean loss; values with fewer seeds than others are not considered."""
    by_value = rows.groupby("value", sort=False)["loss"].agg(["mean", "size"])
    complete = by_value.loc[by_value["size"] == by_value["size"].max(), "mean"]
    first = rows.iloc[0]
    return {
        "encoding": first["label"],
        "task": first["task"],
        "model": first["model"],
        "settings": first["settings"],
        "setting": setting,
        "seed": sorted(set(rows["seed"].tolist())),
        "tried": {
            value: _finite(by_value.loc[value, "mean"]) for value in sorted(by_value.index, key=_number)
        },
        "chosen": str(complete.idxmin()),
        "losses": [
            {"name": row["name"], "seed": row["seed"], "value": row["value"], "loss": _finite(row["loss"])}
            for row in rows.to_dict("records")
        ],
    }


def _loss(run: ReadRun) -> float:
    return math.inf if run.row["status"] == DIVERGED else validation_loss(run.directory)


def _number(text: str) -> tuple[float, str]:
    try:
        return float(text), text
    except ValueError:
        return math.inf, text


def _finite(loss: Any) -> float | None:
    return float(loss) if math.isfinite(loss) else None


def varying(configs: Iterable[Row], settings: Iterable[str]) -> list[str]:
    """Return the options that have several values in these configurations."""
    sections = list(configs)
    several = []
    for setting in settings:
        section, _, key = setting.partition(".")
        if len({str(config[section].get(key)) for config in sections}) > 1:
            several.append(setting)
    return several
