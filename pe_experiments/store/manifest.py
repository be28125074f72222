"""Read and write the list of the runs of a study, ``results_dir/<study>/manifest.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from filelock import FileLock

from pe_experiments.terminal.errors import UserError
from pe_experiments.terminal.files import make_folder, read_json, write_atomically

OF_A_CHOICE = ("encoding", "task", "model", "setting", "chosen")  # text values of an entry of ``tuning``


def list_in_study(results_dir: Path, study: str, *names: str) -> None:
    """Add runs to the manifest of a study under a lock."""
    manifest = results_dir / study / "manifest.json"
    if manifest.exists() and set(names) <= set(read_manifest(manifest)["runs"]):
        return  # works in a read-only directory, too
    lock = make_folder(manifest.parent, results_dir) / ".manifest.lock"
    if lock.is_symlink():  # some versions of filelock follow links
        raise UserError(f"{lock} is a link, and nothing is written through one; delete it")
    with FileLock(lock):
        content = read_manifest(manifest) if manifest.exists() else {"runs": []}
        facts = {key: value for key, value in content.items() if key not in ("runs", "study")}
        write_manifest(results_dir, study, [*content["runs"], *names], **facts)


def write_manifest(results_dir: Path, study: str, names: list[str], **facts: Any) -> None:
    """Write the manifest of a study with exactly these runs and ``facts`` such as ``tuning``."""
    folder = make_folder(results_dir / study, results_dir)
    content = facts | {"study": study, "runs": sorted(set(names))}
    write_atomically(folder / "manifest.json", json.dumps(content, indent=2) + "\n")


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the manifest of a study: the names of its ``runs``, and ``tuning`` if options were tuned.

    Raises:
        UserError: the manifest is missing or damaged.
    """
    try:
        content = read_json(path)
        names = content["runs"]
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise TypeError("its runs are not names")
        for choice in content.get("tuning", []):
            _require_choice(choice)
        return content
    except FileNotFoundError as error:
        studies = sorted(manifest.parent.name for manifest in path.parents[1].glob("*/manifest.json"))
        known = f"; studies there: {', '.join(studies)}" if studies else "; no study has been run there yet"
        raise UserError(f"study={path.parent.name}: {path} does not exist{known}") from error
    except (ValueError, KeyError, TypeError) as error:
        cure = "delete it and run the sweep again"
        raise UserError(f"{path} is damaged ({type(error).__name__}); {cure}") from error


def _require_choice(choice: dict[str, Any]) -> None:
    """Raise a KeyError or TypeError unless this is an entry of ``tuning``."""
    texts = [choice[key] for key in OF_A_CHOICE]
    mappings = [choice.get(key, {}) for key in ("tried", "settings")]
    valid = all(isinstance(value, str) for value in texts) and all(
        isinstance(value, dict) for value in mappings
    )
    if not valid or "seed" not in choice:
        raise TypeError("a tuned option has no encoding")
