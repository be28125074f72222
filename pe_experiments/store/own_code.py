"""Digest the source files of classes from outside this package, so that an edit makes a new run.

A class counts with the files that its module imports, as Python finds them, outside the standard library and
installed packages. A class that is in no file, as in a notebook or made by a function, is `UNTRACKED`: its
run is never taken for a finished one. So is a class if one of these modules is not what its file says:

1. The file has changed since the import, or Python has loaded an outdated compiled copy.
2. A function of the module or of its classes has code that none of the files contains.
3. A name that the file binds once, to a class, a function, an import or a literal, now has another value.
4. Any other name has another value than when a run of this process first looked.

Names that the files themselves set on modules and classes, or declare ``global``, are exempt from 3 and 4.
Nobody sees what changes inside an object that a name holds.
"""

from __future__ import annotations

import ast
import secrets
import sys
from abc import ABCMeta
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.metadata import packages_distributions, version
from importlib.util import resolve_name
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from pe_experiments.configuration.component import KNOWN_PACKAGES, is_importable, same
from pe_experiments.store.names import bytes_digest
from pe_experiments.terminal.errors import is_library

UNTRACKED = "untracked"  # begins the digest of a class that no file describes
LITERALS = (bool, int, float, complex, str, bytes, tuple, list, dict, set)
EMPTY: tuple[Any, ...] = (None, [], {}, set())
UserCode = type | Callable[..., Any]
_TOKENS: WeakKeyDictionary[UserCode, str] = WeakKeyDictionary()  # one for each untracked class


class _Unknown(Exception):
    """The loaded code is not, or may not be, that of a file."""


def code_digests(user_classes: Iterable[UserCode]) -> dict[str, str]:
    """Return a digest for each module of these classes or functions; for an installed library its version.

    Args:
        user_classes: from outside this package, PyTorch and Lightning (`Component.own_classes`).
    """
    digests: dict[str, str] = {}
    for cls in user_classes:
        module = sys.modules.get(cls.__module__)
        try:
            is_patched = isinstance(cls, type) and cls.__module__.partition(".")[0] in KNOWN_PACKAGES
            if is_patched or not is_importable(cls):  # an unpatched class of this package needs no digest
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
    codes: set[CodeType] = set()  # of all functions of the loaded files
    loaded: list[tuple[ModuleType, ast.Module]] = []
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
        tree = ast.parse(source)
        if name in sys.modules:
            loaded.append((sys.modules[name], tree))
            codes.update(_loaded_codes(spec, source))
            names += _modules_of(sys.modules[name])
        names += _imported_names(tree, spec)
    variable = {name for _, tree in loaded for name in _variable_names(tree)}
    if any(_is_patched(loaded_module, tree, codes, variable) for loaded_module, tree in loaded):
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
    """Yield the code of a loaded module and of everything in it, compiled from its file."""
    digest = bytes_digest(source)
    if vars(spec).setdefault("first_digest", digest) != digest:
        raise _Unknown  # edited since it was imported
    code = compile(source, str(spec.origin), "exec", dont_inherit=True)
    if isinstance(spec.loader, SourceFileLoader) and spec.loader.get_code(spec.name) != code:
        raise _Unknown  # Python loads an outdated compiled copy
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
            base = _absolute("." * node.level + (node.module or ""), spec.parent)
            exported = getattr(sys.modules.get(base), "__all__", ())  # what a star imports
            yield base
            yield from (f"{base}.{name}" for name in (*(alias.name for alias in node.names), *exported))
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            names = (str(value.value) for value in node.args if isinstance(value, ast.Constant))
            yield from (_absolute(name, spec.parent) for name in names)
        elif isinstance(node, ast.Constant) and node.value != "__main__" and node.value in sys.modules:
            yield str(node.value)  # perhaps imported by a function of another name


def _absolute(name: str, package: str | None) -> str:
    """Return the absolute name of a module; empty above the outermost package, where Python fails, too."""
    try:
        return resolve_name(name, package)
    except ImportError:
        return ""


