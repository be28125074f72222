"""Which library multiplies float32 matrices on a CPU: oneDNN where it keeps float32, else PyTorch's default.

PyTorch hands float32 products to oneDNN only when told that less than float32 would do (its setting
``bf16``). On processors with bfloat16 matrix units oneDNN then really computes in bfloat16; on others (AMD up
to Zen 5 at least) it computes in float32 all the same, up to twice as fast as MKL. The setting does not say
which, so the error is measured before oneDNN is taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from pe_experiments.errors import UserError

Route = Literal["default", "onednn"]

# Rows, columns summed over and columns of the products of a small transformer, forward and backward.
SHAPES = ((1280, 64, 256), (1280, 256, 64), (64, 1280, 256), (256, 40, 64), (1000, 64, 14))
HEADS = (128, 40, 16)  # sequences times heads, tokens and head_dim of the products inside attention
SAME_ERROR = 4.0  # times the default's; bfloat16 would be some ten thousand times


@dataclass(frozen=True)
class Probe:
    """How far float32 products are off on this processor.

    Attributes:
        error: largest error of oneDNN's beside float64, as a share of the product of magnitudes.
        default_error: the same of the default.
    """

    error: float
    default_error: float

    @property
    def keeps_float32(self) -> bool:
        return self.error <= SAME_ERROR * self.default_error

    @property
    def route(self) -> Route:
        return "onednn" if _switchable() and self.keeps_float32 else "default"


def set_route(route: Route) -> None:
    """Compute all float32 matrix products of this process that way from now on."""
    if _switchable():
        _switch().fp32_precision = "bf16" if route == "onednn" else "ieee"


def current_route() -> Route:
    """The route products take now."""
    return "onednn" if _switchable() and _switch().fp32_precision == "bf16" else "default"


@contextmanager
def routed(route: Route) -> Iterator[None]:
    """Take a route for a while."""
    before = current_route()
    set_route(route)
    try:
        yield
    finally:
        set_route(before)


def select(choice: str) -> Route:
    """Set the route and return it.

    Args:
        choice: ``hardware.matmul``: a route, or ``auto``: oneDNN wherever it keeps float32. Processor and
            error decide, never a timing: the same run is computed alike on a busy machine.

    Raises:
        UserError: oneDNN is asked for where it would compute in less than float32.
    """
    route: Route = "default" if choice == "default" else probe().route
    if choice == "onednn" and route != "onednn":
        raise UserError(
            "hardware.matmul=onednn: here it is not there, or would compute float32 products in "
            "bfloat16; allowed here: auto, default"
        )
    set_route(route)
    return route


@cache
def probe() -> Probe:
    """Measure the errors of both routes over a small transformer's products."""
    generator = torch.Generator().manual_seed(0)
    pairs = [pair for m, k, n in SHAPES for pair in _layouts(m, k, n, generator)]
    rows, tokens, width = HEADS
    q, k = (torch.randn(rows, tokens, width, generator=generator) for _ in range(2))
    pairs += [(q, k.mT), (q @ k.mT, k)]
    errors: dict[Route, float] = {}
    for route in get_args(Route):
        with routed(route):
            errors[route] = max(_error(a, b) for a, b in pairs)
    return Probe(errors["onednn"], errors["default"])


def _layouts(m: int, k: int, n: int, generator: torch.Generator) -> list[tuple[Tensor, Tensor]]:
    """As a linear layer multiplies forward, and backward for its input and for its weight."""
    a, b = torch.randn(m, k, generator=generator), torch.randn(k, n, generator=generator)
    return [(a, b.T.contiguous().T), (a, b), (a.T.contiguous().T, b)]


def _error(a: Tensor, b: Tensor) -> float:
    a64, b64 = a.double(), b.double()
    return float(((a @ b).double() - a64 @ b64).abs().max() / (a64.abs() @ b64.abs()).max())


def _switchable() -> bool:
    """Whether this PyTorch has oneDNN and lets its float32 products be chosen."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.backends.mkldnn, "matmul")


def _switch() -> Any:
    return torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
