"""Vectors [T, W] of encodings at the embedding."""

from __future__ import annotations

import math

import numpy as np

from tests.oracles.loops.case import Array, Case


def sinusoid(position: float, column: int, width: int, base: float) -> float:
    angle = position / base ** (2 * (column // 2) / width)
    return math.sin(angle) if column % 2 == 0 else math.cos(angle)


def sinusoidal(case: Case) -> Array:
    width = case.arguments.get("width") or case.shape["d_model"]
    base = case.arguments["base"]
    return np.array([[sinusoid(p, c, width, base) for c in range(width)] for p in case.positions])


def sinusoidal_scaled(case: Case) -> Array:
    return float(case.parameters["alpha"]) * sinusoidal(case)


def learned(case: Case) -> Array:
    return np.array([case.parameters["table"][int(p)] for p in case.positions])


def raw_index(case: Case) -> Array:
    return np.array([[p] + [0.0] * (case.shape["d_model"] - 1) for p in case.positions])


def scaled_index(case: Case) -> Array:
    last = max(case.positions)
    return np.array([[p / last] + [0.0] * (case.shape["d_model"] - 1) for p in case.positions])


def binary_counter(case: Case) -> Array:
    width = case.shape["d_model"]
    return np.array([[float(bit) for bit in format(int(p), f"0{width}b")] for p in case.positions])
