"""Write the runs of a study as CSV files, from which the rest of its folder is generated.

runs.csv        a row per run: its configuration, its summary and the command that repeats it
curves.csv      a row per run and evaluated length
training.csv    a row per run and evaluation on the training lengths
provenance.csv  a row per run: `NUMERICS`, commit, PyTorch version, and as JSON the trained configuration,
                digests of data files, the command and the machine; an empty cell has the value above it
text.csv        for language models: a row per run, context length and kind of bytes
depth.csv       for tasks with a depth: a row per run, input length and depth
index.csv       a row per run, length and index in the answer, at two lengths
by_step.csv     with ``evaluation.every``: a row per run, step of the training and length
tuning.csv      if an option was tuned per encoding: a row per run of the grid, with its validation loss
"""

import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype

from pe_experiments.comparison.compare_runs import RECORDED, runs_csv
from pe_experiments.comparison.runs import FURTHER, KEYS, TRAINING, Runs, at_shared_lengths, with_summaries
from pe_experiments.comparison.tuning import TUNED, Choice, choose, grid_of, option_value
from pe_experiments.configuration.experiment import trained_sections
from pe_experiments.store.csv_files import bounded_columns
from pe_experiments.store.identity import Record
from pe_experiments.store.study_folder import CURVES, PROVENANCE, RUNS, TEXTS, TUNING, read_table, valid_study
from pe_experiments.terminal.errors import UserError, few, is_formula
from pe_experiments.terminal.files import CONFIG_DIR, consistent_files, write_atomically

SHIPPED = CONFIG_DIR.parent / "results"  # the studies shipped with the project
FILES = (RUNS, CURVES, "training.csv", PROVENANCE)
FRAMES = ("runs", "curves", "training", *FURTHER)  # attributes of `Runs` that are data frames
NUMBERS = {  # columns that must have numbers only
    RUNS: ("seed", "max_length", "parameters"),
    CURVES: ("length", "content_length", "loss", *bounded_columns()),
}
LOSS_DECIMALS = 6  # decimal places of a recorded loss


def select_runs(runs: Runs, mask: pd.Series) -> Runs:
    """Return the runs whose rows of `Runs.runs` are True in ``mask``."""
    names = set(runs.runs.loc[mask, "name"])
    selected: dict[str, Any] = {}
    for key in FRAMES:
        frame = getattr(runs, key)
        if len(frame):
            selected[key] = frame[frame["name"].isin(names)].reset_index(drop=True)
    for key in ("saved", "environments"):
        selected[key] = {name: value for name, value in getattr(runs, key).items() if name in names}
    return replace(runs, **selected)


def merge_runs(earlier: Runs, runs: Runs) -> Runs:
    """Return all earlier runs and those of ``runs`` with another configuration.

    The summaries are computed at the lengths that all runs share.
    """
    earlier_keys = {record.identity.key for record in earlier.saved.values()}
    new_names = [name for name, record in runs.saved.items() if record.identity.key not in earlier_keys]
    runs = select_runs(runs, runs.runs["name"].isin(new_names))
    merged: dict[str, Any] = {}
    for key in FRAMES:
        frames = [frame for frame in (getattr(earlier, key), getattr(runs, key)) if len(frame)]
        if frames:
            merged[key] = pd.concat(frames).sort_values("name", kind="stable", ignore_index=True)
    curves = merged["curves"]
    curves["in_summary"] = at_shared_lengths(curves)
    merged["runs"] = with_summaries(merged["runs"], curves)
    merged["saved"] = dict(sorted({**earlier.saved, **runs.saved}.items()))
    merged["environments"] = {**earlier.environments, **runs.environments}
    grid = grid_of([*earlier.tuning, *runs.tuning]).drop_duplicates("name")
    return _at_chosen_values(replace(runs, **merged, tuning=_choices(grid)))


def _at_chosen_values(runs: Runs) -> Runs:
    """Return the runs at the chosen values of tuned options, and all runs without tuned options.

    Raises:
        UserError: an encoding has no run at its chosen value.
    """
    keep = pd.Series(True, index=runs.runs.index)
    configs = [runs.saved[name].trained for name in runs.runs["name"]]
    for choice in runs.tuning:
        option, chosen = choice["setting"], choice["chosen"]
        is_tuned = runs.runs[["encoding", "protocol"]].eq([choice["family"], choice["protocol"]]).all(axis=1)
        is_chosen = is_tuned & np.array([option_value(config, option) == chosen for config in configs])
        if not is_chosen.any():
            missing = f"{choice['encoding']} at {option}={chosen}, which has the lowest loss"
            raise UserError(f"no run of {missing}; train it with the seeds of the others")
        keep &= is_chosen | ~is_tuned
    return select_runs(runs, keep)


