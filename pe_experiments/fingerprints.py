"""Which code and data made a run: a digest of every module that it goes through, and of every file it reads.

Modules are found by following imports, in this package and in the code of whoever wrote a scheme or task;
installed libraries are left out. A digest is of what a module means: comments, layout and docstrings do not
count. It is taken once per process, when the classes are first asked for: what is edited later is not what
this process runs.
"""

from __future__ import annotations

import ast
import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from pe_experiments.errors import UserError

TRAINING = ("pe_experiments.training", "pe_experiments.instantiation")
EVALUATION = ("pe_experiments.evaluation",)
# Read by code that trains, without deciding what it computes: what configuration and derivation decide is
# part of a run's identity as values; evaluation and ceilings make a run's numbers, never its weights.
UNREAD = ("errors", "config", "validation", "components")
NEVER = ("pe_experiments", *(f"pe_experiments.{name}" for name in UNREAD))
NOT_TRAINING = (*NEVER, *EVALUATION, "pe_experiments.tasks.ceilings")
CITES = "cites"  # attribute of a class: where it comes from
# Methods of a task that no training calls.
SCORES = ("chance", "bag_ceiling", "bag_ceiling_error", "input_blind")
TASKS = "pe_experiments.tasks."
FOREIGN = ("torch", "builtins", "abc", "typing")  # where no scheme or task is defined
LIBRARIES = tuple(Path(path) for name, path in sysconfig.get_paths().items() if name.endswith("lib"))
DIGITS = 12
MOST_NAMED = 20  # files with a digest each; more, or several of one name, have a common one

Classes = tuple[type, ...]
Digests = dict[str, str]


@cache
def training_code(classes: Classes = (), scores: bool = False) -> Digests:
    """Digest by module of the training code: what all runs share, or the code of these classes.

    Args:
        classes: their modules, those of their ancestors and what these import; none: the shared code.
        scores: True for tasks: their score methods (`SCORES`), which no training calls, do not count.
    """
    found = _digests(_modules(classes) or TRAINING, NOT_TRAINING, "" if scores else TASKS)
    return _without_files(classes) | found


@cache
def evaluation_code(classes: Classes, more: tuple[str, ...] = ()) -> Digests:
    """Digest by module of the code that evaluates these classes, less the shared code that trains.

    Args:
        classes: of scheme, policy and task.
        more: modules that evaluate this task beside the shared ones.
    """
    found = _without_files(classes) | _digests((*EVALUATION, *more, *_modules(classes)), NEVER)
    training = training_code()
    return {name: digest for name, digest in found.items() if training.get(name) != digest}


