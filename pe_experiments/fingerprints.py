"""Fingerprints of the code behind a run: a digest of every module its training, or its evaluation, uses.

Modules are found by following imports, in this package and in code outside it that defines a scheme or a
task; installed libraries are left out. Comments, layout and docstrings do not change a digest. Modules are
read without being imported.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, MappingProxyType
from typing import Any

TRAINING = ("pe_experiments.training", "pe_experiments.instantiation")
EVALUATION = ("pe_experiments.evaluation",)
# Imported by code that trains without deciding what it computes: the values of configuration and derivation
# are part of a run's identity; evaluation and ceilings determine a run's metrics, never its weights.
NEVER = ("pe_experiments", "pe_experiments.errors", "pe_experiments.config", "pe_experiments.components")
NOT_TRAINING = (*NEVER, *EVALUATION, "pe_experiments.tasks.ceilings")
# Methods of a task that training does not call.
SCORES = ("chance", "bag_ceiling", "bag_ceiling_error", "input_blind")
TASKS = "pe_experiments.tasks."
LIBRARIES = tuple(Path(path) for name, path in sysconfig.get_paths().items() if name.endswith("lib"))
FOREIGN = ("torch", "builtins", "abc", "typing")  # no scheme or task is defined there
DIGITS = 12
LONGEST_FILE_NAME = 255

Digests = dict[str, str]


def training_code(classes: Iterable[type] = (), scores: bool = False) -> Digests:
    """Digest by module of the code that trains: the code shared by all runs, or that of these classes.

    Args:
        classes: their modules, those of their ancestors and what these import; none: the shared code.
        scores: whether the classes are tasks, whose scores (`SCORES`) no training computes.
    """
    roots = _modules(classes) or TRAINING
    return _without_files(classes) | _digests(roots, NOT_TRAINING, "" if scores else TASKS)


def evaluation_code(classes: Iterable[type]) -> Digests:
    """Digest by module of the code that evaluates these classes, without the shared code that trains."""
    found = _without_files(classes) | _digests((*EVALUATION, *_modules(classes)), NEVER)
    return {name: digest for name, digest in found.items() if name not in training_code()}


def named_files(arguments: Any, classes: Iterable[type] = (), more: Iterable[str | Path] = ()) -> Digests:
    """Digest by path of the data files a part reads.

    Args:
        arguments: of the part; every string among them that names an existing file counts.
        classes: outside this package, strings in their source count too.
        more: files the part declares.
    """
    texts = {(text, Path()) for text in _texts(arguments)} | {(str(path), Path()) for path in more}
    for name in _digests(_modules(classes), NEVER):
        path = _source(name)
        if path and not name.startswith("pe_experiments."):
            constants = (node.value for node in ast.walk(_tree(path)) if isinstance(node, ast.Constant))
            texts |= {(text, path.parent) for text in _texts(list(constants))}
    return {text: _file_digest(path) for text, folder in sorted(texts) if (path := _file(text, folder))}


def changed(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Names of the modules and files that differ between two `Identity.sources`."""
    flat = [
        {name: digest for group in sources.values() for name, digest in dict(group).items()}
        for sources in (before, now)
    ]
    return sorted(name for name in flat[0] | flat[1] if flat[0].get(name) != flat[1].get(name))


def source_meaning(source: str, left_out: tuple[str, ...] = ()) -> str:
    """Source without comments, layout and docstrings; the same on every Python.

    Args:
        source: of a module.
        left_out: methods that do not count.
    """
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                node.body = node.body[1:]
        if isinstance(node, ast.ClassDef):
            node.body = [
                part
                for part in node.body
                if not (isinstance(part, ast.FunctionDef) and part.name in left_out)
            ]
    return str(_meaning(tree))


def _meaning(node: Any) -> Any:
    """A syntax tree as nested lists; empty and absent fields, where Pythons differ, are left out."""
    if isinstance(node, ast.AST):
        fields = [[name, _meaning(value)] for name, value in ast.iter_fields(node) if value not in (None, [])]
        return [type(node).__name__, *fields]
    return [_meaning(item) for item in node] if isinstance(node, list) else repr(node)


