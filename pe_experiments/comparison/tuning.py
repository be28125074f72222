"""Choose the best value of tuned options, such as the learning rate, for each encoding.

The best value has the lowest mean loss over seeds on fresh examples of the *training* lengths. Results past
training are not used.
"""

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from pe_experiments.store.directory import DIVERGED
from pe_experiments.terminal.console import Row

Choice = dict[str, Any]
# A grid is a table of the runs of an encoding at several values of an option. Its ``encoding`` is the label,
# its ``family`` the hash that the table of runs calls ``encoding``. These columns are constant:
TUNED = ["protocol", "family", "encoding", "task", "model", "settings", "setting"]
# These columns differ between its rows:
TRIED = ["name", "seed", "value", "loss"]


def best_of_each(runs: Sequence[Any], tuned: Collection[str]) -> tuple[set[str], list[Choice]]:
    """Return the names of the runs at the best value of each encoding, and how each value was chosen.

    ``runs`` are finished runs read by `read_runs`. Runs with the same encoding form a grid if their protocols
    differ only in tuned options. Several tuned options are chosen together.
    """
    best_names = {run.directory.name for run in runs}
    choices: list[Choice] = []
    setting = ", ".join(varying([run.saved.trained for run in runs], tuned))
    if not setting:
        return best_names, choices
    rows = []
    for run in runs:
        rows.append(
            {
                "protocol": run.row["protocol"],
                "family": run.row["encoding"],
                "encoding": run.row["label"],
                **{key: run.row[key] for key in ("task", "model", "name", "seed")},
                "settings": json.dumps(run.saved.trained["task"]),
                "setting": setting,
                "value": option_value(run.saved.trained, setting),
                "loss": math.inf if run.row["status"] == DIVERGED else run.validation_loss,
            }
        )
    table = pd.DataFrame(rows)
    for _, grid in table.groupby(["protocol", "family"], sort=False):
        if grid["value"].nunique() > 1:
            choice = choose(grid)
            choices.append(choice)
            best_names -= set(grid.loc[grid["value"] != choice["chosen"], "name"])
    return best_names, choices


def choose(grid: pd.DataFrame) -> Choice:
    """Return the value with the lowest mean loss, of equal values the smallest, and the grid.

    Values with fewer seeds than others are not considered. The grid has a row per run with the columns
    `TUNED` and `TRIED`; the loss of a diverged run is missing or infinite.
    """
    losses = grid["loss"].astype(float).fillna(math.inf)
    by_value = losses.groupby(grid["value"]).agg(["mean", "size"])
    means = by_value["mean"].sort_index(key=lambda values: pd.to_numeric(values.to_numpy(), errors="coerce"))
    complete = by_value["size"] == by_value["size"].max()
    return {
        **grid.iloc[0][TUNED],
        "seed": sorted(set(grid["seed"].tolist())),
        "tried": means.astype(object).where(means < math.inf, None).to_dict(),
        "chosen": means[complete].idxmin(),
        "grid": grid.assign(loss=losses.replace(math.inf, math.nan))[[*TUNED, *TRIED]],
    }


def at_an_end(choice: Choice) -> bool:
    """Return whether the chosen value is the smallest or largest of its grid; texts have no order."""
    try:
        tried = sorted(map(float, choice["tried"]))
    except ValueError:
        return False
    return float(choice["chosen"]) in (tried[0], tried[-1])


def grid_of(choices: Iterable[Choice]) -> pd.DataFrame:
    """Return the grids from which `choose` returned these choices, as one table."""
    grids = [choice["grid"] for choice in choices]
    return pd.concat(grids, ignore_index=True) if grids else pd.DataFrame(columns=[*TUNED, *TRIED])


def option_value(config: Mapping[str, Any], setting: str) -> str:
    """Return the value of an option such as ``training.learning_rate`` as text; of several, with commas."""
    paths = [name.partition(".") for name in setting.split(", ")]
    return ", ".join(str(config[section].get(key)) for section, _, key in paths)


def varying(configs: Iterable[Row], settings: Iterable[str]) -> list[str]:
    """Return the options that have several values in these configurations."""
    configs = list(configs)
    values = {setting: {option_value(config, setting) for config in configs} for setting in settings}
    return [setting for setting, tried in values.items() if len(tried) > 1]
