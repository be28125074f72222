"""Logits (of stick-breaking: weights) that depend on the tokens between query and key."""

from __future__ import annotations

import cmath
import math

import numpy as np

from tests.oracles.loops.biases import nape_heads, nape_slope, slope
from tests.oracles.loops.case import Array, Case, content, dot, steps_back
from tests.oracles.loops.rotations import turned


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def cope(case: Case, h: int, i: int, j: int) -> float:
    largest = len(case.parameters["table_RK"]) - 1
    count = min(float(largest), sum(sigmoid(content(case, h, i, s)) for s in range(j, i + 1)))
    below = math.floor(count)
    above = min(largest, math.floor(count) + 1)
    score = [dot(case.q[h, i], case.parameters["table_RK"][row]) for row in (below, above)]
    return content(case, h, i, j) + score[0] * (1 - (count - below)) + score[1] * (count - below)


def forgotten(case: Case, h: int, i: int, j: int, module: str) -> float:
    """Sum of the logarithms of the gates of the tokens after the key."""
    weight, bias = (case.parameters[f"{module}.{name}"][h] for name in ("weight", "bias"))
    return sum(math.log(sigmoid(dot(weight, case.x[s]) + float(bias))) for s in range(j + 1, i + 1))


def fox(case: Case, h: int, i: int, j: int) -> float:
    return content(case, h, i, j) + forgotten(case, h, i, j, "gate")


def fox_per_query(case: Case, h: int, i: int, j: int) -> float:
    width = case.arguments["width"]
    rows = case.parameters["gate.weight"]
    heads = case.shape["num_heads"]
    total = content(case, h, i, j)
    for s in range(j, i):
        logit = 0.0
        for w in range(width):
            query = dot(rows[h * width + w], case.x[i])
            logit += query * dot(rows[(heads + h) * width + w], case.x[s])
        total += math.log(sigmoid(logit / math.sqrt(width)))
    return total


def stick_breaking(case: Case, h: int, i: int, j: int) -> float:
    """A weight, not a logit."""
    left, taken = 1.0, 0.0
    for s in range(i - 1, j - 1, -1):
        taken = left * sigmoid(content(case, h, i, s))
        left -= taken
    if i > j:
        return taken
    for s in range(i - 1, -1, -1):
        left *= 1 - sigmoid(content(case, h, i, s))
    return left if case.arguments["remainder"] == "self" else 0.0


