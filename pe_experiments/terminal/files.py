"""Where the choices lie, files that are whole or not there, and files that anybody may have written."""

from __future__ import annotations

import json
import os
import shutil
import stat
import time
from collections.abc import Iterable
from contextlib import suppress
from glob import escape
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from pe_experiments.terminal.errors import UserError, printable

_HERE = Path(__file__).resolve().parents[1]
# In a wheel the choices lie inside the package, in a checkout beside it.
CONFIG_DIR = next((path for path in (_HERE / "configs",) if path.is_dir()), _HERE.parent / "configs")
# About a hundred times what runs write: some 100 kB of JSON or CSV, 5 to 20 kB and 8 levels of YAML.
MOST_BYTES, MOST_YAML_BYTES, DEEPEST, LONGEST_SCALAR = 32 << 20, 2 << 20, 100, 10_000
DRAFT_SECONDS = 60.0  # longer than any file takes to be written
READY = ".ready"  # folder of files that are complete and not all in their places yet
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # OmegaConf's own takes ten times as long


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file so that a reader, or a kill, finds the old content or the new, never half of it.

    A symbolic link at ``path`` is replaced, not followed. Drafts that killed processes left are removed.
    """
    for draft in path.parent.glob(f".{escape(path.name)}.*.tmp"):
        with suppress(FileNotFoundError):
            if time.time() - draft.lstat().st_mtime > DRAFT_SECONDS:
                draft.unlink()
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    draft.unlink(missing_ok=True)
    try:
        with draft.open("xb") as file:  # x: never through a link that lies there
            file.write(content if isinstance(content, bytes) else content.encode())
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def make_folder(folder: Path, root: Path) -> Path:
    """Make a folder that lies in ``root``, which may be anybody's: no link leads out of it.

    Raises:
        UserError: something between the two is a link or a file.
    """
    step = root
    for part in folder.relative_to(root).parts:
        step /= part
        if step.is_symlink():
            raise UserError(f"{step} is a link, and nothing is written through one; delete it")
        if step.exists() and not step.is_dir():
            raise UserError(f"{step} is a file where a folder belongs; delete it or choose another name")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def replace_together(source: Path, folder: Path, names: Iterable[Path]) -> None:
    """Replace files of a folder by those of ``source``: all of them or none, whenever a kill comes.

    They are copied beside the old ones. Once all are there, the copies become ``.ready`` in one step, and
    whatever happens then, `finish_replacing` moves the rest.
    """
    finish_replacing(folder)
    names = sorted(names)
    for name in names:
        make_folder((folder / name).parent, folder)
    copies = folder / ".copies"
    shutil.rmtree(copies, ignore_errors=True)
    try:
        for name in names:
            make_folder((copies / name).parent, folder)
            shutil.copyfile(source / name, copies / name)
        copies.rename(folder / READY)
    finally:
        shutil.rmtree(copies, ignore_errors=True)
    finish_replacing(folder)


def finish_replacing(folder: Path) -> None:
    """Move the files of ``.ready`` to their places, where a kill has kept `replace_together` from it."""
    ready = folder / READY
    if ready.is_symlink() or not ready.is_dir():
        return
    for path in sorted(ready.rglob("*")):
        if not path.is_dir():
            name = path.relative_to(ready)
            make_folder((folder / name).parent, folder)
            os.replace(path, folder / name)
    shutil.rmtree(ready)


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