def _variable_names(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a file sets on modules and classes, or that its functions declare ``global``."""
    for node in ast.walk(tree):
        match node:
            case ast.Global(names):
                yield from names
            case ast.Attribute(ast.Name("self")):
                continue
            case ast.Attribute(ctx=ast.Store(), attr=name):
                yield name


def _is_patched(module: ModuleType, tree: ast.Module, codes: set[CodeType], variable: set[str]) -> bool:
    """Return whether a function, class or constant of a loaded module is not that of its file.

    What a file computes cannot be compared with it, only with what it was when this function first saw the
    module. The values of the names in ``variable`` do not count.
    """
    values = dict(_values(vars(module), module.__name__))
    first_values = vars(module.__spec__).setdefault("first_values", values)
    # A module may get further names, such as submodules, and Python sets private ones.
    added = {name for name in values if name.rpartition(".")[0] and name.rpartition(".")[2][0] != "_"}
    names = first_values.keys() | added
    compared = [(name, values.get(name), first_values.get(name)) for name in names]
    compared += _constants(tree.body, values, module.__package__)
    return not all(_is_of_files(value, codes) for value in values.values()) or any(
        value is not expected and not (type(value) in LITERALS and same(value, expected))
        for name, value, expected in compared
        if name.rpartition(".")[2] not in variable
    )


def _values(namespace: Mapping[str, Any], module: str, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what a namespace, its functions' defaults and the classes defined in it hold, by name."""
    for name, value in list(namespace.items()):
        yield prefix + name, value
        is_defined_here = getattr(value, "__module__", "") == module
        if isinstance(value, type) and is_defined_here and value.__qualname__ == prefix + name:
            yield from _values(vars(value), module, f"{prefix}{name}.")
        elif function := _function_of(value):
            yield f"{prefix}{name}.defaults", function.__defaults__
            yield f"{prefix}{name}.keyword_defaults", function.__kwdefaults__


def _constants(
    body: list[ast.stmt], values: Mapping[str, Any], package: str | None, prefix: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """Yield the name, the value and that in the file of what statements define, import or bind to a literal.

    A name that is bound several times cannot be compared. Of a function the value is its name.
    """
    times_bound = Counter(name for statement in body for node in ast.walk(statement) for name in _bound(node))
    for statement in body:
        pairs: list[tuple[ast.expr, ast.expr]] = []  # of a name and what it is bound to
        match statement:
            case ast.ClassDef(name) if times_bound[name] == 1:
                cls = values.get(prefix + name)
                if type(cls) not in (type, ABCMeta):  # an Enum computes its members
                    continue
                yield from _constants(statement.body, values, package, f"{prefix}{name}.")
                assert isinstance(cls, type)
                in_file = {bound for node in ast.walk(statement) for bound in _bound(node)}
                for member in vars(cls).keys() - in_file:
                    is_inherited = any(member in vars(base) for base in cls.__mro__[1:])
                    if is_inherited and member[0] != "_" and not statement.decorator_list:
                        yield f"{prefix}{name}.{member}", vars(cls)[member], None
            case ast.FunctionDef(name, decorator_list=[]) if times_bound[name] == 1:
                if prefix + name in values:  # a private name is another in its class
                    yield prefix + name, getattr(_function_of(values[prefix + name]), "__name__", None), name
            case ast.Import(aliases):
                for alias in aliases:
                    (name,) = _bound(alias)
                    if times_bound[name] == 1 and prefix + name in values:
                        source = alias.name if alias.asname else name
                        yield prefix + name, values.get(prefix + name), sys.modules.get(source)
            case ast.ImportFrom(names=aliases):
                module = sys.modules.get(_absolute("." * statement.level + (statement.module or ""), package))
                if module and not is_library(str(getattr(module, "__file__", ""))):
                    for alias in aliases:
                        (name,) = _bound(alias)
                        value = values.get(prefix + name)
                        if times_bound[name] == 1 and prefix + name in values:
                            yield prefix + name, value, vars(module).get(alias.name, value)
            case ast.Assign([ast.Tuple(targets)], ast.Tuple(nodes)):
                pairs = list(zip(targets, nodes, strict=False))
            case ast.Assign([target], node) | ast.AnnAssign(target, value=ast.expr() as node):
                pairs = [(target, node)]
            case ast.If() | ast.For() | ast.While() | ast.With() | ast.Try():
                nested = [child for child in ast.iter_child_nodes(statement) if isinstance(child, ast.stmt)]
                yield from _constants(nested, values, package, prefix)
        for target, node in pairs:
            if not isinstance(target, ast.Name) or times_bound[target.id] > 1:
                continue
            value = values.get(prefix + target.id)
            with suppress(ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
                literal = ast.literal_eval(node)
                # None and empty containers are perhaps filled by the module itself.
                if type(value) in LITERALS and literal not in EMPTY:
                    yield prefix + target.id, value, literal


def _bound(node: ast.AST) -> list[str]:
    """Return the name that a node of a statement binds, if any."""
    match node:
        case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
            return [name]
        case ast.Name(name, ctx=ast.Store()):
            return [name]
        case ast.alias(name, asname):
            return [asname or name.partition(".")[0]]
    return []


def _is_of_files(value: Any, codes: set[CodeType]) -> bool:
    """Return whether a function is one of the files, of a library, or made by them; true of other values."""
    function = _function_of(value)
    if function is None or function.__code__ in codes:
        return True
    if function.__code__.co_filename == "<string>":  # of a dataclass, say
        return function.__globals__.get("__name__") != "__main__"
    return is_library(str(function.__globals__.get("__file__", "")))


def _function_of(value: Any) -> FunctionType | None:
    """Return a function, or that of a method, a property or a decorated function."""
    while not isinstance(value, FunctionType) or hasattr(value, "__wrapped__"):
        parts = (getattr(value, name, None) for name in ("__wrapped__", "__func__", "fget"))
        value = next((part for part in parts if part is not None), None)
        if value is None:
            return None
    return value