def dape(case: Case, h: int, i: int, j: int) -> float:
    """With a kernel, each map reads neighbouring keys that the query sees."""
    heads = case.shape["num_heads"]
    kernel = case.arguments.get("kernel", 1)
    weights = [
        case.parameters[f"mlp.{layer}.weight"].reshape(outputs, inputs, kernel)
        for layer, outputs, inputs in (
            (0, case.arguments["width"], 2 * heads),
            (2, heads, case.arguments["width"]),
        )
    ]
    last = i if case.causal else len(case.positions) - 1

    def neighbours(key: int) -> list[tuple[int, int]]:
        """The taps of the kernel and the keys they read."""
        keys = [(tap, key + tap - kernel // 2) for tap in range(kernel)]
        return [(tap, other) for tap, other in keys if 0 <= other <= last]

    def reads(key: int) -> list[float]:
        values = [content(case, head, i, key) for head in range(heads)]
        for head in range(heads):
            p, a = (max(0.01, float(case.parameters[f"added.{name}"][head])) for name in ("p_H", "a_H"))
            values.append(-p * math.log(1 + a * abs(steps_back(case, i, key))))
        return values

    answer = float(case.parameters["mlp.2.bias"][h])
    for tap, key in neighbours(j):
        for unit in range(case.arguments["width"]):
            before = float(case.parameters["mlp.0.bias"][unit])
            for inner, other in neighbours(key):
                before += dot(weights[0][unit, :, inner], reads(other))
            answer += float(weights[1][h, unit, tap]) * (before if before > 0 else 0.01 * before)
    own = reads(j)
    return own[h] + own[heads + h] + answer


def path(case: Case, h: int, i: int, j: int) -> float:
    """The key, reflected by every token from j + 1 to i in turn."""
    dim = case.head_dim
    mapped = case.x @ case.parameters["direction.0.weight"].T @ case.parameters["direction.1.weight"].T
    kernel = case.parameters["convolution.weight"]
    key = case.k[h, j].copy()
    for t in range(j + 1, i + 1):
        w = []
        for channel in range(h * dim, (h + 1) * dim):
            mixed = sum(
                kernel[channel, 0, tap] * mapped[t - 2 + tap, channel] for tap in range(3) if t - 2 + tap >= 0
            )
            w.append(float(mixed) * sigmoid(float(mixed)))
        length = math.sqrt(dot(w, w))
        strength = dot(case.parameters["strength.weight"][h], case.x[t]) + float(
            case.parameters["strength.bias"][h]
        )
        key = key - 2 * sigmoid(strength) * np.array(w) / length * (dot(w, key) / length)
    return dot(case.q[h, i], key) / math.sqrt(dim)


def path_fox(case: Case, h: int, i: int, j: int) -> float:
    """As released: the gates are added before the scale."""
    return path(case, h, i, j) + forgotten(case, h, i, j, "forgetting.gate") / math.sqrt(case.head_dim)


def wall(case: Case, h: int, i: int, j: int) -> float:
    total = 0.0
    dim = case.head_dim
    for c in range(dim):
        weight, bias = case.parameters["gate.weight"][h * dim + c], case.parameters["gate.bias"][h * dim + c]
        gates = 1.0
        for s in range(j + 1, i + 1):
            gates *= sigmoid(dot(weight, case.x[s]) + float(bias))
        total += float(case.q[h, i, c]) * float(case.k[h, j, c]) * gates
    return total / math.sqrt(dim)


def grape_a(case: Case, h: int, i: int, j: int) -> float:
    def opened(x: Array, direction: Array) -> float:
        return math.log1p(math.exp(dot(x, direction) / math.sqrt(dot(direction, direction) * case.head_dim)))

    rate = 0.0
    gate = case.arguments["gate"]
    if gate in ("key", "both"):
        rate += opened(case.k[h, j], case.parameters["u_HK"][h])
    if gate in ("query", "both"):
        rate += opened(case.q[h, i], case.parameters["v_HK"][h])
    steepness = math.log1p(math.exp(float(case.parameters["omega_H"][h]))) * slope(h, case.shape["num_heads"])
    return content(case, h, i, j) - steps_back(case, i, j) * steepness * rate


def selective_rope(case: Case, h: int, i: int, j: int) -> float:
    """Pair m rotates by theta_m for each unit of the phases of the tokens after the key."""
    dim = case.head_dim
    pairs = case.head_dim // 2
    down, up = (case.parameters[f"angle.{layer}.weight"] for layer in (0, 1))

    def mapped(t: int, channel: int) -> float:
        read: list[float] = []
        for head in range(case.shape["num_heads"]):
            part = case.x[t, head * dim : (head + 1) * dim]
            read += [float(value) / math.sqrt(dot(part, part)) for value in part]
        return dot(up[channel], [dot(row, read) for row in down])

    def factor(m: int) -> complex:
        channel = h * pairs + m
        taps = case.parameters["convolution.weight"][channel, 0]
        angle = 0.0
        for t in range(j + 1, i + 1):
            angle += sum(
                float(taps[tap]) * mapped(t - 3 + tap, channel) for tap in range(4) if t - 3 + tap >= 0
            )
        return cmath.rect(1.0, angle * case.arguments["base"] ** (-m / pairs))

    return turned(case, h, i, j, pairs, factor).real


def repo(case: Case, h: int, i: int, j: int) -> float:
    """RoPE at positions that a network reads from the hidden state."""
    gate, mixed, out = (case.parameters[f"{name}.weight"] for name in ("gate", "content", "position"))

    def position(t: int) -> float:
        hidden = []
        for unit in range(len(gate)):
            opened = dot(gate[unit], case.x[t])
            hidden.append(opened * sigmoid(opened) * dot(mixed[unit], case.x[t]))
        return dot(out[h], hidden)

    pairs = case.head_dim // 2
    distance = position(i) - position(j)

    def factor(m: int) -> complex:
        return cmath.rect(1.0, distance * case.arguments["base"] ** (-m / pairs))

    return turned(case, h, i, j, pairs, factor).real


def asentmax(case: Case, h: int, i: int, j: int) -> float:
    """A weight, not a logit."""
    biased = nape_heads(case)
    seen = range(i + 1 if case.causal else len(case.positions))
    factor = 1.0
    if h >= biased:
        scale = case.arguments["scale"]
        if scale == "adaptive":
            beta = math.log1p(math.exp(dot(case.parameters["strength.weight"][h - biased], case.x[i])))
            gamma = 2 * math.tanh(dot(case.parameters["exponent.weight"][h - biased], case.x[i]))
        elif scale == "learned":
            beta, gamma = (float(case.parameters[name][h - biased]) for name in ("beta_h", "gamma_h"))
        if scale != "none":
            factor = 1 + beta * math.log(len(seen) + 1) ** gamma
    slope_of_head = nape_slope(case, h)
    power = case.arguments["alpha"] - 1
    z = [
        power * (content(case, h, i, s) * factor - slope_of_head * abs(steps_back(case, i, s))) for s in seen
    ]
    low, high = max(z) - 1, max(z)
    for _ in range(200):
        middle = (low + high) / 2
        total = sum(max(0.0, value - middle) ** (1 / power) for value in z)
        low, high = (middle, high) if total >= 1 else (low, middle)
    return max(0.0, z[j] - low) ** (1 / power)
