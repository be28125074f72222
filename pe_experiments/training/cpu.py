"""Make training fast on a CPU; nothing here changes a result beyond rounding, so a first reading may skip it.

A step computes only what its loss needs, in few shapes, and without what Lightning adds to it. The process
keeps freed memory. The library for float32 matrix products follows from the processor: oneDNN or MKL.
`models.cpu` has the model's part.

PyTorch uses oneDNN for float32 products only if lower precision is allowed (its setting ``bf16``). On
processors with bfloat16 matrix units (AMX) oneDNN then computes in bfloat16. On others it still computes in
float32: on AMD up to twice as fast as MKL, PyTorch's default. On Intel MKL is as fast on repeated shapes and
several times faster on new ones, for which oneDNN compiles a kernel each. The choice follows from the
processor alone, so that it is the same in every run on a machine.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from pe_experiments.data.batches import Batch
from pe_experiments.encodings.tensors import at_least_float32
from pe_experiments.models import Backbone
from pe_experiments.tasks import IGNORE
from pe_experiments.terminal import process
from pe_experiments.terminal.errors import UserError

Backend = Literal["default", "onednn"]

NO_CONTEXT = nullcontext()
MICRO_BATCH_TOKENS = 1300  # smaller parts of a batch cost more time than the padding they save
WIDTH_STEP = 8  # widths and rows are multiples of it, because every new shape sets up kernels
SCORED_STEP = 16  # scored tokens are padded to a multiple of it, for the same reason
SMALL = 1_000_000  # size below which oneDNN's set-up for every new shape outweighs its speed
# The setting that selects oneDNN; None if this PyTorch has no oneDNN or no such setting.
_ONEDNN = torch.backends.mkldnn
_SETTING: Any = getattr(_ONEDNN, "matmul", None) if _ONEDNN.is_available() else None


def loss_sum(model: Backbone, batch: Batch) -> Tensor:
    """Return the summed cross entropy of a batch in nats, computed in micro-batches."""
    parts = micro_batches(batch, model.shape.train_length)
    return torch.stack([_part_loss(model, part) for part in parts]).sum()


def micro_batches(batch: Batch, train_length: int) -> list[Batch]:
    """Split a batch into parts with rows of similar length to save padding.

    Rows are sorted by length. Each part is as wide as its longest row, rounded up to a multiple of 8. The
    summed losses of the parts add up to the summed loss of the batch. A batch with a single length is not
    split.
    """
    rows = rounded_up(MICRO_BATCH_TOKENS // train_length + 1, WIDTH_STEP)
    if rows >= len(batch.lengths_B) or batch.lengths_B.min() == batch.lengths_B.max():
        return [batch]
    order_B = batch.lengths_B.argsort(descending=True, stable=True)
    return [_micro_batch(batch, rows_b) for rows_b in order_B.split(rows)]


def rounded_up(count: int, step: int) -> int:
    """Return the smallest multiple of ``step`` that is at least ``count``."""
    return -(-count // step) * step


def _micro_batch(batch: Batch, rows_b: Tensor) -> Batch:
    """Return the selected rows, of which the first is the longest, with as little padding as possible."""
    part = batch.rows(rows_b)
    lengths_b = part.lengths_B
    index_t = torch.arange(rounded_up(int(lengths_b[0]), WIDTH_STEP)).clamp(max=batch.tokens_BT.shape[1] - 1)
    real_bt = torch.arange(len(index_t)) < lengths_b[:, None]
    declared_b, positions_bP = part.declared_B, part.positions_BP
    index_p = torch.arange(max(len(index_t), int(declared_b.max()))).clamp(max=positions_bP.shape[1] - 1)
    return Batch(
        part.tokens_BT[:, index_t],
        part.labels_BT[:, index_t].masked_fill(~real_bt, IGNORE),
        lengths_b,
        declared_b,
        positions_bP[:, index_p],
    )


def _part_loss(model: Backbone, batch: Batch) -> Tensor:
    """Return the summed loss, with the head applied only to scored tokens (padded to `SCORED_STEP`)."""
    labels_N = batch.labels_BT.flatten()
    indices_n = (labels_N != IGNORE).nonzero()[:, 0]
    scored = len(indices_n)
    indices_n = F.pad(indices_n, (0, rounded_up(scored, SCORED_STEP) - scored))
    labels_n = labels_N[indices_n]
    labels_n[scored:] = IGNORE
    hidden_nD = model.hidden(
        batch.tokens_BT, batch.positions_BP, batch.lengths_B, batch.declared_B, indices_n
    )
    logits_nV = at_least_float32(model.head(hidden_nD))
    return F.cross_entropy(logits_nV, labels_n, ignore_index=IGNORE, reduction="sum")


def seed_forward(seed: int, device: torch.device) -> None:
    """Seed the random draws of a forward pass, so that a resumed run makes the same draws.

    ``torch.manual_seed`` would store a stack trace for every unused GPU backend at every step, which takes a
    millisecond and memory that is never freed.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)


def profile_nothing(action_name: str) -> AbstractContextManager[None]:
    """Take the place of Lightning's ``profile``, which creates a context for each of a step's 31 hooks."""
    return NO_CONTEXT


def keep_freed_memory() -> None:
    """Let glibc keep freed memory, because batches of changing shape would cause page faults at every step.

    A notebook gives its memory back, as users expect.
    """
    libc = ctypes.CDLL(None) if process.command and sys.platform == "linux" else None
    if libc is not None and hasattr(libc, "mallopt"):
        # The parameters are M_MMAP_THRESHOLD, M_TRIM_THRESHOLD and M_TOP_PAD of malloc.h.
        for parameter, size in ((-3, 1 << 30), (-1, (1 << 31) - 1), (-2, 256 << 20)):
            libc.mallopt(parameter, size)


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
