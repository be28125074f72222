"""Locate the configs, write files atomically and read untrusted files safely."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from filelock import FileLock

from pe_experiments.terminal.errors import UserError

_PACKAGE = Path(__file__).resolve().parents[1]
# In a wheel the configs are inside the package, in a checkout beside it.
CONFIG_DIR = _PACKAGE / "configs"
if not CONFIG_DIR.is_dir():
    CONFIG_DIR = _PACKAGE.parent / "configs"
CATALOGUE = _PACKAGE / "catalogue.yaml"
# Limits for untrusted files. Runs write about a hundredth: 100 kB of JSON or CSV, 20 kB and 8 levels of YAML.
MOST_BYTES = 32 << 20
MOST_YAML_BYTES = 2 << 20
DEEPEST = 100  # levels of nested YAML
READY = ".ready"  # folder with complete files that still have to be moved
SEXAGESIMAL = re.compile(r"[-+]?[\d_]+:")  # a number in base 60, which takes quadratic time to read
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times faster than OmegaConf's loader


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file atomically: readers see the old or the new content, even after a kill.

    A symbolic link at ``path`` is replaced, not followed.
    """
    # Random, because threads share a process id, and so may processes of two machines.
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with draft.open("xb") as file:  # mode x does not follow a link
            file.write(content if isinstance(content, bytes) else content.encode())
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def inside(folder: Path, *names: str) -> Path:
    """Return the path of a file or a folder within a folder that somebody else may have filled.

    Raises:
        UserError: it, or a folder on the way to it, is a link out of the folder.
    """
    path = folder.joinpath(*names)
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        raise UserError(f"{path} leads out of {folder} through a link, which is not followed; delete it")
    return path


def make_folder(folder: Path) -> Path:
    """Create a folder and its parents, and return it; raise a `UserError` if that is not possible."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        where = f"{folder}, or a folder that it is in, is a file"
        raise UserError(f"{where}; delete it or choose another name") from error
    except OSError as error:
        raise UserError(f"{folder}: cannot write there ({error.strerror})") from error
    return folder


def remove_folder(folder: Path) -> None:
    """Remove a folder, or a link without the folder to which it points."""
    if folder.is_symlink():
        folder.unlink()
    else:
        shutil.rmtree(folder, ignore_errors=True)


def replace_together(source: Path, folder: Path, names: Iterable[Path]) -> None:
    """Replace the named files of a folder by those of ``source``, all or none even after a kill.

    The files are copied to a temporary folder, which is renamed to ``.ready`` when all copies are complete.
    They are then moved to their places, if necessary by a later process in `consistent_files`.
    """
    names = sorted(names)
    with consistent_files(folder):
        for name in names:
            make_folder(inside(folder, *name.parent.parts))
        copies = folder / ".copies"
        remove_folder(copies)
        try:
            for name in names:
                make_folder((copies / name).parent)
                shutil.copyfile(source / name, copies / name)
            copies.rename(folder / READY)
        finally:
            remove_folder(copies)
        _move_ready_files(folder)


@contextmanager
def consistent_files(folder: Path) -> Iterator[None]:
    """Finish an interrupted `replace_together` and hold off those of other processes within the block."""
    try:
        lock = FileLock(folder / ".files.lock").acquire()
    except OSError:  # not writable for this process, which then cannot move files either
        yield
        return
    with lock:
        _move_ready_files(folder)
        yield


def _move_ready_files(folder: Path) -> None:
    """Move the files in ``.ready`` to their places; see `replace_together`."""
    ready = folder / READY
    if ready.is_symlink() or not ready.is_dir():
        return
    for path in sorted(ready.rglob("*")):
        if not path.is_dir():
            name = path.relative_to(ready)
            make_folder(inside(folder, *name.parent.parts))
            os.replace(path, folder / name)
    shutil.rmtree(ready)


def require_file(path: Path, max_bytes: int) -> None:
    """Raise a ValueError unless the path is a regular file of at most ``max_bytes``."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("not a regular file")
    if status.st_size > max_bytes:
        size, limit = status.st_size / 1e6, max_bytes / 1e6
        raise ValueError(f"it has {size:,.1f} MB, and at most {limit:,.1f} MB are read")


def read_text(path: Path, max_bytes: int = MOST_BYTES) -> str:
    """Return the text of an untrusted file; raise a ValueError if it is not text or too large."""
    require_file(path, max_bytes)
    return path.read_text(encoding="utf-8")


def read_json(path: Path) -> Any:
    """Return the content of an untrusted JSON file; raise a ValueError if it is not valid."""
    try:
        return json.loads(read_text(path))
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def read_yaml(path: Path) -> Any:
    """Return the content of an untrusted YAML file; raise a ValueError if it is not valid."""
    text = read_text(path, MOST_YAML_BYTES)
    depth = 0
    try:
        # Refuse deep nesting, which crashes the loader, and aliases, which can expand without bound.
        for event in yaml.parse(text, Loader=LOADER):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEEPEST:
                raise ValueError(f"nested more than {DEEPEST} deep")
            if isinstance(event, yaml.AliasEvent):
                raise ValueError("it contains a YAML alias")
            if getattr(event, "tag", None) is not None:  # such as !!int, also of a number in base 60
                raise ValueError(f"it contains the YAML tag {event.tag}")
            if isinstance(event, yaml.ScalarEvent) and event.implicit[0] and SEXAGESIMAL.match(event.value):
                raise ValueError("it contains a number with colons")
        return yaml.load(text, Loader=LOADER)
    except yaml.YAMLError as error:
        raise ValueError(f"not valid YAML ({type(error).__name__})") from error