def _digests(roots: Sequence[str], stop: Iterable[str], scored: str | None = None) -> Digests:
    """Digest by module of the modules imported, directly or not, by these without passing through ``stop``.

    In modules whose name begins with ``scored`` the scores of tasks do not count.
    """
    found: Digests = {}
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        # A scheme may come from an installed library; what it imports there is left out.
        path = _origin(name) if name in roots else _source(name)
        if name in found or name in stop or path is None:
            continue
        left_out = SCORES if scored is not None and name.startswith(scored) else ()
        found[name] = _digest(path, _stamp(path), left_out)
        waiting += _imports(name, path, _stamp(path))
    return dict(sorted(found.items()))


def _modules(classes: Iterable[type]) -> tuple[str, ...]:
    """The modules that define classes and their ancestors."""
    names = dict.fromkeys(ancestor.__module__ for cls in classes for ancestor in cls.__mro__)
    return tuple(name for name in names if name.partition(".")[0] not in FOREIGN)


@cache
def _digest(path: Path, stamp: tuple[int, int], left_out: tuple[str, ...]) -> str:
    return _hash(source_meaning(path.read_text(encoding="utf-8"), left_out))


@cache
def _imports(module: str, path: Path, stamp: tuple[int, int]) -> tuple[str, ...]:
    """Names a module imports that may be modules."""
    names: set[str] = set()
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            names |= {source, *(f"{source}.{alias.name}" for alias in node.names)}
    return tuple(sorted(names))


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _source(module: str) -> Path | None:
    """The file of a module unless it is of an installed library."""
    if not _is_own(module.partition(".")[0]):
        return None
    return _origin(module)


@cache
def _is_own(top: str) -> bool:
    """Whether a top-level module is this package or the code of a user."""
    if top == "pe_experiments":
        return True
    path = _origin(top)
    return path is not None and not any(path.is_relative_to(library) for library in LIBRARIES)


def _origin(module: str) -> Path | None:
    """The Python file of a module, imported or not."""
    if (file := getattr(sys.modules.get(module), "__file__", None)) is None:
        try:
            spec = importlib.util.find_spec(module)
        except (ImportError, ValueError, AttributeError):  # no module of that name, or one without a file
            return None
        file = spec.origin if spec and spec.has_location else None
    path = Path(file) if file else None
    return path if path and path.suffix == ".py" and path.is_file() else None


def _without_files(classes: Iterable[type]) -> Digests:
    """Digests of classes defined in a notebook or a shell: of their methods' bytecode."""
    typed = [cls for cls in classes if _origin(cls.__module__) is None and cls.__module__ != "builtins"]
    return {f"{cls.__module__}.{cls.__qualname__}": _hash(str(_compiled(vars(cls)))) for cls in typed}


def _compiled(node: Any) -> Any:
    if isinstance(node, CodeType):
        return [node.co_code.hex(), node.co_names, [_compiled(constant) for constant in node.co_consts]]
    if isinstance(node, MappingProxyType):
        return [
            [key, _compiled(value)] for key, value in node.items() if key not in ("__doc__", "__module__")
        ]
    if isinstance(node, FunctionType):
        return [_compiled(node.__code__), repr(node.__defaults__), repr(node.__kwdefaults__)]
    return repr(node) if isinstance(node, int | float | str | tuple | None) else type(node).__name__


def _texts(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        node = list(node.values())
    if isinstance(node, list | tuple):
        for item in node:
            yield from _texts(item)
    elif isinstance(node, str | Path):
        yield str(node)


def _file(text: str, folder: Path) -> Path | None:
    if not 0 < len(text) <= LONGEST_FILE_NAME or "\n" in text or "\0" in text:
        return None
    for path in (Path(text), folder / text):
        if path.is_file():
            return path
    return None


def _stamp(path: Path) -> tuple[int, int]:
    facts = path.stat()
    return facts.st_mtime_ns, facts.st_size


def _file_digest(path: Path) -> str:
    return _content_digest(path.resolve(), _stamp(path))


@cache
def _content_digest(path: Path, stamp: tuple[int, int]) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:DIGITS]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]
