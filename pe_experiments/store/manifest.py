"""Read and write the list of the runs of a study, ``results_dir/<study>/manifest.json``."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from filelock import FileLock

from pe_experiments.terminal.errors import UserError, one_line
from pe_experiments.terminal.files import make_folder, read_json, write_atomically

OPTION = r"(pe|positions|task|model|training|trainer|optimizer)\.[A-Za-z]\w*"  # one that can be tuned


def list_in_study(results_dir: Path, study: str, *names: str, **facts: Any) -> None:
    """Add runs, and ``facts`` such as ``tuned``, to the manifest of a study that others may write, too."""
    manifest = results_dir / study / "manifest.json"
    if manifest.exists():
        content = read_manifest(manifest)
        if set(names) <= set(content["runs"]) and facts.items() <= content.items():
            return  # no lock is needed, so this works in a read-only directory, too
    with FileLock(make_folder(manifest.parent) / ".manifest.lock"):
        content = read_manifest(manifest) if manifest.exists() else {"runs": []}
        kept = {key: value for key, value in content.items() if key not in ("runs", "study")}
        write_manifest(results_dir, study, [*content["runs"], *names], **(kept | facts))


def write_manifest(results_dir: Path, study: str, names: list[str], **facts: Any) -> None:
    """Write the manifest of a study with exactly these runs and ``facts`` such as ``tuned``."""
    folder = make_folder(results_dir / study)
    content = facts | {"study": study, "runs": sorted(set(names))}
    write_atomically(folder / "manifest.json", json.dumps(content, indent=2) + "\n")


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the manifest of a study: the names of its ``runs``, and the ``tuned`` options if any.

    Raises:
        UserError: the manifest is missing or damaged.
    """
    try:
        content = read_json(path)
        names = content.get("runs") if isinstance(content, dict) else None
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError("runs are not names")
        tuned = content.get("tuned", [])
        if not isinstance(tuned, list) or not all(re.fullmatch(OPTION, str(option)) for option in tuned):
            raise ValueError("tuned are not options")
        return content
    except FileNotFoundError as error:
        studies = sorted(manifest.parent.name for manifest in path.parents[1].glob("*/manifest.json"))
        available = f"studies there: {', '.join(studies)}" if studies else "no study has been run there yet"
        raise UserError(f"study={path.parent.name}: {path} does not exist; {available}") from error
    except ValueError as error:
        cure = "delete it and run the sweep again"
        raise UserError(f"{path} is damaged ({one_line(str(error))}); {cure}") from error
