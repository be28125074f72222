"""The input of the loops: one sequence. And the plain content logit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray


@dataclass(frozen=True)
class Case:
    """One sequence: sizes, position ids, q, k and v [H, T, K], hidden states x [T, D], parameters by name."""

    choice: str
    arguments: dict[str, Any]
    shape: dict[str, int]
    positions: list[float]
    q: Array
    k: Array
    v: Array
    x: Array
    parameters: dict[str, Array]
    layer: int = 0

    @property
    def head_dim(self) -> int:
        return self.shape["d_model"] // self.shape["num_heads"]

    @property
    def causal(self) -> bool:
        return bool(self.shape["causal"])


Logit = Callable[[Case, int, int, int], float]  # case, head, query, key -> logit


def logits(logit: Logit, case: Case) -> Array:
    """[H, T, T]; nan where a decoder's query does not see the key."""
    heads, tokens = case.q.shape[:2]
    result = np.full((heads, tokens, tokens), math.nan)
    for h in range(heads):
        for i in range(tokens):
            for j in range(i + 1 if case.causal else tokens):
                result[h, i, j] = logit(case, h, i, j)
    return result


def dot(a: Any, b: Any) -> float:
    return math.fsum(float(x) * float(y) for x, y in zip(a, b, strict=True))


def content(case: Case, h: int, i: int, j: int) -> float:
    return dot(case.q[h, i], case.k[h, j]) / math.sqrt(case.head_dim)


def steps_back(case: Case, i: int, j: int) -> float:
    return case.positions[i] - case.positions[j]
