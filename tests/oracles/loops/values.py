"""What is read under encodings that act on values: one output channel of one query."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tests.oracles.loops.biases import shaw_row
from tests.oracles.loops.case import Array, Case, steps_back
from tests.oracles.loops.rotations import plain_theta

Channel = Callable[
    [Case, Array, int, int, int], float
]  # case, weights [T, S], head, query, channel -> output


def attention_weights(logits_TS: Array) -> Array:
    """Softmax of logits [T, S]; 0 where a decoder's query does not see the key."""
    weights = np.zeros_like(logits_TS)
    for i, row in enumerate(logits_TS):
        total = math.fsum(math.exp(value) for value in row if not math.isnan(value))
        for j, value in enumerate(row):
            weights[i, j] = 0.0 if math.isnan(value) else math.exp(value) / total
    return weights


def read(channel: Channel, case: Case, logits_HTS: Array) -> Array:
    """[H, T, K] of a loop over channels."""
    result = np.full_like(case.v, math.nan)
    for h in range(case.v.shape[0]):
        weights = attention_weights(logits_HTS[h])
        for i in range(case.v.shape[1]):
            for c in range(case.v.shape[2]):
                result[h, i, c] = channel(case, weights, h, i, c)
    return result


def rope_values(case: Case, weights: Array, h: int, i: int, c: int) -> float:
    """The value's pair turns by the key's position and back by the query's."""
    pairs = int(case.arguments["rotary_fraction"] * case.head_dim) // 2
    kept = round(case.arguments["kept_frequencies"] * pairs)
    total = 0.0
    for j in range(len(case.positions)):
        value = case.v[h, j]
        if c >= 2 * pairs or c % pairs >= kept:
            total += weights[i, j] * value[c]
            continue
        m = c % pairs
        angle = -steps_back(case, i, j) * plain_theta(case)(m, pairs)
        first = value[m] * math.cos(angle) - value[m + pairs] * math.sin(angle)
        second = value[m] * math.sin(angle) + value[m + pairs] * math.cos(angle)
        total += weights[i, j] * (first if c < pairs else second)
    return float(total)


def shaw(case: Case, weights: Array, h: int, i: int, c: int) -> float:
    table = case.parameters.get("value_table_RK")
    total = 0.0
    for j in range(i + 1 if case.causal else len(case.positions)):
        added = 0.0 if table is None else table[shaw_row(case, i, j), c]
        total += weights[i, j] * (case.v[h, j, c] + added)
    return float(total)
