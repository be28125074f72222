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

# Sizes m, k, n of the products [m, k] @ [k, n] in a small transformer.
SHAPES = ((1280, 64, 256), (1280, 256, 64), (64, 1280, 256), (256, 40, 64), (1000, 64, 14))
HEADS = (128, 40, 16)  # sequences * heads, tokens and head_dim of the products in attention
SMALL = 1_000_000  # size below which oneDNN's set-up for every new shape outweighs its speed
SAME_ERROR = 4.0  # largest allowed ratio to the default's error; with bfloat16 it is about 10,000
# The setting that selects oneDNN; None if this PyTorch has no oneDNN or no such setting.
_ONEDNN = torch.backends.mkldnn
_SETTING: Any = getattr(_ONEDNN, "matmul", None) if _ONEDNN.is_available() else None


def set_backend(backend: Backend) -> None:
    """Use a backend for all float32 matrix products of this process."""
    if _SETTING is not None:
        _SETTING.fp32_precision = "bf16" if backend == "onednn" else "ieee"


def current_backend() -> Backend:
    """Return the backend that this process uses."""
    in_use = _SETTING is not None and _SETTING.fp32_precision == "bf16"
    return "onednn" if in_use else "default"


def select(choice: str, size: int) -> Backend:
    """Use the backend of the option ``trainer.matmul`` and return it.

    Args:
        choice: ``auto``, ``onednn`` or ``default``.
        size: symbols of a batch * d_model^2; ``auto`` uses oneDNN only from `SMALL` on.
    """
    backend: Backend = "default"
    if choice == "onednn" or (choice == "auto" and size >= SMALL):
        backend = faster_backend()
    if choice == "onednn" and backend != "onednn":
        raise UserError(
            "trainer.matmul=onednn: oneDNN is not available here or computes float32 products in bfloat16; "
            "allowed here: auto, default"
        )
    set_backend(backend)
    return backend


def faster_backend() -> Backend:
    """Return oneDNN if it computes float32 products exactly here, else the default."""
    return "onednn" if onednn_keeps_float32() else "default"


@cache
def onednn_keeps_float32() -> bool:
    """Return whether oneDNN is available and as exact as the default on products of a small transformer."""
    generator = torch.Generator().manual_seed(0)
    pairs: list[tuple[Tensor, Tensor]] = []
    for m, k, n in SHAPES:  # forward, and backward for input and weight of a linear layer
        a = torch.randn(m, k, generator=generator)
        b = torch.randn(k, n, generator=generator)
        pairs += [(a, b.T.contiguous().T), (a, b), (a.T.contiguous().T, b)]
    query, key = (torch.randn(HEADS, generator=generator) for _ in range(2))
    pairs += [(query, key.mT), (query @ key.mT, key)]
    previous_backend = current_backend()
    errors: dict[Backend, float] = {}
    try:
        for backend in get_args(Backend):
            set_backend(backend)
            errors[backend] = max(_error(left, right) for left, right in pairs)
    finally:
        set_backend(previous_backend)
    return _SETTING is not None and errors["onednn"] <= SAME_ERROR * errors["default"]


def _error(a: Tensor, b: Tensor) -> float:
    """Return the largest error of a product against float64, relative to the product of magnitudes."""
    a64, b64 = a.double(), b.double()
    return float(((a @ b).double() - a64 @ b64).abs().max() / (a64.abs() @ b64.abs()).max())
