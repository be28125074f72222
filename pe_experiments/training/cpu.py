"""Make training fast on a CPU; nothing here changes a result beyond rounding, so a first reading may skip it.

A step computes only what its loss needs, in few shapes, and without what Lightning adds to it. The process
keeps freed memory. `models.cpu` has the model's part.

A `Route` says which library multiplies float32 matrices, and from how many tokens on attention uses PyTorch's
fused kernel. PyTorch uses oneDNN for float32 products only if lower precision is allowed (its setting
``bf16``). On processors with bfloat16 matrix units (AMX) oneDNN then computes in bfloat16, and is never
chosen. On others it still computes in float32: on AMD up to twice as fast as MKL, PyTorch's default. On Intel
MKL is as fast on repeated shapes and several times faster on new ones: oneDNN compiles a kernel for each.

`select` chooses by the vendor. Processors of one vendor differ, so the first training on a machine measures
the routes (`calibration`), and `tune` takes another one where that is clearly faster. ``environment.json``
records the route of a run, which keeps it when it resumes.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from filelock import FileLock
from pydantic import TypeAdapter
from torch import Tensor
from torch.nn import functional as F

from pe_experiments.configuration.schema import Config
from pe_experiments.data.batches import Batch
from pe_experiments.encodings.tensors import at_least_float32
from pe_experiments.models import Backbone, Transformer
from pe_experiments.models import cpu as models_cpu
from pe_experiments.models.attention import Attention, needs_weights
from pe_experiments.models.cpu import has_fixed_bias, rounded_up
from pe_experiments.tasks import IGNORE
from pe_experiments.terminal import process
from pe_experiments.terminal.errors import UserError
from pe_experiments.terminal.files import write_atomically

Backend = Literal["default", "onednn"]
# Seconds by shape and by library and kernel ("onednn written"), in each of two rounds.
Timings = dict[str, dict[str, tuple[float, float]]]


class Route(NamedTuple):
    """How a process trains on a CPU."""

    matmul: Backend  # library of float32 matrix products; ``default`` is PyTorch's, which is MKL on x86
    fused_from: int  # tokens of a row from which attention uses PyTorch's fused kernel


class Shape(NamedTuple):
    """A batch and the width of a model."""

    rows: int
    tokens: int
    width: int


MICRO_BATCH_TOKENS = 1300  # smaller parts of a batch cost more time than the padding they save
WIDTH_STEP = 8  # widths and rows are multiples of it, because every new shape sets up kernels
SCORED_STEP = 16  # scored tokens are padded to a multiple of it, for the same reason
SMALL = 1_000_000  # size below which oneDNN's set-up for every new shape outweighs its speed
NEVER = 1 << 30  # tokens that no row has
DEFAULT, ONEDNN = Route("default", models_cpu.FUSED_TRAINING), Route("onednn", 1024)
route = DEFAULT  # in use
# As many tokens as such batches have without padding: rows of width 64 hold half of the longest on average.
SHAPES = {"small": Shape(8, 20, 64), "wide": Shape(8, 40, 128), "long": Shape(2, 256, 64)}
CALIBRATION_SECONDS = 2.0
MARGIN = 0.15  # by which another route than the default must be faster, in both rounds
# The setting that selects oneDNN; None if this PyTorch has no oneDNN or no such setting.
_ONEDNN = torch.backends.mkldnn
_SETTING: Any = getattr(_ONEDNN, "matmul", None) if _ONEDNN.is_available() else None


def _processor() -> dict[str, str]:
    """Return what Linux says of the first core: ``vendor_id``, ``model name``, ``flags`` and others."""
    try:
        lines = Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
    except OSError:
        return {"model name": platform.processor()}
    pairs = (line.partition(":")[::2] for line in lines)
    return {key.strip(): value.strip() for key, value in pairs}


PROCESSOR = _processor()
ONEDNN_IS_EXACT = _SETTING is not None and "amx_bf16" not in PROCESSOR.get("flags", "").split()


def loss_sum(model: Backbone, batch: Batch) -> Tensor:
    """Return the summed cross entropy of a batch in nats, computed in micro-batches.

    The head is applied only to scored tokens, padded to a multiple of `SCORED_STEP`.
    """
    losses = []
    for part in micro_batches(batch, model.shape.train_length):
        labels_N = part.labels_BT.flatten()
        indices_n = (labels_N != IGNORE).nonzero()[:, 0]
        scored = len(indices_n)
        indices_n = F.pad(indices_n, (0, rounded_up(scored, SCORED_STEP) - scored))
        labels_n = labels_N[indices_n]
        labels_n[scored:] = IGNORE
        logits_nV = at_least_float32(model.head(model.hidden(*part.inputs, indices_n)))
        losses.append(F.cross_entropy(logits_nV, labels_n, ignore_index=IGNORE, reduction="sum"))
    return torch.stack(losses).sum()


def micro_batches(batch: Batch, train_length: int) -> list[Batch]:
    """Split a batch into parts with rows of similar length to save padding.

    Rows are sorted by length. Each part is as wide as its longest row, rounded up to a multiple of 8. The
    summed losses of the parts add up to the summed loss of the batch.
    """
    rows = rounded_up(MICRO_BATCH_TOKENS // train_length + 1, WIDTH_STEP)
    if rows >= len(batch.lengths_B) or batch.lengths_B.min() == batch.lengths_B.max():
        return [batch]
    parts = []
    for rows_b in batch.lengths_B.argsort(descending=True, stable=True).split(rows):
        tokens_bT, labels_bT, lengths_b, declared_b, ids_bP = batch.rows(rows_b)
        # The last column is repeated where rounding exceeds it; it is padding then.
        index_t = torch.arange(rounded_up(int(lengths_b[0]), WIDTH_STEP)).clamp(max=tokens_bT.shape[1] - 1)
        index_p = torch.arange(max(len(index_t), int(declared_b.max()))).clamp(max=ids_bP.shape[1] - 1)
        is_padding_bt = torch.arange(len(index_t)) >= lengths_b[:, None]
        labels_bt = labels_bT[:, index_t].masked_fill(is_padding_bt, IGNORE)
        parts.append(Batch(tokens_bT[:, index_t], labels_bt, lengths_b, declared_b, ids_bP[:, index_p]))
    return parts


def keep_freed_memory() -> None:
    """Let glibc keep freed memory, because batches of changing shape would cause page faults at every step.

    A notebook gives its memory back, as users expect.
    """
    libc = ctypes.CDLL(None) if process.command and sys.platform == "linux" else None
    if libc is not None and hasattr(libc, "mallopt"):
        # The parameters are M_MMAP_THRESHOLD, M_TRIM_THRESHOLD and M_TOP_PAD of malloc.h.
        for parameter, size in ((-3, 1 << 30), (-1, (1 << 31) - 1), (-2, 256 << 20)):
            libc.mallopt(parameter, size)


def use_route(new_route: Route) -> None:
    global route
    route = new_route
    if _SETTING is not None:
        _SETTING.fp32_precision = "bf16" if route.matmul == "onednn" else "ieee"
    models_cpu.fused_training = route.fused_from
    models_cpu.onednn_adds_bias = route.matmul == "onednn" and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def select(choice: str, size: int) -> Route:
    """Use the route of the option ``trainer.matmul`` and return it.

    ``size`` is that of a batch in symbols times d_model^2; ``auto`` uses oneDNN only from `SMALL` on.

    Raises:
        UserError: ``onednn`` is not available here or would compute in bfloat16.
    """
    if choice == "onednn" and not ONEDNN_IS_EXACT:
        raise UserError(
            "trainer.matmul=onednn: oneDNN is not available here or computes float32 products in bfloat16; "
            "allowed here: auto, default"
        )
    is_faster = ONEDNN_IS_EXACT and PROCESSOR.get("vendor_id") == "AuthenticAMD" and size >= SMALL
    use_route(ONEDNN if choice == "onednn" or (choice == "auto" and is_faster) else DEFAULT)
    return route


def tune(config: Config, model: Backbone, environment: Mapping[str, Any], say: Callable[[str], None]) -> None:
    """Use the fastest route of this machine for a training, unless the user chose the library.

    A run that is resumed keeps the route of its ``environment.json``, which is otherwise empty.
    """
    if config.trainer.matmul != "auto":
        return
    if environment:
        recorded = ONEDNN if environment.get("matmul") == "onednn" and ONEDNN_IS_EXACT else DEFAULT
        fused_from = environment.get("fused_attention_from")  # absent in some saved runs
        use_route(recorded._replace(fused_from=fused_from) if isinstance(fused_from, int) else recorded)
    elif config.trainer.precision == "32-true":
        symbols = config.training.batch_size * config.training.max_length
        use_route(fastest_route(model, symbols, route, calibration(say)))


def fastest_route(model: Backbone, symbols: int, default: Route, timings: Timings) -> Route:
    """Return the route that trains a model fastest; another than the default must be clearly faster.

    The timings of the shape that resembles the model and its batches decide. A model of another library has
    an attention of its own, and keeps the default.
    """
    is_long = model.shape.train_length >= models_cpu.FUSED_TRAINING
    is_small = symbols * model.shape.d_model**2 < SMALL
    name = "small" if is_small else "long" if is_long else "wide"
    if not isinstance(model, Transformer) or name not in timings:
        return default
    seconds, tokens = timings[name], SHAPES[name].tokens
    standard = f"{default.matmul} {'fused' if default.fused_from <= tokens else 'written'}"
    limits = [(1 - MARGIN) * time for time in seconds.get(standard, (0.0, 0.0))]
    faster = {
        sum(rounds): case.split()
        for case, rounds in seconds.items()
        if rounds[0] < limits[0] and rounds[1] < limits[1]
    }
    if faster:
        attention: Attention = model.layers[0].attention  # type: ignore[assignment]
        encodings: Iterable[Any] = model.encodings
        can_fuse = attention.softmax is None and all(
            has_fixed_bias(encoding) and not needs_weights(encoding) for encoding in encodings
        )
        kernels = {"eager": ("written",), "auto": ("written", "fused") if can_fuse else ("written",)}
        allowed = kernels.get(attention.implementation, ("fused",))
        faster = {total: case for total, case in faster.items() if case[1] in allowed}
    if not faster:
        return default
    matmul, kernel = faster[min(faster)]
    fastest = ONEDNN if matmul == "onednn" else DEFAULT
    if kernel == "fused":
        return fastest._replace(fused_from=min(tokens, DEFAULT.fused_from))
    return fastest if fastest.fused_from > tokens else fastest._replace(fused_from=NEVER)


def calibration(say: Callable[[str], None]) -> Timings:
    """Return the timings of this machine, which the first training on it measures and keeps in a file.

    They are kept by processor, PyTorch and threads, so that later runs take the same route. There are none
    where the file cannot be written.
    """
    user_caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(os.environ.get("PE_EXPERIMENTS_CACHE") or Path(user_caches, "pe_experiments"))
    words = [PROCESSOR.get(key, "") for key in ("vendor_id", "cpu family", "model", "model name")]
    words += ["torch", torch.__version__, "threads", str(torch.get_num_threads())]
    name = "-".join(re.findall(r"[\w.]+", " ".join(words)))
    file = folder / f"{name}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{file}.lock", timeout=60):  # another process may be measuring
            with suppress(FileNotFoundError, ValueError):  # a damaged file is measured again
                return TypeAdapter(Timings).validate_json(file.read_text())
            timings = measure()
            write_atomically(file, json.dumps(timings, indent=2) + "\n")
    except OSError:
        return {}
    fastest = [f"{name} {min(cases, key=lambda case: sum(cases[case]))}" for name, cases in timings.items()]
    result = ", ".join(fastest) or "too slow to tell"
    say(f"measured how this processor trains fastest: {result}; kept in {file}")
    return timings


def measure() -> Timings:
    """Time a layer's matrix products and attention, forward and backward, in every shape and on every route.

    A timing is the least in each of two rounds. There are none if `CALIBRATION_SECONDS` are too few.
    """
    # The time of this thread leaves out what other processes take from it.
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    routes = (DEFAULT, ONEDNN) if ONEDNN_IS_EXACT else (DEFAULT,)
    cases = list(product(SHAPES, routes, ("written", "fused")))
    samples: list[list[float]] = [[] for _ in cases]
    before = route
    longest, deadline = 0.0, time.monotonic() + CALIBRATION_SECONDS
    while (started := time.monotonic()) + longest < deadline:
        for (name, tried, kernel), seconds in zip(cases, samples, strict=True):
            use_route(tried)
            begun = clock()
            _train_layer(*SHAPES[name], kernel == "fused")
            seconds.append(clock() - begun)
        longest = max(longest, time.monotonic() - started)
    use_route(before)
    timings: Timings = {}
    for (name, tried, kernel), (_, *seconds) in zip(cases, samples, strict=True):  # the first sets up kernels
        if len(seconds) >= 2:
            half = len(seconds) // 2
            rounds = (min(seconds[:half]), min(seconds[half:]))
            timings.setdefault(name, {})[f"{tried.matmul} {kernel}"] = rounds
    return timings


def _train_layer(rows: int, tokens: int, width: int, fused: bool) -> None:
    """Compute the products, attention and gradients of a layer whose heads have 16 columns or 32."""
    shapes = ((3 * width, width), (width, width), (4 * width, width), (width, 4 * width))
    x_ND = torch.full((rows * tokens, width), 0.1, requires_grad=True)
    weights = [torch.full(shape, 0.01, requires_grad=True) for shape in shapes]
    qkv_ND = F.linear(x_ND, weights[0])
    q, k, v = qkv_ND.view(rows, tokens, 3, 4, width // 4).permute(2, 0, 3, 1, 4).contiguous().unbind(0)
    mask_TT = torch.full((tokens, tokens), -1e9).triu(1)
    if fused:
        y_BHTK = F.scaled_dot_product_attention(q, k, v, attn_mask=mask_TT)
    else:
        y_BHTK = torch.softmax(q @ k.mT * (width // 4) ** -0.5 + mask_TT, dim=-1) @ v
    y_ND = x_ND + F.linear(y_BHTK.transpose(1, 2).reshape(rows * tokens, width), weights[1])
    z_ND = F.linear(F.relu(F.linear(y_ND, weights[2])), weights[3])
    torch.autograd.grad(z_ND.sum(), [x_ND, *weights])
