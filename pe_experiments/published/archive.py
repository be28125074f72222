"""Write the runs of a study as CSV files, from which the rest of its folder is generated.

runs.csv        a row per run: its configuration, its summary and the command that repeats it
curves.csv      a row per run and evaluated length
training.csv    a row per run and evaluation on the training lengths
provenance.csv  a row per run: `NUMERICS`, commit, PyTorch version, and as JSON the trained configuration,
                digests of data files, the command and the machine; an empty cell repeats the cell above
text.csv        for language models: a row per run, context length and kind of bytes
depth.csv       for tasks with a depth: a row per run, input length and depth
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

from pe_experiments.comparison.compare import RECORDED, runs_csv
from pe_experiments.comparison.runs import KEYS, TRAINING, Runs, shared, summarised
from pe_experiments.comparison.tuning import TUNED, Choice, choose, grid_of, option_value
from pe_experiments.store.csv_files import ACCURACIES
from pe_experiments.store.identity import config_key
from pe_experiments.terminal.errors import UserError, few
from pe_experiments.terminal.files import CONFIG_DIR, finish_replacing, write_atomically

SHIPPED = CONFIG_DIR.parent / "results"  # the studies shipped with the project
FILES = ("runs.csv", "curves.csv", "training.csv", "provenance.csv")
TUNING = "tuning.csv"
OPTIONAL = ("text", "depth")  # frames of `Runs`, each in a file of its name if it has rows
FRAMES = ("runs", "curves", "training", *OPTIONAL)  # of `Runs`
TEXTS = ("name", "label", "task", "model", "status", "protocol", "family", "encoding", "split")
DIGITS = 6  # of a recorded loss; three are shown


def select_runs(runs: Runs, mask: pd.Series) -> Runs:
    """Return the runs of the selected rows of `Runs.runs`."""
    names = set(runs.runs.loc[mask, "name"])
    frames = [(key, getattr(runs, key)) for key in FRAMES]
    parts: dict[str, Any] = {
        key: frame[frame["name"].isin(names)].reset_index(drop=True) for key, frame in frames if len(frame)
    }
    for key in ("saved", "environments"):
        parts[key] = {name: part for name, part in getattr(runs, key).items() if name in names}
    return replace(runs, **parts)


def merge_runs(earlier: Runs, runs: Runs) -> Runs:
    """Return the runs of both, preferring earlier ones; summaries cover the shared lengths."""
    published = {config_key_of(saved) for saved in earlier.saved.values()}
    new = [name for name, saved in runs.saved.items() if config_key_of(saved) not in published]
    runs = select_runs(runs, runs.runs["name"].isin(new))
    frames: dict[str, Any] = {}
    for key in FRAMES:
        parts = [frame for frame in (getattr(earlier, key), getattr(runs, key)) if len(frame)]
        if parts:
            frames[key] = pd.concat(parts).sort_values("name", kind="stable", ignore_index=True)
    curves = frames["curves"]
    curves["in_summary"] = shared(curves)
    frames["runs"] = summarised(frames["runs"], curves)
    frames["saved"] = dict(sorted({**earlier.saved, **runs.saved}.items()))
    frames["environments"] = {**earlier.environments, **runs.environments}
    grid = grid_of([*earlier.tuning, *runs.tuning]).drop_duplicates("name")
    return _at_chosen_values(replace(runs, **frames, tuning=_choices(grid)))


def _at_chosen_values(runs: Runs) -> Runs:
    """Return the runs without those at values of tuned options that are no longer chosen.

    Raises:
        UserError: no run of an encoding is left.
    """
    keep = pd.Series(True, index=runs.runs.index)
    trained = [runs.saved[name]["identity"]["trained"] for name in runs.runs["name"]]
    for choice in runs.tuning:
        setting, chosen = choice["setting"], choice["chosen"]
        of_choice = runs.runs[["encoding", "protocol"]].eq([choice["family"], choice["protocol"]]).all(axis=1)
        at_chosen = of_choice & np.array([option_value(config, setting) == chosen for config in trained])
        if not at_chosen.any():
            what = f"{choice['encoding']} at {setting}={chosen}, which has the lowest loss"
            raise UserError(f"no run of {what}; train it with the seeds of the others")
        keep &= at_chosen | ~of_choice
    return select_runs(runs, keep)


def config_key_of(saved: Mapping[str, Any]) -> str:
    """Return the `config_key` of a saved configuration."""
    identity = saved["identity"]
    return config_key(identity["trained"], identity["hashed"]["data"])


def write_archive(runs: Runs, folder: Path) -> None:
    """Write the CSVs of a study."""
    folder.mkdir(parents=True, exist_ok=True)
    checked = runs.training["token_accuracy"].notna()
    training = runs.training.loc[checked, ["name", *TRAINING]].round(DIGITS)
    rows = []
    for name, saved in runs.saved.items():
        identity = saved["identity"]
        environment = deepcopy(runs.environments[name])
        for part in (environment, *environment.get("earlier", [])):
            part.pop("platform", None)  # identifies the kernel build of the machine
            part.pop("user_files", None)
        commit, command = environment.pop("commit"), environment.pop("command")
        rows.append(
            {
                "name": name,
                "numerics": identity["hashed"]["numerics"],
                "commit": commit,
                "torch": environment["libraries"]["torch"],
                "trained": json.dumps(identity["trained"]),
                "data": json.dumps(identity["hashed"]["data"]),
                "command": json.dumps(command),
                "environment": json.dumps(environment),
            }
        )
    provenance = pd.DataFrame(rows)
    provenance = provenance.mask(provenance.eq(provenance.shift()))
    tables = dict(zip(FILES[1:], (runs.curves, training, provenance), strict=True))
    for name in OPTIONAL:
        if len(getattr(runs, name)):
            tables[f"{name}.csv"] = getattr(runs, name)
    if runs.tuning:
        tables[TUNING] = grid_of(runs.tuning)
    write_atomically(folder / FILES[0], runs_csv(runs))
    for file, table in tables.items():
        write_atomically(folder / file, table.to_csv(index=False))


def read_archive(folder: Path) -> Runs:
    """Return the runs of a published study, with summaries recomputed from their curves."""
    try:
        finish_replacing(folder)
        further = [f"{name}.csv" for name in OPTIONAL if (folder / f"{name}.csv").exists()]
        tables = {file: read_table(folder / file) for file in (*FILES, *further)}
        _refuse_torn(tables)
        runs, curves, training, provenance, *_ = tables.values()
        optional = {file.removesuffix(".csv"): tables[file] for file in further}
        saved: dict[str, Any] = {}
        environments: dict[str, Any] = {}
        for row in provenance.ffill().to_dict("records"):
            hashed = {"numerics": int(row["numerics"]), "data": json.loads(row["data"]), "classes": {}}
            identity = {"name": row["name"], "trained": json.loads(row["trained"]), "hashed": hashed}
            saved[row["name"]] = {"identity": identity}
            environment = json.loads(row["environment"])
            recorded = {"commit": row["commit"], "command": json.loads(row["command"])}
            environments[row["name"]] = environment | recorded
        training = training.merge(runs[[*KEYS]], on="name", how="left")
        runs = summarised(runs, curves).drop(columns=list(RECORDED))
        tuning = _choices(read_table(folder / TUNING, "value")) if (folder / TUNING).exists() else []
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{folder} is not a published study ({type(error).__name__}: {error})") from error
    return Runs(runs, curves, {}, training, saved, environments, tuning, **optional)


def _refuse_torn(tables: Mapping[str, pd.DataFrame]) -> None:
    """Raise a ValueError if the tables have different runs, or a curve lacks lengths."""
    names = set(tables["runs.csv"]["name"])
    for file, table in tables.items():
        named = set(table["name"]) if len(table) else set()
        # A run may have diverged before its first check, and few runs have text or depths.
        missing = names - named if file in ("curves.csv", "provenance.csv") else set()
        if differing := sorted(missing | (named - names)):
            raise ValueError(f"runs.csv and {file} disagree on {few(differing)}")
    curves = tables["curves.csv"]
    if not (curves["in_summary"] == shared(curves)).all():
        raise ValueError("curves.csv lacks lengths of some runs")
    for column in ACCURACIES:
        if not curves[column].dropna().between(0, 1).all():
            raise ValueError(f"curves.csv has a value of {column} outside 0 to 1")


def published_keys(folder: Path) -> set[str]:
    """Return the `config_key` of each published run.

    Runs of tuning are listed in ``tuning.csv``. They have the configuration of a published run of the same
    encoding, except for the tuned option and the seed.
    """
    if not (folder / FILES[-1]).exists():
        return set()
    finish_replacing(folder)
    provenance = read_table(folder / FILES[-1]).ffill()[["name", "trained", "data"]]
    keys: set[str] = set()
    by_family: dict[tuple[str, ...], tuple[dict[str, Any], dict[str, str]]] = {}
    families = read_table(folder / FILES[0]).set_index("name")[["encoding", "protocol"]]
    for name, *texts in provenance.itertuples(index=False):
        trained, data = map(json.loads, texts)
        by_family[*families.loc[name]] = trained, data
        keys.add(config_key(trained, data))
    grid = read_table(folder / TUNING) if (folder / TUNING).exists() else pd.DataFrame()
    for row in grid.to_dict("records"):
        trained, data = by_family[row["family"], row["protocol"]]
        group, _, setting = row["setting"].partition(".")
        tried = {**trained, group: trained[group] | {setting: row["value"]}, "seed": row["seed"]}
        keys.add(config_key(tried, data))
    return keys


def _choices(grid: pd.DataFrame) -> list[Choice]:
    return [choose(rows) for _, rows in grid.groupby(TUNED, sort=False)]


def read_table(path: Path, *texts: str) -> pd.DataFrame:
    """Read a CSV in which "none" is the name of an encoding; ``texts`` are further columns of text."""
    types = dict.fromkeys([*TEXTS, *texts], str)
    return pd.read_csv(path, dtype=types, keep_default_na=False, na_values=[""], engine="python")
