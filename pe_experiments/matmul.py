"""Which library multiplies float32 matrices on a CPU: PyTorch's default (MKL), or oneDNN where it is faster.

PyTorch hands float32 products to oneDNN only when told that less than float32 would do (its setting
``bf16``). On processors with bfloat16 matrix units oneDNN then really computes in bfloat16; on others (AMD up
to Zen 5 at least) it computes in float32 all the same, twice as fast as MKL. The setting does not say which,
so error and speed are measured before oneDNN is taken. The choice changes the last bits of a result, and is
therefore made once per results folder and processor.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, Literal

import torch
from filelock import FileLock
from torch import Tensor

from pe_experiments.errors import UserError
from pe_experiments.runs import write_atomically

Route = Literal["default", "onednn"]

# Rows, columns summed over and columns of the products of a small transformer, forward and backward.
SHAPES = ((1280, 64, 256), (1280, 256, 64), (64, 1280, 256), (256, 40, 64), (1000, 64, 14))
HEADS = (128, 40, 16)  # sequences times heads, tokens and head_dim of the products inside attention
REPEATS = 5
SAME_ERROR = 4.0  # times the default's; bfloat16 would be some ten thousand times
WORTH_IT = 1.15  # times as fast as the default


@dataclass(frozen=True)
class Probe:
    """What oneDNN's float32 product costs and errs on this processor.

    Attributes:
        speedup: times as fast as the default, over a small transformer's products.
        error: largest error beside float64, as a share of the product of magnitudes.
        default_error: the same of the default.
    """

    speedup: float
    error: float
    default_error: float

    @property
    def keeps_float32(self) -> bool:
        return self.error <= SAME_ERROR * self.default_error

    @property
    def route(self) -> Route:
        return "onednn" if self.keeps_float32 and self.speedup >= WORTH_IT else "default"


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


def settle(
    choice: str, results_dir: Path | None = None, processor: str = "", recorded: str | None = None
) -> Route:
    """Set the route and answer which it is.

    Args:
        choice: ``hardware.matmul``: a route, or ``auto``.
        results_dir: where the choice is remembered, so that all its runs are computed alike; None measures.
        processor: its name; another one is measured anew.
        recorded: the route a run to be continued began with; it wins over ``auto``.

    Raises:
        UserError: oneDNN is asked for where it would compute in less than float32.
    """
    wanted: str = choice
    if choice == "auto":
        wanted = recorded or (_remembered(results_dir, processor) if results_dir else probe().route)
    if wanted == "onednn" and not (_switchable() and probe().keeps_float32):
        if choice == "onednn":
            raise UserError(
                "hardware.matmul=onednn: here it is not there, or would compute float32 products in "
                "bfloat16; allowed here: auto, default"
            )
        wanted = "default"  # recorded elsewhere, or under a name that stands for several processors
    route: Route = "onednn" if wanted == "onednn" else "default"
    set_route(route)
    return route


@cache
def probe() -> Probe:
    """Measure both routes, in turn; where PyTorch offers one only, neither is faster."""
    generator = torch.Generator().manual_seed(0)
    pairs = [pair for m, k, n in SHAPES for pair in _layouts(m, k, n, generator)]
    rows, tokens, width = HEADS
    q, k = (torch.randn(rows, tokens, width, generator=generator) for _ in range(2))
    pairs += [(q, k.mT), (q @ k.mT, k)]
    errors: dict[Route, float] = {}
    seconds: dict[Route, list[float]] = {"default": [], "onednn": []}
    for route in seconds:
        with routed(route):
            errors[route] = max(_error(a, b) for a, b in pairs)
    for _ in range(REPEATS):
        for route, taken in seconds.items():
            with routed(route):
                started = time.perf_counter()
                for a, b in pairs:
                    a @ b
                taken.append(time.perf_counter() - started)
    speedup = median(slow / fast for slow, fast in zip(seconds["default"], seconds["onednn"], strict=True))
    return Probe(round(speedup, 2) if _switchable() else 1.0, errors["onednn"], errors["default"])


def _layouts(m: int, k: int, n: int, generator: torch.Generator) -> list[tuple[Tensor, Tensor]]:
    """As a linear layer multiplies forward, and backward for its input and for its weight."""
    a, b = torch.randn(m, k, generator=generator), torch.randn(k, n, generator=generator)
    return [(a, b.T.contiguous().T), (a, b), (a.T.contiguous().T, b)]


def _error(a: Tensor, b: Tensor) -> float:
    a64, b64 = a.double(), b.double()
    return float(((a @ b).double() - a64 @ b64).abs().max() / (a64.abs() @ b64.abs()).max())


def _remembered(results_dir: Path, processor: str) -> Route:
    """The choice for this processor in ``results_dir/.matmul.json``, made where there is none."""
    if not _switchable():
        return "default"
    path = results_dir / ".matmul.json"
    if processor in (known := _read(path)):
        return known[processor]["route"]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")):  # of runs that begin together one decides
            known = _read(path)
            if processor not in known:
                known[processor] = {"route": probe().route, **asdict(probe())}
                write_atomically(path, json.dumps(known, indent=2) + "\n")
        return known[processor]["route"]
    except OSError:  # the run will say what is wrong with the folder
        return probe().route


def _read(path: Path) -> dict[str, dict[str, Any]]:
    try:
        content = json.loads(path.read_text())
        return {name: entry for name, entry in content.items() if entry["route"] in ("default", "onednn")}
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        return {}


def _switchable() -> bool:
    """Whether this PyTorch has oneDNN and lets its float32 products be chosen."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.backends.mkldnn, "matmul")


def _switch() -> Any:
    return torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