def changed(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Names of what differs between two groups of digests, as `Identity.sources` holds them."""
    names = set()
    for group in before | now:
        one, other = dict(before.get(group, {})), dict(now.get(group, {}))
        names |= {name for name in one | other if one.get(name) != other.get(name)}
    return sorted(names)


def source_meaning(source: str | bytes, left_out: tuple[str, ...] = ()) -> str:
    """Source without comments, layout, docstrings and citations; the same on every Python.

    Args:
        source: of a module.
        left_out: methods that do not count, unless something else in the module names them.
    """
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                node.body = node.body[1:]
    methods = [
        (node, part)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for part in node.body
        if isinstance(part, ast.FunctionDef) and part.name in left_out
    ]
    inside = {id(name) for _, part in methods for name in ast.walk(part)}
    named = {
        node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and id(node) not in inside
    }
    for node, part in methods:
        if part.name not in named:
            node.body.remove(part)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            node.body = [part for part in node.body if not _is_citation(part)]
    return str(_meaning(tree))


def _is_citation(part: ast.stmt) -> bool:
    targets = part.targets if isinstance(part, ast.Assign) else [getattr(part, "target", None)]
    return any(isinstance(target, ast.Name) and target.id == CITES for target in targets)


def _meaning(node: Any) -> Any:
    """A syntax tree as nested lists; empty and absent fields, where Pythons differ, are left out."""
    if isinstance(node, ast.AST):
        fields = [[name, _meaning(value)] for name, value in ast.iter_fields(node) if value not in (None, [])]
        return [type(node).__name__, *fields]
    return [_meaning(item) for item in node] if isinstance(node, list) else repr(node)


def _digests(roots: Sequence[str], stop: Sequence[str], scored: str | None = None) -> Digests:
    """Digest by module of what is reached from these modules without passing through ``stop``.

    In modules whose name begins with ``scored`` the scores of tasks do not count.
    """
    found: Digests = {}
    tops = {_top(name) for name in roots}  # a scheme may come from an installed library
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name in found or name in stop or not (_top(name) in tops or _is_own(_top(name))):
            continue
        if (path := module_file(name)) is not None:
            left_out = SCORES if scored is not None and name.startswith(scored) else ()
            found[name], imported = _read(name, path, path.stat().st_mtime_ns, left_out)
            waiting += imported
    return dict(sorted(found.items()))


@cache
def _read(name: str, path: Path, changed_at: int, left_out: tuple[str, ...]) -> tuple[str, list[str]]:
    """Digest of a module's meaning, and what it imports; read anew when the file has changed."""
    source = path.read_bytes()
    return _hash(source_meaning(source, left_out)), _imports(name, path, source)


@cache
def own_modules(classes: Classes) -> tuple[Path, ...]:
    """Files outside this package whose code these classes are made of."""
    names = (name for name in _digests(_modules(classes), NEVER) if _top(name) != "pe_experiments")
    return tuple(path for name in names if (path := module_file(name)))


def _top(module: str) -> str:
    return module.partition(".")[0]


def _modules(classes: Classes) -> tuple[str, ...]:
    """Where classes and their ancestors are defined."""
    names = dict.fromkeys(ancestor.__module__ for cls in classes for ancestor in cls.__mro__)
    return tuple(name for name in names if _top(name) not in FOREIGN)


def _imports(module: str, path: Path, source: bytes) -> list[str]:
    """Names a module imports that may be modules, with the packages around them."""
    names: set[str] = set()
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            origin = ".".join([*above, *([node.module] if node.module else [])])
            names |= {origin, *(f"{origin}.{alias.name}" for alias in node.names)}
    parts = [name.split(".") for name in names]
    return sorted({".".join(split[:length]) for split in parts for length in range(1, len(split) + 1)})


@cache
def _is_own(top: str) -> bool:
    """Whether a top-level module is ours, or of whoever wrote the scheme or task."""
    places = [path for path in (module_file(top), *_folders(top)) if path]
    return top == "pe_experiments" or (bool(places) and not any(map(_is_library, places)))


def _is_library(path: Path) -> bool:
    installed = {"site-packages", "dist-packages"} & set(path.parts)
    return bool(installed) or any(path.is_relative_to(place) for place in LIBRARIES)


def module_file(module: str) -> Path | None:
    """The Python file of a module, imported or not; nothing is imported to find it."""
    if file := getattr(sys.modules.get(module), "__file__", None):
        return Path(file) if file.endswith(".py") and Path(file).is_file() else None
    parent, _, name = module.rpartition(".")
    for folder in _folders(parent) if parent else map(Path, sys.path):
        for path in (folder / f"{name}.py", folder / name / "__init__.py"):
            if path.is_file():
                return path
    return None


def _folders(package: str) -> list[Path]:
    """Where the modules of a package lie."""
    if (paths := getattr(sys.modules.get(package), "__path__", None)) is not None:
        return list(map(Path, paths))
    parent, _, name = package.rpartition(".")
    above = _folders(parent) if parent else list(map(Path, sys.path))
    return [folder / name for folder in above if (folder / name).is_dir()]


def _without_files(classes: Classes) -> Digests:
    """Digests of classes typed into a notebook or a shell: of what their methods were compiled to."""
    ancestors = dict.fromkeys(ancestor for cls in classes for ancestor in cls.__mro__)
    typed = [
        cls for cls in ancestors if _top(cls.__module__) not in FOREIGN and not module_file(cls.__module__)
    ]
    return {f"{cls.__module__}.{cls.__qualname__}": _hash(str(_compiled(cls, set()))) for cls in typed}


def _compiled(node: Any, seen: set[int]) -> Any:
    """What a class or function does, as nested lists; what it calls of the same notebook included."""
    if isinstance(node, FunctionType | type | CodeType):
        if id(node) in seen:
            return node.__name__ if not isinstance(node, CodeType) else node.co_name
        seen.add(id(node))
    if isinstance(node, CodeType):
        return [node.co_code.hex(), node.co_names, [_compiled(constant, seen) for constant in node.co_consts]]
    if isinstance(node, FunctionType):
        used = [node.__globals__.get(name) for name in node.__code__.co_names]
        near = [value for value in used if getattr(value, "__module__", None) == node.__module__]
        cells = [cell.cell_contents for cell in node.__closure__ or ()]
        code = node.__code__.replace(co_consts=tuple(c for c in node.__code__.co_consts if c != node.__doc__))
        parts = [code, node.__defaults__, node.__kwdefaults__, *near, *cells]
        return [_compiled(part, seen) for part in parts]
    if isinstance(node, type):
        own = {key: value for key, value in vars(node).items() if key not in ("__doc__", "__module__")}
        return [[key, _compiled(value, seen)] for key, value in own.items()]
    if isinstance(node, property):
        return [_compiled(part, seen) for part in (node.fget, node.fset)]
    if isinstance(node, staticmethod | classmethod):
        return _compiled(node.__func__, seen)
    if isinstance(node, list | tuple):
        return [_compiled(part, seen) for part in node]
    if isinstance(node, dict):
        return [[str(key), _compiled(value, seen)] for key, value in node.items()]
    return repr(node) if isinstance(node, int | float | str | None) else type(node).__name__


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def data_files(arguments: Any, classes: Classes, declared: Iterable[str | Path] = ()) -> Digests:
    """Digest by path of the data files a part reads; of many, one of their names and contents.

    Args:
        arguments: of the part; a text in them that names a file is taken for one.
        classes: the source of those outside this package is searched for such texts too.
        declared: files and folders the part says it reads.

    Raises:
        UserError: a declared file does not exist.
    """
    outside = own_modules(classes)
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
    return {f"{len(files)} data files": _hash(listing)}


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
