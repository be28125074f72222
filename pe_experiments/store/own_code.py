"""Digest the source files of classes from outside this package, so that an edit makes a new run.

A class counts with the files that its module imports, as Python finds them, outside the standard library and
installed packages. The loaded modules must be what their files say. A class of which this is not known, as in
a notebook or made by a function, is `UNTRACKED`: its run is never taken for a finished one.
"""

from __future__ import annotations

import ast
import secrets
import sys
from abc import ABCMeta
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.metadata import packages_distributions, version
from importlib.util import resolve_name
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from pe_experiments.configuration.compose import is_importable
from pe_experiments.configuration.parts import same
from pe_experiments.store.names import bytes_digest
from pe_experiments.terminal.errors import UserError, is_library

UNTRACKED = "untracked"  # begins the digest of a class that no file describes
UserCode = type | Callable[..., Any]
_TOKENS: WeakKeyDictionary[UserCode, str] = WeakKeyDictionary()  # one for each untracked class


class _Unknown(Exception):
    """The loaded code is not, or may not be, that of a file."""


def code_digests(user_classes: Iterable[UserCode]) -> dict[str, str]:
    """Return a digest for each module of these classes or functions; for an installed library its version.

    Args:
        user_classes: from outside this package, PyTorch and Lightning (`Component.own_classes`).

    Raises:
        UserError: Python loads an outdated compiled copy of a file.
    """
    digests: dict[str, str] = {}
    for cls in user_classes:
        module = sys.modules.get(cls.__module__)
        try:
            if not is_importable(cls):
                raise _Unknown
            if is_library(str(getattr(module, "__file__", ""))):
                library = cls.__module__.partition(".")[0]
                digests[library] = " ".join(map(version, packages_distributions().get(library, [])))
            else:
                digests |= _source_digests(cls.__module__)
        except _Unknown:
            token = _TOKENS.setdefault(cls, secrets.token_hex(6))
            digests[f"{cls.__module__}.{cls.__qualname__}"] = f"{UNTRACKED} {token}"
    return digests


def _source_digests(module: str) -> dict[str, str]:
    """Return a digest of the file of a module and of each file that it imports, by module."""
    digests: dict[str, str] = {}
    codes: set[CodeType] = set()
    loaded: list[tuple[ModuleType, bytes]] = []
    names = [module]
    while names:
        name = names.pop()
        spec = _find_spec(name)
        if name in digests or spec is None or not spec.has_location or is_library(str(spec.origin)):
            continue
        try:
            source = Path(str(spec.origin)).read_bytes()
        except OSError as error:  # within an archive, or deleted
            raise _Unknown from error
        digests[name] = bytes_digest(source)
        names.append(name.rpartition(".")[0])  # the package, which Python imports first
        if not str(spec.origin).endswith(".py"):
            continue
        if name in sys.modules:
            loaded.append((sys.modules[name], source))
            codes.update(_loaded_codes(spec, source))
            names += _modules_of(sys.modules[name])
        names += _imported_names(ast.parse(source), spec)
    for loaded_module, source in loaded:
        if not _is_unchanged(ast.parse(source).body, vars(loaded_module), codes):
            raise _Unknown
    return dict(sorted(digests.items()))


def _find_spec(name: str) -> ModuleSpec | None:
    """Return where Python finds, or found, a module, without importing it; None if it does not exist."""
    package = name.rpartition(".")[0]
    parent = _find_spec(package) if package else None
    if name in sys.modules:
        spec = getattr(sys.modules[name], "__spec__", None)
        if spec is None and not (parent and is_library(str(parent.origin))):  # a script, or made at run time
            raise _Unknown
        return spec
    if not name or (package and (parent is None or parent.submodule_search_locations is None)):
        return None
    folders = parent.submodule_search_locations if parent else None
    specs = (finder.find_spec(name, folders) for finder in sys.meta_path)
    return next(filter(None, specs), None)


