"""The data files a part of a run reads: they belong to what was trained as much as its code does."""

from __future__ import annotations

import ast
import hashlib
import os
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from pe_experiments.store.code import DIGITS, PACKAGE, Digests, digest, files_of
from pe_experiments.terminal.errors import UserError

MOST_NAMED = 20  # files with a digest each; more, or several of one name, have a common one


def data_files(arguments: Any, classes: Iterable[type], declared: Iterable[str | Path] = ()) -> Digests:
    """Digest by path of the data files a part reads; of many, one of their names and contents.

    Args:
        arguments: of the part; a text in them that names a file is taken for one.
        classes: the source of those outside this package is searched for such texts too.
        declared: files and folders the part says it reads.

    Raises:
        UserError: a declared file does not exist.
    """
    named = {name: path for cls in classes for name, path in files_of(cls).items()}
    outside = [path for name, path in named.items() if name.partition(".")[0] != PACKAGE]
    texts = [text for text in _texts(arguments) if outside or _is_path(text)]
    found = {path for text in texts for path in _existing(text, [Path()])}
    for module in outside:
        texts = [text for text in _text_constants(module) if _is_path(text)]
        found |= {path for text in texts for path in _existing(text, [Path(), module.parent])}
    for path in map(Path, declared):
        if not path.exists():
            raise UserError(f"the data file {path} does not exist")
        found |= {path} if path.is_file() else {entry for entry in path.rglob("*") if entry.is_file()}
    files = sorted({path.resolve(): path for path in sorted(found)}.items())  # each once, however it is named
    digests = [(_shown(path), _digest(real, real.stat().st_mtime_ns)) for real, path in files]
    if len(files) <= MOST_NAMED and len(dict(digests)) == len(files):
        return dict(digests)
    listing = "\n".join(f"{name} {digest}" for name, digest in digests)
    return {f"{len(files)} data files": digest(listing)}


@cache
def _digest(path: Path, changed_at: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:DIGITS]


def _texts(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        node = list(node.values())
    if isinstance(node, list | tuple):
        for item in node:
            yield from _texts(item)
    elif isinstance(node, str | Path):
        yield str(node)


def _is_path(text: str) -> bool:
    """Whether a text looks like a file's name rather than like a word."""
    return "\n" not in text and ("." in text.strip(".") or "/" in text or os.sep in text)


def _existing(text: str, folders: list[Path]) -> Iterator[Path]:
    for folder in folders:
        try:
            if text and (folder / text).is_file():
                yield folder / text
        except (OSError, ValueError):  # longer than a name may be, or no name at all
            continue


def _shown(path: Path) -> str:
    """As named; without the folders of this machine, so that a moved project keeps its runs."""
    return path.name if path.is_absolute() else str(path)


def _text_constants(path: Path) -> Iterator[str]:
    """Every text in the source of a module."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
