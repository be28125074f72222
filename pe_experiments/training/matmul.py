"""Choose the library for float32 matrix products on a CPU by what the processor is: oneDNN or MKL.

PyTorch uses oneDNN for float32 products only if lower precision is allowed (its setting ``bf16``). On
processors with bfloat16 matrix units (AMX) oneDNN then computes in bfloat16. On others it still computes in
float32: on AMD up to twice as fast as MKL, PyTorch's default. On Intel MKL is as fast on repeated shapes and
several times faster on new ones, for which oneDNN compiles a kernel each. The choice follows from the
processor alone, so that it is the same in every run on a machine.
"""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch

from pe_experiments.terminal.errors import UserError

Backend = Literal["default", "onednn"]

SMALL = 1_000_000  # size below which oneDNN's set-up for every new shape outweighs its speed
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

    Raises:
        UserError: ``onednn`` is not available here or would compute in bfloat16.
    """
    cpu = processor()
    is_exact = _SETTING is not None and "amx_bf16" not in cpu.get("flags", "").split()
    if choice == "onednn" and not is_exact:
        raise UserError(
            "trainer.matmul=onednn: oneDNN is not available here or computes float32 products in bfloat16; "
            "allowed here: auto, default"
        )
    is_faster = cpu.get("vendor_id") == "AuthenticAMD" and size >= SMALL
    chosen = choice == "onednn" or (choice == "auto" and is_exact and is_faster)
    backend: Backend = "onednn" if chosen else "default"
    set_backend(backend)
    return backend


@cache
def processor() -> dict[str, str]:
    """Return what Linux says of the first core: ``vendor_id``, ``model name``, ``flags`` and others."""
    try:
        lines = Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
    except OSError:
        return {"model name": platform.processor()}
    pairs = (line.partition(":")[::2] for line in lines)
    return {key.strip(): value.strip() for key, value in pairs}
