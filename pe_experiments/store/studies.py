"""Which runs belong to a study: ``results_dir/<study>/manifest.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from filelock import FileLock

from pe_experiments.terminal.errors import UserError, is_cell
from pe_experiments.terminal.files import read_json, write_atomically


def list_in_study(results_dir: Path, study: str, *names: str) -> None:
    """Add runs to ``results_dir/<study>/manifest.json``; writers take turns."""
    folder = results_dir / study
    manifest = folder / "manifest.json"
    if manifest.exists() and set(names) <= set(read_manifest(manifest)["runs"]):
        return  # also where nothing can be written any more
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".manifest.lock"):
        there = read_manifest(manifest) if manifest.exists() else {"runs": []}
        facts = {key: fact for key, fact in there.items() if key not in ("runs", "study")}
        write_manifest(results_dir, study, [*there["runs"], *names], **facts)


def write_manifest(results_dir: Path, study: str, names: list[str], **facts: Any) -> None:
    """Make these runs the ones ``results_dir/<study>/manifest.json`` lists."""
    folder = results_dir / study
    folder.mkdir(parents=True, exist_ok=True)
    content = facts | {"study": study, "runs": sorted(set(names))}
    write_atomically(folder / "manifest.json", json.dumps(content, indent=2) + "\n")


def read_manifest(path: Path) -> dict[str, Any]:
    """What a study lists: ``runs``, their names; where settings were tuned, ``tuned`` and ``tuning``."""
    try:
        content = read_json(path)
        names = content["runs"]
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise TypeError("its runs are no names")
        for choice in content.get("tuning", []):
            texts = [choice[key] for key in ("scheme", "task", "model", "setting", "chosen")]
            kinds = all(isinstance(choice.get(key, {}), dict) for key in ("tried", "settings"))
            if not (kinds and all(map(is_cell, texts))):
                raise TypeError("a setting was tuned for no scheme")
        return content
    except FileNotFoundError as error:
        studies = sorted(other.parent.name for other in path.parents[1].glob("*/manifest.json"))
        known = f"; studies there: {', '.join(studies)}" if studies else "; no study has been run there yet"
        raise UserError(f"study={path.parent.name}: {path} does not exist{known}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} is damaged ({type(error).__name__}); delete it and run the sweep again"
        ) from error