def _loaded_codes(spec: ModuleSpec, source: bytes) -> Iterator[CodeType]:
    """Yield the code of a loaded module and of everything in it, compiled from its file.

    Raises:
        UserError: Python loads an outdated compiled copy of the file.
    """
    digest = bytes_digest(source)
    if vars(spec).setdefault("first_digest", digest) != digest:
        raise _Unknown  # edited since it was imported
    code = compile(source, str(spec.origin), "exec", dont_inherit=True)
    if isinstance(spec.loader, SourceFileLoader) and spec.loader.get_code(spec.name) != code:
        stale = "which has the size and the time of the file but not its content"
        raise UserError(f"{spec.origin}: Python loads the compiled copy {spec.cached}, {stale}; delete it")
    pending = [code]
    while pending:
        yield (code := pending.pop())
        pending += [constant for constant in code.co_consts if isinstance(constant, CodeType)]


def _modules_of(module: ModuleType) -> Iterator[str]:
    """Yield the names of modules in the namespace of a module, and of those that its members come from.

    In the namespace of a package are also those of its modules that anything has imported. They do not count.
    """
    for value in list(vars(module).values()):
        name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        if isinstance(name, str) and name in sys.modules and not name.startswith(f"{module.__name__}."):
            yield name


def _imported_names(tree: ast.Module, spec: ModuleSpec) -> Iterator[str]:
    """Yield the names of all modules that a file may import, in functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            try:
                base = resolve_name("." * node.level + (node.module or ""), spec.parent)
            except ImportError:  # above the outermost package, where Python fails, too
                continue
            exported = getattr(sys.modules.get(base), "__all__", ())  # what a star imports
            yield base
            yield from (f"{base}.{name}" for name in (*(alias.name for alias in node.names), *exported))
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            yield from (str(value.value) for value in node.args if isinstance(value, ast.Constant))


def _is_unchanged(body: list[ast.stmt], namespace: Mapping[str, Any], codes: set[CodeType]) -> bool:
    """Return whether functions, classes and literals are those of the file, as far as this can be seen.

    Names that are decorated, computed or bound several times cannot be compared, nor can None and empty
    containers, which a module may fill itself.
    """
    bindings = Counter(_bound_names(body))
    for node in body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name, expression = node.targets[0].id, node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            name, expression = node.target.id, node.value
        elif isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.decorator_list:
            name, expression = node.name, None
        else:
            continue
        if bindings[name] > 1 or (name[:2] == "__" != name[-2:]):  # a private name is another in its class
            continue
        value = namespace.get(name)
        if expression is not None:
            if not _is_literal(value, expression):
                return False
        elif isinstance(node, ast.FunctionDef):
            if not _is_function(value, node, codes):
                return False
        elif isinstance(node, ast.ClassDef) and type(value) in (type, ABCMeta):
            added = vars(value).keys() - set(_bound_names(node.body))
            functions = [vars(value)[key] for key in added if key[0] != "_" or key == "__init__"]
            if any(isinstance(function, FunctionType) for function in functions):
                return False
            if not _is_unchanged(node.body, vars(value), codes):
                return False
    return True


def _bound_names(body: Iterable[ast.AST]) -> Iterator[str]:
    """Yield a name for each statement that binds it, including ``global`` in functions."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield getattr(node, "name", "")
            for part in ast.walk(node):
                yield from part.names if isinstance(part, ast.Global) else ()
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]
        else:
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                yield node.id
            yield from _bound_names(ast.iter_child_nodes(node))


def _is_literal(value: Any, expression: ast.expr) -> bool:
    """Return whether a value is that of an expression, or the expression cannot be compared."""
    try:
        literal = ast.literal_eval(expression)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return True
    return literal in (None, [], {}, set()) or same(value, literal)


def _is_function(value: Any, node: ast.FunctionDef, codes: set[CodeType]) -> bool:
    """Return whether a value is the function of a definition, with its literal default arguments."""
    function = getattr(value, "__func__", value)
    if not isinstance(function, FunctionType) or function.__code__ not in codes:
        return False
    named = function.__kwdefaults__ or {}
    defaults = [*zip(function.__defaults__ or (), node.args.defaults, strict=False)]
    defaults += [(named.get(arg.arg), default) for arg, default in
                 zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if default]  # fmt: skip
    return all(_is_literal(default, expression) for default, expression in defaults)
