"""Check that classes and data named by a run are in the working directory, without importing them."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pe_experiments.store.identity import data_digests
from pe_experiments.store.names import text_digest
from pe_experiments.terminal.errors import UserError


def is_own(name: str, hashed: Mapping[str, Any], folder: Path) -> bool:
    """Return whether a class or file of a run is in the folder, unchanged since `Identity.hashed`.

    For a class this includes its ancestors outside this package. Nothing is imported.
    """
    try:
        for digests in hashed["classes"].values():
            if name in digests:
                return all(
                    class_digest(class_name, folder) == digest for class_name, digest in digests.items()
                )
        path = (folder / name).resolve()
        inside = path.exists() and path.is_relative_to(folder.resolve())
        return inside and data_digests([path], []).items() <= hashed["data"].items()
    except (AttributeError, TypeError, KeyError, OSError, UserError):  # a damaged or foreign configuration
        return False


def class_digest(name: str, folder: Path) -> str | None:
    """Return the digest of a class's source in the folder by its dotted name; None if it is missing."""
    parts = name.split(".")
    for length in range(len(parts) - 1, 0, -1):
        module = folder.joinpath(*parts[:length])
        for file in (module.with_suffix(".py"), module / "__init__.py"):
            if file.is_file():
                text = _class_text(file, parts[length:])
                return None if text is None else text_digest(text)
    return None


def _class_text(file: Path, names: list[str]) -> str | None:
    """Return the source of a class as in `inspect.getsource`; ``names`` lead to it from the module."""
    try:
        text = file.read_text(encoding="utf-8")
        node: Any = ast.parse(text)
    except (OSError, ValueError, SyntaxError):
        return None
    for name in names:
        inside = [child for child in node.body if isinstance(child, ast.ClassDef) and child.name == name]
        if not inside:
            return None
        node = inside[-1]  # the last definition counts
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return "".join(inspect.getblock(text.splitlines(keepends=True)[first - 1 :]))
