"""Helpers of encodings: number types, devices and tables by distance."""

import math

import torch
from torch import Tensor

from pe_experiments.terminal.errors import NotApplicable

WITHOUT_FLOAT64 = ("mps",)  # device types; their float64 tensors are computed on the CPU


def at_least_float32(x: Tensor) -> Tensor:
    """Return ``x``, cast to float32 if autocast has made it narrower; float64 stays float64."""
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


def require_whole(positions: Tensor, without: str) -> None:
    """Raise `NotApplicable` for fractional positions; ``without`` says what has nothing for them."""
    if positions.is_floating_point():
        raise NotApplicable(f"pe: {without} for fractional positions; use whole ones")


def by_distance(scores_BHTR: Tensor, row_BTS: Tensor) -> Tensor:
    """Return the score of each query and key, BHTS, from the scores of the query with R rows of a table."""
    return scores_BHTR.gather(-1, row_BTS[:, None].expand(*scores_BHTR.shape[:3], -1))


def clamped(parameter: Tensor, low: float, high: float = math.inf) -> Tensor:
    """Return a parameter clamped to a range, with the gradient of the identity so that it can move back."""
    return parameter + (parameter.clamp(low, high) - parameter).detach()
