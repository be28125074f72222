"""Which code made a run: a digest of what each part means, and which code is known to compute the same."""

from __future__ import annotations

import ast
import hashlib
import json
import sys
import sysconfig
from collections.abc import Iterable
from functools import cache
from importlib.machinery import PathFinder
from itertools import accumulate
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Literal

from pe_experiments.configuration.compose import CATALOGUE
from pe_experiments.store.used import used_by
from pe_experiments.terminal.files import write_atomically

# Files and folders of this package: what all runs train with, and what evaluates them.
SHARED = (
    "pe_experiments.training.loop", "pe_experiments.training.optimizer", "pe_experiments.data.batches",
    "pe_experiments.data.formats", "pe_experiments.data.randomness", "pe_experiments.models",
    "pe_experiments.encodings.base", "pe_experiments.positions.base", "pe_experiments.tasks.base",
)  # fmt: skip
EVALUATION = (
    "pe_experiments.evaluation.curve", "pe_experiments.evaluation.text", "pe_experiments.evaluation.evaluate",
    "pe_experiments.data.seen", "pe_experiments.tasks.ceilings",
)  # fmt: skip
PACKAGE, HERE = "pe_experiments", Path(__file__).parents[1]
FOREIGN = ("torch", "builtins", "abc", "typing")  # where no scheme or task is defined
LIBRARIES = tuple(Path(path) for name, path in sysconfig.get_paths().items() if name.endswith("lib"))
DIGITS = 12

Digests = dict[str, str]  # digest by part or file


@cache
def common_code() -> Digests:
    """The code that all runs share: that trains, and that evaluates."""
    of_all = {"training": SHARED, "evaluation": EVALUATION}
    return {part: _common(map(_meaning, _files(names))) for part, names in of_all.items()}


@cache
def class_code(cls: type) -> Digests:
    """The code of a class that neither training nor evaluation shares, by class; other files by module."""
    files = files_of(cls)
    code = {name: digest(source_meaning(source)) for name, (_, source) in outside_code(cls).items()}
    if _top(cls.__module__) != PACKAGE:
        for one in lineage(cls):
            if _top(one.__module__) == PACKAGE:
                code |= class_code(one)
            elif not module_file(one.__module__):  # typed into a notebook or a shell
                code[path_of(one)] = digest(str(_compiled(one, set())))
    covered = [files_of(one).values() for one in lineage(cls)[1:] if path_of(one) in code]
    ours = {path for name, path in files.items() if _top(name) == PACKAGE}
    rest = ours.difference(_files(SHARED), _files(EVALUATION), *covered)
    both = filter(None, [code.get(path_of(cls)), *map(_meaning, rest)])
    return code | ({path_of(cls): _common(both)} if rest else {})


def outside_code(cls: type) -> dict[str, tuple[Path, str | bytes]]:
    """The files of a class that lie outside this package, with their source; of its own what it uses."""
    files = {name: path for name, path in files_of(cls).items() if _top(name) != PACKAGE}
    return {name: (path, path.read_bytes()) for name, path in files.items()} | _own_code(cls)


def _own_code(cls: type) -> dict[str, tuple[Path, str | bytes]]:
    if _top(cls.__module__) == PACKAGE or not (path := module_file(cls.__module__)):
        return {}
    return {path_of(cls): (path, used_by(cls.__qualname__.partition(".")[0], path.read_bytes()))}


