"""Compute names, hashes and differences from content, without importing torch."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pe_experiments.terminal.errors import UserError, shown

DIGEST_DIGITS = 12  # hexadecimal digits of a digest


def safe_name(label: str) -> str:
    """Return a label without characters that are special in paths, shells or Hydra."""
    return re.sub(r"[^A-Za-z0-9_.+-]+", "_", label).strip("_")


def full_hash(content: Any) -> str:
    """Return a hash of JSON-like content, 64 hexadecimal digits."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def short_hash(content: Any) -> str:
    """Return eight hexadecimal digits of a hash of JSON-like content."""
    return full_hash(content)[:8]


def bytes_digest(content: bytes) -> str:
    """Return the first digits of the SHA-256 hash of some bytes."""
    return hashlib.sha256(content).hexdigest()[:DIGEST_DIGITS]


def file_digest(path: Path) -> str:
    """Return the first digits of the SHA-256 hash of a file, cached until it is modified."""
    status = path.stat()
    return _digest_of_file(path, status.st_mtime_ns, status.st_ctime_ns, status.st_size)


@cache
def _digest_of_file(path: Path, *_: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:DIGEST_DIGITS]


def jsonable(content: Any) -> Any:
    """Return content as JSON values: functions and classes become names, sets become sorted lists.

    Raises:
        UserError: the text of a value contains its memory address, so it differs between processes.
    """
    return json.loads(json.dumps(content, default=_as_text))


def _as_text(value: Any) -> Any:
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    if name := getattr(value, "__qualname__", None):
        return f"{getattr(value, '__module__', '')}.{name}"
    if " at 0x" in (text := str(value)):
        raise UserError(f"{type(value).__name__}: arguments of this type cannot be identified by their text")
    return text


def config_differences(config: Mapping[str, Any], earlier: Mapping[str, Any]) -> list[str]:
    """Describe the differences between two `Identity.hashed`: ``training.steps=500 (cached run: 400)``."""
    values, earlier_values = dict(leaves(config)), dict(leaves(earlier))
    texts = []
    for path in values | earlier_values:
        value = values.get(path, "default")
        earlier_value = earlier_values.get(path, "default")
        if json.dumps(value) == json.dumps(earlier_value):
            continue
        if path[0] in ("data", "classes"):
            texts.append(f"{path[-1]} has been edited")
        else:
            key = ".".join(path[1:]) or "NUMERICS"
            texts.append(f"{key}={shown(value)} (cached run: {shown(earlier_value)})")
    return texts


def leaves(node: Any, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the path of keys and the value of every leaf of nested mappings."""
    if not isinstance(node, Mapping):
        yield path, node
        return
    for key, value in node.items():
        yield from leaves(value, *path, key)


def texts(node: Any) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    elif isinstance(node, Mapping | list | tuple):
        for value in node.values() if isinstance(node, Mapping) else node:
            yield from texts(value)
