"""Check arguments: each function returns the value, or raises a ValueError that states what is allowed."""

from __future__ import annotations

import math
from typing import Any, TypeVar, get_args

Number = TypeVar("Number", int, float)


def at_least(minimum: float, name: str, value: Number) -> Number:
    """Return a finite value that is at least ``minimum``."""
    if not minimum <= value < math.inf:
        finite = "a finite number of " if isinstance(value, float) else ""
        raise ValueError(f"{name}={value} must be {finite}at least {minimum}")
    return value


def above(minimum: float, name: str, value: float) -> float:
    """Return a finite value that is greater than ``minimum``."""
    if not minimum < value < math.inf:
        raise ValueError(f"{name}={value} must be a finite number greater than {minimum}")
    return value


def one_of(choices: Any, name: str, value: str) -> Any:
    """Return a value that is one of ``choices``, a ``Literal`` type."""
    if value not in get_args(choices):
        raise ValueError(f"{name}={value} is not one of the choices: {', '.join(get_args(choices))}")
    return value