def path_of(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _files(names: Iterable[str]) -> frozenset[Path]:
    places = [HERE.joinpath(*name.split(".")[1:]) for name in names]
    found = [place.rglob("*.py") if place.is_dir() else [place.with_suffix(".py")] for place in places]
    return frozenset(path for paths in found for path in paths)


@cache
def files_of(cls: type) -> dict[str, Path]:
    """By module files of a class, its ancestors and what they import, of this package the catalogue.

    From outside the class's own is among them only where another one imports it.
    """
    waiting = [ancestor.__module__ for ancestor in lineage(cls)]
    tops = {_top(name) for name in waiting}  # a scheme may come from an installed library
    for own in _own_code(cls).values():
        waiting = [name for name in waiting if name != cls.__module__]
        waiting += _imports(cls.__module__, *own)
    found: dict[str, Path] = {}
    while waiting:
        name = waiting.pop()
        ours = _top(name) == PACKAGE
        if name in found or (ours and not name.startswith(CATALOGUE)) or (path := module_file(name)) is None:
            continue
        installed = {"site-packages", "dist-packages"} & set(path.parts)
        if ours or _top(name) in tops or not (installed or any(map(path.is_relative_to, LIBRARIES))):
            found[name] = path
            waiting += _imports(name, path)
    return dict(sorted(found.items()))


def lineage(cls: type) -> list[type]:
    """A class and its ancestors, less those of Python and PyTorch."""
    return [one for one in cls.__mro__ if _top(one.__module__) not in FOREIGN]


def _top(module: str) -> str:
    return module.partition(".")[0]


def _imports(module: str, path: Path, source: str | bytes = "") -> set[str]:
    """Names a module imports that may be modules."""
    names: set[str] = set()
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(source or path.read_bytes())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            origin = ".".join([*above, *([node.module] if node.module else [])])
            names |= {origin, *(f"{origin}.{alias.name}" for alias in node.names)}
    return names


def module_file(module: str) -> Path | None:
    """The Python file of a module, imported or not; nothing is imported to find it."""
    origin, place = getattr(sys.modules.get(module), "__file__", None), None
    for name in accumulate(module.split("."), "{}.{}".format) if module not in sys.modules else ():
        if (spec := PathFinder.find_spec(name, place)) is None:
            return None
        origin, place = spec.origin, spec.submodule_search_locations
    return Path(origin) if origin and origin.endswith(".py") and Path(origin).is_file() else None


@cache
def _meaning(path: Path) -> str:
    return digest(source_meaning(path.read_bytes()))


def source_meaning(source: str | bytes) -> str:
    """Source without comments, layout, docstrings and places of our modules; the same on every Python."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and _top(node.module or "") == PACKAGE:
            node.module = PACKAGE  # what is imported counts, not the file it stands in
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                node.body = node.body[1:]
    return str(_nested(tree))


def _nested(node: Any) -> Any:
    """A syntax tree as nested lists; empty and absent fields, where Pythons differ, are left out."""
    if isinstance(node, ast.AST):
        fields = [[name, _nested(value)] for name, value in ast.iter_fields(node) if value not in (None, [])]
        return [type(node).__name__, *fields]
    return [_nested(item) for item in node] if isinstance(node, list) else repr(node)


def _compiled(node: Any, seen: set[int]) -> Any:
    """The code of a class without a file as nested lists, with all it calls of the same notebook."""
    node = getattr(node, "__func__", node)  # of a static or class method
    if isinstance(node, FunctionType | type):
        if id(node) in seen:
            return node.__name__
        seen.add(id(node))
    if isinstance(node, type):
        node = {key: value for key, value in vars(node).items() if key not in ("__doc__", "__module__")}
    elif isinstance(node, property):
        node = [node.fget, node.fset]
    elif isinstance(node, CodeType):
        node = [node.co_code.hex(), *node.co_names, *node.co_consts]
    elif isinstance(node, FunctionType):
        used = [node.__globals__.get(name) for name in node.__code__.co_names]
        near = [value for value in used if getattr(value, "__module__", None) == node.__module__]
        cells = [cell.cell_contents for cell in node.__closure__ or ()]
        code = node.__code__.replace(co_consts=tuple(c for c in node.__code__.co_consts if c != node.__doc__))
        node = [code, node.__defaults__, node.__kwdefaults__, *near, *cells]
    if isinstance(node, dict):
        node = [[str(key), value] for key, value in node.items()]
    if isinstance(node, list | tuple):
        return [_compiled(part, seen) for part in node]
    return repr(node) if isinstance(node, int | float | str | None) else type(node).__name__


def _common(digests: Iterable[str]) -> str:
    """One digest of several, whatever their order: a file that is renamed is the same code."""
    return digest("\n".join(sorted(digests)))


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


FILE = Path(__file__).with_name("known_code.json")
Half = Literal["trained", "evaluated"]


@cache
def known() -> dict[str, Any]:
    """By part its digest, the state that names the published runs, and how `published.adopt` compared."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def write_known(content: dict[str, Any]) -> None:
    """Replace what is known, a line per part."""
    lines = [f"    {json.dumps(name)}: {json.dumps(part)}" for name, part in sorted(content["parts"].items())]
    write_atomically(FILE, '{\n  "parts": {\n' + ",\n".join(lines) + "\n  }\n}\n")
    known.cache_clear()


def states(code: Digests, half: Half) -> Digests:
    """The published states of parts, by their digests; of one that is not known, the digest itself."""
    found: Digests = {}
    for part, digest in code.items():
        listed = known()["parts"].get(part)
        found |= listed[half] if listed and listed["digest"] == digest else {part: digest}
    return found
