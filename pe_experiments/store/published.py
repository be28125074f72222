"""Look up which runs a published study has, from its CSVs (`studies.archive` describes them)."""

import ast
import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd

from pe_experiments.store.identity import config_key
from pe_experiments.terminal.errors import UserError, one_line
from pe_experiments.terminal.files import consistent_files

RUNS, CURVES = "runs.csv", "curves.csv"
PROVENANCE = "provenance.csv"  # marks a folder as a published study
TUNING = "tuning.csv"
TEXTS = ("name", "label", "task", "model", "status", "protocol", "family", "encoding", "split")  # columns


def published_keys(folder: Path) -> dict[str, set[tuple[int, int]]]:
    """Return the evaluated lengths of each published run, with the number of examples, by its `config_key`.

    A run that diverged has none.

    Runs that tuned an option are listed only in ``tuning.csv``. Apart from this option and the seed they have
    the configuration, and here the lengths, of a published run of the same encoding.
    """
    if not (folder / PROVENANCE).exists():
        return {}
    with valid_study(folder):
        with consistent_files(folder):
            provenance = read_table(folder / PROVENANCE).ffill()[["name", "trained", "data"]]
            families = read_table(folder / RUNS).set_index("name")[["encoding", "protocol"]]
            grid = read_table(folder / TUNING) if (folder / TUNING).exists() else pd.DataFrame()
            curves = pd.read_csv(folder / CURVES, usecols=["name", "length", "examples"])
        lengths_by_name: dict[str, set[tuple[int, int]]] = defaultdict(set)
        for name, length, examples in curves.itertuples(index=False):
            lengths_by_name[name].add((length, examples))
        lengths_by_key: dict[str, set[tuple[int, int]]] = {}
        by_family: dict[tuple[str, ...], tuple[dict[str, Any], dict[str, str], set[tuple[int, int]]]] = {}
        for name, *texts in provenance.itertuples(index=False):
            trained, data = map(json.loads, texts)
            lengths = lengths_by_name[name]
            by_family[*families.loc[name]] = trained, data, lengths
            lengths_by_key[config_key(trained, data)] = lengths
        for row in grid.to_dict("records"):
            trained, data, lengths = by_family[row["family"], row["protocol"]]
            config = {**trained, "seed": row["seed"]}
            for setting, value in zip(row["setting"].split(", "), str(row["value"]).split(", "), strict=True):
                group, _, key = setting.partition(".")
                config[group] = {**config[group], key: _parsed(value)}
            lengths_by_key.setdefault(config_key(config, data), lengths)
    return lengths_by_key


def _parsed(value: str) -> Any:
    """Return the value of an option that `option_value` gave as text."""
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return value


def read_table(path: Path, *texts: str) -> pd.DataFrame:
    """Return a CSV as a data frame; only empty cells are NaN, since "none" is the name of an encoding.

    Args:
        path: the CSV.
        texts: columns to read as text, besides those that always are.
    """
    types = dict.fromkeys([*TEXTS, *texts], str)
    return pd.read_csv(path, dtype=types, keep_default_na=False, na_values=[""], engine="python")


@contextmanager
def valid_study(folder: Path) -> Iterator[None]:
    """Convert the errors of a missing or damaged file in the block to a `UserError`."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = one_line(f"{type(error).__name__}: {error}")
        raise UserError(f"{folder} is not a published study ({reason})") from error
