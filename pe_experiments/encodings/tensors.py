"""Helpers for encodings: number types, devices, and lookups in tables by distance."""

import math

import torch
from torch import Tensor

from pe_experiments.terminal.errors import NotApplicable

WITHOUT_FLOAT64 = ("mps",)  # device types without float64, for which the CPU computes in float64


def at_least_float32(x: Tensor) -> Tensor:
    """Return ``x``, cast to float32 if it is narrower (under autocast); float64 stays float64."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def in_float64(x: Tensor) -> Tensor:
    """Return ``x`` cast to float64, on the CPU if its device has no float64.

    Cast results before moving them back: ``result.float().to(x.device)``.
    """
    return x.to(float64_device(x.device)).double()


def float64_device(device: torch.device | None) -> torch.device | None:
    """Return the device for float64 computations: ``device``, or the CPU if it has no float64."""
    return torch.device("cpu") if device is not None and device.type in WITHOUT_FLOAT64 else device


def to_device(x: Tensor, device: torch.device) -> Tensor:
    """Return ``x`` on ``device``; float64 becomes float32 on a device without float64."""
    if x.dtype == torch.float64 and device.type in WITHOUT_FLOAT64:
        x = x.float()
    return x.to(device)


def require_whole(positions: Tensor, problem: str) -> None:
    """Raise `NotApplicable` for fractional positions; the message begins with ``problem``."""
    if positions.is_floating_point():
        raise NotApplicable(f"pe: {problem} for fractional positions; use whole ones")


def by_distance(scores_BHTR: Tensor, row_BTS: Tensor) -> Tensor:
    """Return the scores of queries and keys, BHTS: for each pair, the query's score with its table row."""
    return scores_BHTR.gather(-1, row_BTS[:, None].expand(*scores_BHTR.shape[:3], -1))


def clamped(parameter: Tensor, low: float, high: float = math.inf) -> Tensor:
    """Return a parameter clamped to a range; its gradient is not clamped, so that it can move back."""
    return parameter + (parameter.clamp(low, high) - parameter).detach()
