"""Where the choices lie, files that are whole or not there, and files that anybody may have written."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from pe_experiments.terminal.errors import printable

_HERE = Path(__file__).resolve().parents[1]
# In a wheel the choices lie inside the package, in a checkout beside it.
CONFIG_DIR = next((path for path in (_HERE / "configs",) if path.is_dir()), _HERE.parent / "configs")
# About a hundred times what runs write: some 100 kB of JSON or CSV, 5 to 20 kB and 8 levels of YAML.
MOST_BYTES, MOST_YAML_BYTES, DEEPEST, LONGEST_SCALAR = 32 << 20, 2 << 20, 100, 10_000
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # OmegaConf's own takes ten times as long


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that a reader, or a kill, finds the old content or the new, never half of it."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    draft.write_text(text, encoding="utf-8")
    os.replace(draft, path)


def require_file(path: Path, most: int) -> None:
    """Hold a path that is about to be read against what a run writes; a ValueError says what else it is."""
    about = path.lstat()
    if not stat.S_ISREG(about.st_mode):
        raise ValueError("a link, pipe, device or folder where a file belongs")
    if about.st_size > most:
        raise ValueError(f"it has {about.st_size / 1e6:,.1f} MB, and at most {most / 1e6:,.1f} MB are read")


def read_text(path: Path, most: int = MOST_BYTES) -> str:
    """The text of a file that anybody may have written; a ValueError where it is none, or too large."""
    require_file(path, most)
    return path.read_text(encoding="utf-8")


def read_json(path: Path) -> Any:
    """The content of a JSON file that anybody may have written; a ValueError where it is none."""
    try:
        return json.loads(read_text(path))
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def read_yaml(path: Path) -> Any:
    """The content of a YAML file that anybody may have written; a ValueError where it is none."""
    text, depth = read_text(path, MOST_YAML_BYTES), 0
    try:
        # What would crash the parser or grow without bound is found among its events, before it is built.
        for event in yaml.parse(text, Loader=LOADER):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEEPEST:
                raise ValueError(f"nested more than {DEEPEST} deep")
            if isinstance(event, yaml.AliasEvent):
                raise ValueError("it holds a YAML alias")
            if isinstance(event, yaml.ScalarEvent) and len(event.value) > LONGEST_SCALAR:
                raise ValueError(f"a value of more than {LONGEST_SCALAR} characters")
            if isinstance(event, yaml.ScalarEvent) and printable(event.value) != event.value:
                raise ValueError("it holds control characters")
        return yaml.load(text, Loader=LOADER)
    except yaml.YAMLError as error:
        raise ValueError(f"no YAML ({type(error).__name__})") from error
