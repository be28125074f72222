"""Compute names, hashes and differences from content, without importing torch."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pe_experiments.terminal.errors import UserError, shown

DIGITS = 12  # of a digest


def safe_name(label: str) -> str:
    """Return the label for use in a path, without special characters of shells or Hydra."""
    return re.sub(r"[^A-Za-z0-9_.+=-]+", "_", label).strip("_")


def short_hash(content: Any) -> str:
    """Return eight hexadecimal digits of a hash of JSON-like content."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]


def text_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def file_digest(path: Path) -> str:
    """Return the digest of a file, which is read again only after a change."""
    return _digest_of_file(path, path.stat().st_mtime_ns)


@cache
def _digest_of_file(path: Path, changed_at: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:DIGITS]


def jsonable(content: Any) -> Any:
    """Return content as JSON values, with functions and classes by name and sets sorted.

    Raises:
        UserError: the text of a value is only its memory address.
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


def differences(config: Mapping[str, Any], earlier: Mapping[str, Any]) -> list[str]:
    """Return the differences between two `Identity.hashed`, as ``training.steps=500 (there 400)``."""
    values, earlier_values = dict(leaves(config)), dict(leaves(earlier))
    texts = []
    for path in values | earlier_values:
        value, earlier_value = values.get(path, "default"), earlier_values.get(path, "default")
        if value != earlier_value and path[0] in ("data", "classes"):
            texts.append(f"{path[-1]} has been edited")
        elif value != earlier_value:
            texts.append(f"{'.'.join(path[1:]) or 'NUMERICS'}={shown(value)} (there {shown(earlier_value)})")
    return texts


def leaves(node: Any, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every value in nested mappings with its keys."""
    if not isinstance(node, Mapping):
        yield path, node
        return
    for key, value in node.items():
        yield from leaves(value, *path, key)
