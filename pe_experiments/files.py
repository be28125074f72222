"""Where the choices lie, and files that are whole or not there."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
# In a wheel the choices lie inside the package, in a checkout beside it.
CONFIG_DIR = next((path for path in (_HERE / "configs",) if path.is_dir()), _HERE.parent / "configs")


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that a reader, or a kill, finds the old content or the new, never half of it."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    draft.write_text(text, encoding="utf-8")
    os.replace(draft, path)


def read_json(path: Path) -> Any:
    """The content of a JSON file.

    Raises:
        ValueError: it is none, or nested too deep to be read.
        OSError: it cannot be read.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ValueError("nested too deep") from error
