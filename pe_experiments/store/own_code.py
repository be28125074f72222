"""Digest the source code of classes from outside this package, so that an edit makes a new run.

What counts is the syntax tree, without comments and layout, of the file of each class and of the files that
it imports from the working directory. In a notebook it is the class with the globals that it reads.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache, cached_property
from importlib.metadata import packages_distributions, version
from importlib.util import resolve_name
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from numpy import ndarray
from torch import Tensor

from pe_experiments.configuration.parts import KNOWN_PACKAGES
from pe_experiments.store.names import text_digest

INSTALLED = {"site-packages", "dist-packages"}  # folders of installed libraries
UNTRACKED = "no source"  # recorded for a class whose source is not available
Own = type | Callable[..., Any]  # a class or a function of the user
ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # in the text of an object, another one in every process
CODE = (FunctionType, property, staticmethod, classmethod, cached_property)  # counts by its source


def code_digests(own_classes: Iterable[Own]) -> dict[str, str]:
    """Return a digest for each module of these classes or functions; for an installed library its version.

    Args:
        own_classes: from outside this package, PyTorch and Lightning (`Component.own_classes`).
    """
    digests: dict[str, str] = {}
    for cls in own_classes:
        file = file_of(cls)
        library = cls.__module__.partition(".")[0]
        if file and INSTALLED & set(file.parts):
            digests[library] = " ".join(map(version, packages_distributions().get(library, [])))
        elif file:
            digests |= _file_digests(cls)
        else:
            digests[f"{cls.__module__}.{cls.__qualname__}"] = _notebook_digest(cls)
    return digests


def file_of(cls: Own) -> Path | None:
    """Return the file of the module of a class, or None if there is none."""
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return Path(file) if file and Path(file).is_file() else None


@cache
def _file_digests(cls: Own) -> dict[str, str]:
    """Return a digest of the file of a class and of each file that it imports, by module.

    It is cached, because editing a file later does not change the loaded class.
    """
    file = file_of(cls)
    assert file
    digests: dict[str, str] = {}
    to_read = {cls.__module__: file.resolve()}
    while to_read:
        module, path = to_read.popitem()
        try:
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError):
            digests[module] = UNTRACKED
            continue
        digests[module] = text_digest(ast.dump(tree))
        for name, imported_path in _imported_files(tree, module, path):
            if name not in digests:
                to_read[name] = imported_path
    return dict(sorted(digests.items()))


def _imported_files(tree: ast.Module, module: str, file: Path) -> Iterator[tuple[str, Path]]:
    """Yield the modules that a file imports from the working directory or its own folder, and their files."""
    is_package = file.name == "__init__.py"
    package = module if is_package else module.rpartition(".")[0]
    root = file.parents[module.count(".") + is_package]
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                with suppress(ImportError):  # above the outermost package, where Python fails, too
                    base = resolve_name("." * node.level + base, package)
            names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        for name in names:
            if name.partition(".")[0] not in KNOWN_PACKAGES:
                yield from _find_module(name, (Path.cwd(), file.parent, root))


def _find_module(name: str, folders: Iterable[Path]) -> Iterator[tuple[str, Path]]:
    """Yield the name and the file of a module in one of the folders, unless it is an installed library."""
    for folder in folders:
        path = folder.joinpath(*name.split("."))
        for candidate in (path.with_suffix(".py"), path / "__init__.py"):
            if candidate.is_file() and not INSTALLED & set(candidate.parts):
                yield name, candidate.resolve()
                return


@cache
def _notebook_digest(cls: Own) -> str:
    """Return a digest of a class without a file and of the globals that it reads, as in a notebook.

    Classes count by their methods and other attributes, because only functions have a source there.
    """
    texts: dict[str, str] = {}
    to_read: list[tuple[str, Any]] = [(cls.__qualname__, cls)]
    while to_read:
        name, value = to_read.pop()
        functions = [value] if isinstance(value, FunctionType) else list(_functions(value))
        try:
            sources = [textwrap.dedent(inspect.getsource(function)) for function in functions]
            texts[name] = str([ast.dump(ast.parse(source)) for source in sources])
        except (OSError, TypeError, SyntaxError):
            return UNTRACKED
        if isinstance(value, type):
            for key, item in vars(value).items():
                if not key.startswith("__") and not isinstance(item, CODE):
                    texts[name] += f"{key}={_stable_text(item)}"
        for function in functions:
            texts[name] += _stable_text((function.__defaults__, function.__kwdefaults__))
            for key in _names(function.__code__) & function.__globals__.keys() - texts.keys():
                read = function.__globals__[key]
                if isinstance(read, type | FunctionType):
                    if read.__module__ == cls.__module__:
                        to_read.append((key, read))
                    elif read.__module__.partition(".")[0] not in KNOWN_PACKAGES:
                        texts[key] = str(code_digests([read]))
                elif not isinstance(read, ModuleType):
                    texts[key] = _stable_text(read)
    return text_digest(str(sorted(texts.items())))


def _stable_text(value: Any) -> str:
    """Return a text of a value that is the same in every process."""
    if isinstance(value, set | frozenset):
        return str(sorted(map(repr, value)))
    if isinstance(value, Tensor | ndarray):
        return f"{value.dtype} {value.tolist()}"
    return ADDRESS.sub("", repr(value))


def _functions(cls: type) -> Iterator[FunctionType]:
    """Yield the functions of a class: methods, static and class methods, and getters of properties."""
    for member in vars(cls).values():
        candidates = [member, *(getattr(member, key, None) for key in ("__func__", "fget", "fset", "func"))]
        for function in candidates:
            if isinstance(function, FunctionType):
                yield function


def _names(code: CodeType) -> set[str]:
    """Return the names that code reads, also within nested functions."""
    nested = [_names(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*nested)
