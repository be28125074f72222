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
from types import CodeType, FunctionType, MemberDescriptorType, ModuleType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from pe_experiments.configuration.component import KNOWN_PACKAGES, is_importable, same
from pe_experiments.store.names import bytes_digest
from pe_experiments.terminal.errors import UserError, is_library

UNTRACKED = "untracked"  # begins the digest of a class that no file describes
UserCode = type | Callable[..., Any]
_TOKENS: WeakKeyDictionary[UserCode, str] = WeakKeyDictionary()  # one for each untracked class


class _Files(NamedTuple):
    """What is defined in the files of loaded modules."""

    codes: set[CodeType]  # of all functions
    attributes: set[str]  # names that are set on modules and classes, as in ``cls.size = 2``


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
            is_patched = isinstance(cls, type) and cls.__module__.partition(".")[0] in KNOWN_PACKAGES
            if is_patched or not is_importable(cls):  # a class of this package as it was needs no digest
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
    files = _Files(set(), set())
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
            files.codes.update(_loaded_codes(spec, source))
            files.attributes.update(_assigned_attributes(tree))
            names += _modules_of(sys.modules[name])
        names += _imported_names(tree, spec)
    for loaded_module, tree in loaded:
        if _is_bound_anew(loaded_module, tree) or not _is_unchanged(tree.body, vars(loaded_module), files):
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
            base = _base_of(node, spec.parent)
            exported = getattr(sys.modules.get(base), "__all__", ())  # what a star imports
            yield base
            yield from (f"{base}.{name}" for name in (*(alias.name for alias in node.names), *exported))
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            names = (str(value.value) for value in node.args if isinstance(value, ast.Constant))
            yield from (_absolute(name, spec.parent) for name in names)
        elif isinstance(node, ast.Constant) and node.value != "__main__" and node.value in sys.modules:
            yield str(node.value)  # perhaps imported by a function of another name


def _base_of(node: ast.ImportFrom, package: str | None) -> str:
    """Return the absolute name of the module from which a statement imports."""
    return _absolute("." * node.level + (node.module or ""), package)


def _absolute(name: str, package: str | None) -> str:
    """Return the absolute name of a module; empty above the outermost package, where Python fails, too."""
    try:
        return resolve_name(name, package)
    except ImportError:
        return ""


def _assigned_attributes(tree: ast.Module) -> Iterator[str]:
    """Yield the names of attributes that a file sets, except those of ``self``."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(ast.Name("self")):
                continue
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr


def _is_bound_anew(module: ModuleType, tree: ast.Module) -> bool:
    """Return whether a name of a module has another value than when this function saw it first.

    Names that the module's functions declare ``global`` do not count.
    """
    first = vars(module.__spec__).setdefault("first_namespace", dict(vars(module)))
    declared = {name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names}
    return any(vars(module).get(name) is not first[name] for name in first.keys() - declared)


def _is_unchanged(body: list[ast.stmt], namespace: Mapping[str, Any], files: _Files) -> bool:
    """Return whether functions, classes, imports and literals are those of the file, as far as can be seen.

    Names that are computed or bound several times cannot be compared, nor can None and empty containers,
    which a module may fill itself.
    """
    bindings = list(_bindings(body))
    times_bound = Counter(name for name, _ in bindings)
    for name, node in bindings:
        is_bound_again = times_bound[name] > 1 or name in files.attributes
        if is_bound_again or name not in namespace:  # as a private name, which is another in its class
            continue
        value = namespace[name]
        if isinstance(node, ast.FunctionDef):
            same_value = _is_function(value, node, files)
        elif isinstance(node, ast.ClassDef):
            members = list(vars(value).values()) if isinstance(value, type) else []
            is_plain = type(value) in (type, ABCMeta)  # an Enum computes its members
            same_value = all(_is_of_files(member, files) for member in members)
            same_value &= not is_plain or _is_unchanged(node.body, vars(value), files)
        elif isinstance(node, ast.ImportFrom):
            module = sys.modules.get(_base_of(node, namespace.get("__package__")))
            source = {alias.asname or alias.name: alias.name for alias in node.names}[name]
            is_users = module is not None and not is_library(str(getattr(module, "__file__", "")))
            same_value = not is_users or vars(module).get(source, value) is value
        elif isinstance(node, ast.Import):
            source = next((alias.name for alias in node.names if alias.asname == name), name)
            same_value = sys.modules.get(source, value) is value
        else:
            same_value = node is None or _is_literal(value, node)
        if not same_value:
            return False
    return True


def _bindings(body: Iterable[ast.AST]) -> Iterator[tuple[str, ast.AST | None]]:
    """Yield every name that statements bind, with its definition, import or expression if there is one.

    That includes names that functions declare ``global``.
    """
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield getattr(node, "name", ""), node
            for part in ast.walk(node):
                if isinstance(part, ast.Global):
                    yield from ((name, None) for name in part.names)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (((alias.asname or alias.name).partition(".")[0], node) for alias in node.names)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                pairs = [(target, node.value)]
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = list(zip(target.elts, node.value.elts, strict=False))
                for to, value in pairs:
                    if isinstance(to, ast.Name):
                        yield to.id, value
                    else:
                        yield from _bindings([to])
            yield from _bindings([node.value])
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id, None
        else:
            yield from _bindings(ast.iter_child_nodes(node))


def _is_literal(value: Any, expression: ast.AST) -> bool:
    """Return whether a value is that of an expression, or the expression cannot be compared."""
    try:
        literal = ast.literal_eval(expression)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return True
    is_slot = isinstance(value, MemberDescriptorType) or type(value).__name__ == "_tuplegetter"
    return is_slot or literal in (None, [], {}, set()) or same(value, literal)


def _is_function(value: Any, node: ast.FunctionDef, files: _Files) -> bool:
    """Return whether a value is the function of a definition, with its literal default arguments."""
    function = _function_of(value)
    if function is None or function.__code__ not in files.codes or function.__name__ != node.name:
        return bool(node.decorator_list) and _is_of_files(value, files)
    named = function.__kwdefaults__ or {}
    defaults = [*zip(function.__defaults__ or (), node.args.defaults, strict=False)]
    defaults += [(named.get(arg.arg), default) for arg, default in
                 zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if default]  # fmt: skip
    return all(_is_literal(default, expression) for default, expression in defaults)


def _is_of_files(value: Any, files: _Files) -> bool:
    """Return whether a function is one of the files, of a library, or made by them; true of other values."""
    function = _function_of(value)
    if function is None or function.__code__ in files.codes:
        return True
    if function.__code__.co_filename == "<string>":  # of a dataclass, say
        return function.__globals__.get("__name__") != "__main__"
    return is_library(str(function.__globals__.get("__file__", "")))


def _function_of(value: Any) -> FunctionType | None:
    """Return a function, or that of a method, a property or a decorated function."""
    while not isinstance(value, FunctionType) or hasattr(value, "__wrapped__"):
        parts = (getattr(value, name, None) for name in ("__wrapped__", "__func__", "fget", "func"))
        value = next((part for part in parts if part is not None), None)
        if value is None:
            return None
    return value
