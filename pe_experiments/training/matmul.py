"""Which library multiplies float32 matrices on a CPU: oneDNN where it keeps float32, else PyTorch's default.

PyTorch hands float32 products to oneDNN only when told that less than float32 would do (its setting
``bf16``). On processors with bfloat16 matrix units oneDNN then really computes in bfloat16; on others (AMD up
to Zen 5 at least) it computes in float32 all the same, up to twice as fast as MKL. The setting does not say
which, so the error is measured before oneDNN is taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from pe_experiments.terminal.errors import UserError

Backend = Literal["default", "onednn"]

# Rows, columns summed over and columns of the products of a small transformer, forward and backward.
SHAPES = ((1280, 64, 256), (1280, 256, 64), (64, 1280, 256), (256, 40, 64), (1000, 64, 14))
HEADS = (128, 40, 16)  # sequences times heads, tokens and head_dim of the products inside attention
SAME_ERROR = 4.0  # times the default's; bfloat16 would be some ten thousand times
_SETTING: Any = getattr(torch.backends.mkldnn, "matmul", None)


def set_backend(backend: Backend) -> None:
    """Compute all float32 matrix products of this process with it from now on."""
    if _selectable():
        _SETTING.fp32_precision = "bf16" if backend == "onednn" else "ieee"


def current_backend() -> Backend:
    in_use = _selectable() and _SETTING.fp32_precision == "bf16"
    return "onednn" if in_use else "default"


@contextmanager
def using_backend(backend: Backend) -> Iterator[None]:
    """Use a backend inside a with block."""
    before = current_backend()
    set_backend(backend)
    try:
        yield
    finally:
        set_backend(before)


def select(choice: str) -> Backend:
    """Select the backend of ``hardware.matmul`` for this process; ``auto`` is the faster one.

    The processor and the measured error decide, never a timing: a busy machine computes the same run the same
    way.
    """
    backend = "default" if choice == "default" else faster_backend()
    if choice == "onednn" and backend != "onednn":
        raise UserError(
            "hardware.matmul=onednn: here it is not there, or would compute float32 products in "
            "bfloat16; allowed here: auto, default"
        )
    set_backend(backend)
    return backend


def faster_backend() -> Backend:
    """The faster backend of those that keep float32."""
    return "onednn" if onednn_keeps_float32() else "default"


@cache
def onednn_keeps_float32() -> bool:
    """Whether oneDNN is there and its error, over a small transformer's products, is the default's."""
    generator = torch.Generator().manual_seed(0)
    pairs = [pair for m, k, n in SHAPES for pair in _layouts(m, k, n, generator)]
    rows, tokens, width = HEADS
    q, k = (torch.randn(rows, tokens, width, generator=generator) for _ in range(2))
    pairs += [(q, k.mT), (q @ k.mT, k)]
    errors: dict[Backend, float] = {}
    for backend in get_args(Backend):
        with using_backend(backend):
            errors[backend] = max(_error(a, b) for a, b in pairs)
    return _selectable() and errors["onednn"] <= SAME_ERROR * errors["default"]


def _layouts(m: int, k: int, n: int, generator: torch.Generator) -> list[tuple[Tensor, Tensor]]:
    """As a linear layer multiplies forward, and backward for its input and for its weight."""
    a, b = torch.randn(m, k, generator=generator), torch.randn(k, n, generator=generator)
    return [(a, b.T.contiguous().T), (a, b), (a.T.contiguous().T, b)]


def _error(a: Tensor, b: Tensor) -> float:
    """Largest error of a product against float64, relative to the product of magnitudes."""
    a64, b64 = a.double(), b.double()
    return float(((a @ b).double() - a64 @ b64).abs().max() / (a64.abs() @ b64.abs()).max())


def _selectable() -> bool:
    """Whether this PyTorch has oneDNN and a setting for its float32 products."""
    return torch.backends.mkldnn.is_available() and _SETTING is not None
