"""What a class typed into a notebook or a shell does: it has no file, but its methods were compiled."""

from __future__ import annotations

from types import CodeType, FunctionType
from typing import Any


def compiled(cls: type) -> str:
    """A class as text: what its methods were compiled to, and what these call of the same notebook."""
    return str(_compiled(cls, set()))


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
