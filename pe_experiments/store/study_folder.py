"""The folder of a study, ``results_dir/<study>``: which runs it lists, and which it publishes.

``manifest.json`` lists the runs of a study that is trained here. The CSVs of a published study, which
`studies.archive` describes, have the runs themselves.
"""

from __future__ import annotations

import ast
import io
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from filelock import FileLock
from pydantic import Field

from pe_experiments.configuration.schema import validated
from pe_experiments.store.directory import FileName, Received
from pe_experiments.store.identity import config_key
from pe_experiments.terminal.errors import UserError, few, one_line
from pe_experiments.terminal.files import (
    consistent_files,
    inside,
    make_folder,
    read_json,
    read_text,
    write_atomically,
)

if TYPE_CHECKING:  # imported where a CSV is read, because a training lists its run without pandas
    import pandas as pd

RUNS, CURVES = "runs.csv", "curves.csv"
PROVENANCE = "provenance.csv"  # marks a folder as a published study
TUNING = "tuning.csv"
OPTION = r"(pe|positions|task|model|training|trainer|optimizer)\.[A-Za-z]\w*"  # one that can be tuned
TEXTS = ("name", "label", "task", "model", "status", "protocol", "family", "encoding", "split")  # columns


def list_in_study(results_dir: Path, study: str, *names: str, **facts: Any) -> None:
    """Add runs, and ``facts`` such as ``tuned``, to the manifest of a study that others may write, too."""
    manifest = results_dir / study / "manifest.json"
    if manifest.exists():
        content = read_manifest(results_dir, study)
        if set(names) <= set(content["runs"]) and facts.items() <= content.items():
            return  # no lock is needed, so this works in a read-only directory, too
    with FileLock(make_folder(manifest.parent) / ".manifest.lock"):
        content = read_manifest(results_dir, study) if manifest.exists() else {"runs": []}
        names = (*content.pop("runs"), *names)
        write_manifest(results_dir, study, names, **(content | facts))


def write_manifest(results_dir: Path, name: str, names: Iterable[str], /, **facts: Any) -> None:
    """Write the manifest of a study with exactly these runs and ``facts`` such as ``tuned``."""
    folder = make_folder(results_dir / name)
    content = facts | {"study": name, "runs": sorted(set(names))}
    write_atomically(folder / "manifest.json", json.dumps(content, indent=2) + "\n")


class _Manifest(Received):
    runs: list[FileName]
    tuned: list[Annotated[str, Field(pattern=rf"^{OPTION}$", max_length=120)]] = Field(default_factory=list)


def read_manifest(results_dir: Path, study: str) -> dict[str, Any]:
    """Return the manifest of a study: the names of its ``runs``, and the ``tuned`` options if any.

    Raises:
        UserError: the manifest is missing or damaged.
    """
    path = results_dir / study / "manifest.json"
    try:
        content = read_json(path)
        validated(_Manifest, content)
        return content
    except FileNotFoundError as error:
        manifests = [*results_dir.glob("*/manifest.json"), *results_dir.glob("*/*/manifest.json")]
        studies = sorted(manifest.parent.relative_to(results_dir).as_posix() for manifest in manifests)
        available = f"studies there: {few(studies)}" if studies else "no study has been run there yet"
        raise UserError(f"study={study}: {path} does not exist; {available}") from error
    except ValueError as error:
        cure = "delete it and run the sweep again"
        raise UserError(f"{path} is damaged ({one_line(str(error))}); {cure}") from error


def published_keys(folder: Path) -> dict[str, set[tuple[int, int]]]:
    """Return the evaluated lengths of each published run, with the number of examples, by its `config_key`.

    A run that diverged has none.

    Runs that tuned an option are listed only in ``tuning.csv``. Apart from this option and the seed they have
    the configuration, and here the lengths, of a published run of the same encoding.
    """
    if not (folder / PROVENANCE).exists():
        return {}
    import pandas as pd

    with valid_study(folder):
        with consistent_files(folder):
            provenance = read_table(folder / PROVENANCE).ffill()[["name", "trained", "data"]]
            families = read_table(folder / RUNS).set_index("name")[["encoding", "protocol"]]
            grid = read_table(folder / TUNING) if (folder / TUNING).exists() else pd.DataFrame()
            curves = pd.read_csv(_received(folder / CURVES), usecols=["name", "length", "examples"])
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
                with suppress(ValueError, SyntaxError):  # else it is a text
                    value = ast.literal_eval(value)
                config[group] = {**config[group], key: value}
            lengths_by_key.setdefault(config_key(config, data), lengths)
    return lengths_by_key


def read_table(path: Path, *texts: str) -> pd.DataFrame:
    """Return a CSV as a data frame, some of whose columns are texts.

    Only empty cells are NaN, since "none" is the name of an encoding.
    """
    import pandas as pd

    types = dict.fromkeys([*TEXTS, *texts], str)
    return pd.read_csv(_received(path), dtype=types, keep_default_na=False, na_values=[""], engine="python")


def _received(path: Path) -> io.StringIO:
    """Return a CSV of a folder that a stranger may have filled, unless it is a link out of it or no file."""
    return io.StringIO(read_text(inside(path.parent, path.name)))


@contextmanager
def valid_study(folder: Path) -> Iterator[None]:
    """Convert the errors of a missing or damaged file in the block to a `UserError`."""
    try:
        yield
    except UserError:
        raise
    except (OSError, ValueError, ArithmeticError, KeyError, TypeError, AttributeError) as error:
        reason = one_line(f"{type(error).__name__}: {error}")
        raise UserError(f"{folder} is not a published study ({reason})") from error