def write_archive(runs: Runs, folder: Path) -> None:
    """Write the CSVs of a study, which the module docstring describes."""
    folder.mkdir(parents=True, exist_ok=True)
    is_evaluation = runs.training["token_accuracy"].notna()
    training = runs.training.loc[is_evaluation, ["name", *TRAINING]].round(LOSS_DECIMALS)
    rows = []
    for name, saved in runs.saved.items():
        environment = deepcopy(runs.environments[name])
        for record in (environment, *environment.get("earlier", [])):
            record.pop("platform", None)  # identifies the kernel build of the machine
        commit = environment.pop("commit")
        command = environment.pop("command")
        rows.append(
            {
                "name": name,
                "numerics": saved.numerics,
                "commit": commit,
                "torch": environment["libraries"]["torch"],
                "trained": json.dumps(saved.trained),
                "data": json.dumps(saved.data),
                "command": json.dumps(command),
                "environment": json.dumps(environment),
            }
        )
    provenance = pd.DataFrame(rows)
    provenance = provenance.mask(provenance.eq(provenance.shift()))
    tables = {CURVES: runs.curves, "training.csv": training, PROVENANCE: provenance}
    further = {f"{name}.csv": getattr(runs, name) for name in FURTHER}
    tables |= {file: table for file, table in further.items() if len(table)}
    if runs.tuning:
        tables[TUNING] = grid_of(runs.tuning)
    write_atomically(folder / RUNS, runs_csv(runs))
    for file, table in tables.items():
        write_atomically(folder / file, table.to_csv(index=False))


def read_archive(folder: Path) -> Runs:
    """Return the runs of a published study, with summaries recomputed from their curves."""
    with valid_study(folder):
        with consistent_files(folder):
            optional_files = [f"{name}.csv" for name in FURTHER if (folder / f"{name}.csv").exists()]
            tables = {file: read_table(folder / file) for file in (*FILES, *optional_files)}
            tuning = _choices(read_table(folder / TUNING, "value")) if (folder / TUNING).exists() else []
        _refuse_inconsistent(tables)
        runs, curves, training, provenance = (tables[file] for file in FILES)
        optional: dict[str, Any] = {file.removesuffix(".csv"): tables[file] for file in optional_files}
        saved: dict[str, Record] = {}
        environments: dict[str, Any] = {}
        for row in provenance.ffill().to_dict("records"):
            trained, data = ({**json.loads(row[column])} for column in ("trained", "data"))
            trained_sections(trained)  # an error if one is missing
            saved[row["name"]] = Record(row["name"], trained, int(row["numerics"]), data)
            environment = json.loads(row["environment"])
            environments[row["name"]] = {
                **environment,
                "libraries": {**environment["libraries"]},
                "commit": row["commit"],
                "command": json.loads(row["command"]),
            }
        training = training.merge(runs[[*KEYS]], on="name", how="left")
        runs = with_summaries(runs, curves).drop(columns=list(RECORDED))
    return Runs(runs, curves, {}, training, saved, environments, tuning, **optional)


def _refuse_inconsistent(tables: Mapping[str, pd.DataFrame]) -> None:
    """Raise a ValueError if tables have different runs, or a value is missing, repeated or out of range."""
    for file in (RUNS, PROVENANCE):
        if not tables[file]["name"].is_unique:
            raise ValueError(f"{file} lists a run twice")
    for file, columns in NUMBERS.items():
        for column in columns:
            if not is_numeric_dtype(tables[file][column]):
                raise ValueError(f"{file}: column {column} must have numbers only")
    expected_names = set(tables[RUNS]["name"])
    for file, table in tables.items():
        names = set(table["name"]) if len(table) else set()
        differing = names - expected_names
        # Other files may lack runs, which diverged before their first evaluation or lack these rows.
        if file in (CURVES, PROVENANCE):
            differing |= expected_names - names
        if differing:
            raise ValueError(f"runs.csv and {file} disagree on {few(sorted(differing))}")
    for file, table in tables.items():
        for column in set(TEXTS) & set(table.columns):
            if table[column].map(is_formula).any():
                raise ValueError(f"{file}: a value of {column} would be a formula in a spreadsheet")
    curves = tables[CURVES]
    if not (curves["in_summary"] == at_shared_lengths(curves)).all():
        raise ValueError("curves.csv lacks lengths of some runs")
    for column, (low, high) in bounded_columns().items():
        if not curves[column].dropna().between(low, high).all():
            raise ValueError(f"curves.csv has a value of {column} outside {low:g} to {high:g}")


def _choices(grid: pd.DataFrame) -> list[Choice]:
    """Return the choice of each tuned option from the rows of ``tuning.csv``."""
    return [choose(rows) for _, rows in grid.groupby(TUNED, sort=False)]
