"""Choose the library for float32 matrix products on a CPU: oneDNN if it is exact, else PyTorch's default.

PyTorch uses oneDNN for float32 products only if lower precision is allowed (its setting ``bf16``). On
processors with bfloat16 matrix units oneDNN then computes in bfloat16. On others (AMD at least up to Zen 5)
it still computes in float32, up to twice as fast as MKL. Hence the error is measured before oneDNN is used.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from pe_experiments.terminal.errors import UserError

Backend = Literal["default", "onednn"]

# Rows, summed columns and columns of the products of a small transformer, forward and backward.
SHAPES = ((1280, 64, 256), (1280, 256, 64), (64, 1280, 256), (256, 40, 64), (1000, 64, 14))
HEADS = (128, 40, 16)  # sequences times heads, tokens and head_dim of the products inside attention
SMALL = 1_000_000  # size below which oneDNN's set-up for every new shape outweighs its speed
SAME_ERROR = 4.0  # largest ratio to the default's error; with bfloat16 it is about 10,000
# The setting that selects oneDNN; None if this PyTorch has no oneDNN or no such setting.
_ONEDNN = torch.backends.mkldnn
_SETTING: Any = getattr(_ONEDNN, "matmul", None) if _ONEDNN.is_available() else None


def set_backend(backend: Backend) -> None:
    """Use a backend for all float32 matrix products of this process."""
    if _SETTING is not None:
        _SETTING.fp32_precision = "bf16" if backend == "onednn" else "ieee"


def current_backend() -> Backend:
    in_use = _SETTING is not None and _SETTING.fp32_precision == "bf16"
    return "onednn" if in_use else "default"


def select(choice: str, size: int) -> Backend:
    """Apply ``trainer.matmul`` without timing; ``size`` is symbols of a batch * d_model^2."""
    backend = "default" if choice == "default" or (choice == "auto" and size < SMALL) else faster_backend()
    if choice == "onednn" and backend != "onednn":
        here = "oneDNN is not available here or computes float32 products in bfloat16"
        raise UserError(f"trainer.matmul=onednn: {here}; allowed here: auto, default")
    set_backend(backend)
    return backend


def faster_backend() -> Backend:
    return "onednn" if onednn_keeps_float32() else "default"


@cache
def onednn_keeps_float32() -> bool:
    """Return whether oneDNN is available and as exact as the default on products of a small transformer."""
    generator = torch.Generator().manual_seed(0)
    pairs: list[tuple[Tensor, Tensor]] = []
    for m, k, n in SHAPES:  # forward, and backward for input and weight of a linear layer
        a, b = torch.randn(m, k, generator=generator), torch.randn(k, n, generator=generator)
        pairs += [(a, b.T.contiguous().T), (a, b), (a.T.contiguous().T, b)]
    query, key = (torch.randn(HEADS, generator=generator) for _ in range(2))
    pairs += [(query, key.mT), (query @ key.mT, key)]
    before = current_backend()
    errors: dict[Backend, float] = {}
    try:
        for backend in get_args(Backend):
            set_backend(backend)
            errors[backend] = max(_error(left, right) for left, right in pairs)
    finally:
        set_backend(before)
    return _SETTING is not None and errors["onednn"] <= SAME_ERROR * errors["default"]


def _error(a: Tensor, b: Tensor) -> float:
    """Return the largest error of a product against float64, relative to the product of magnitudes."""
    a64, b64 = a.double(), b.double()
    return float(((a @ b).double() - a64 @ b64).abs().max() / (a64.abs() @ b64.abs()).max())
