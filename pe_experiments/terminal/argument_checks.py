"""Check an argument: return its value, or raise a ValueError with the allowed values."""

from __future__ import annotations

import math
from typing import Any, TypeVar, get_args

Number = TypeVar("Number", int, float)


def at_least(minimum: float, name: str, value: Number) -> Number:
    if not minimum <= value < math.inf:
        finite = "a finite number of " if isinstance(value, float) else ""
        raise ValueError(f"{name}={value} must be {finite}at least {minimum}")
    return value


def above(minimum: float, name: str, value: float) -> float:
    if not minimum < value < math.inf:
        raise ValueError(f"{name}={value} must be a finite number greater than {minimum}")
    return value


def one_of(choices: Any, name: str, value: str) -> Any:
    """Return a value that is among the ``Literal`` ``choices``."""
    if value not in get_args(choices):
        raise ValueError(f"{name}={value} is not one of the choices: {', '.join(get_args(choices))}")
    return value
