"""Logits of schemes that rotate or scale queries and keys."""

from __future__ import annotations

import math
from collections.abc import Callable

from tests.oracles.loops.case import Case, content, dot, steps_back


def rotary(
    case: Case,
    h: int,
    i: int,
    j: int,
    theta: Callable[[int, int], float],
    gain: Callable[[int, int], float] = lambda m, pairs: 1.0,
) -> float:
    """Pairs m, m + R are complex numbers rotated by theta(m) per position; the other channels stay."""
    fraction, kept = case.arguments.get("rotary_fraction", 1.0), case.arguments.get("kept_frequencies", 1.0)
    pairs = int(fraction * case.head_dim) // 2
    total = 0.0
    for m in range(pairs):
        angle = steps_back(case, i, j) * theta(m, pairs) * (m < round(kept * pairs))
        query = complex(case.q[h, i, m], case.q[h, i, m + pairs])
        key = complex(case.k[h, j, m], case.k[h, j, m + pairs])
        rotated = query * key.conjugate() * complex(math.cos(angle), math.sin(angle))
        total += rotated.real * gain(m, pairs)
    total += dot(case.q[h, i, 2 * pairs :], case.k[h, j, 2 * pairs :])
    return total / math.sqrt(case.head_dim)


def plain_theta(case: Case) -> Callable[[int, int], float]:
    return lambda m, pairs: case.arguments["base"] ** (-2 * m / (2 * pairs))


def rope(case: Case, h: int, i: int, j: int) -> float:
    return rotary(case, h, i, j, plain_theta(case))


def longer(case: Case) -> float:
    return max(1.0, len(case.positions) / case.shape["train_length"])


def stretch(case: Case) -> float:
    return case.arguments["factor"] or longer(case)


def rope_linear(case: Case, h: int, i: int, j: int) -> float:
    return rotary(case, h, i, j, lambda m, pairs: plain_theta(case)(m, pairs) / stretch(case))


def ntk_theta(case: Case, s: float) -> Callable[[int, int], float]:
    def theta(m: int, pairs: int) -> float:
        width = 2 * pairs
        return (case.arguments["base"] * s ** (width / (width - 2))) ** (-2 * m / width)

    return theta


def rope_ntk(case: Case, h: int, i: int, j: int) -> float:
    return rotary(case, h, i, j, ntk_theta(case, stretch(case)))


def rope_dynamic_ntk(case: Case, h: int, i: int, j: int) -> float:
    growth = case.arguments["factor"] or 1.0
    return rotary(case, h, i, j, ntk_theta(case, growth * longer(case) - (growth - 1)))


def rope_yarn(case: Case, h: int, i: int, j: int) -> float:
    s, base = stretch(case), case.arguments["base"]

    def pair_with(rotations: float, pairs: int) -> float:
        return pairs * math.log(case.shape["train_length"] / (2 * math.pi * rotations)) / math.log(base)

    def theta(m: int, pairs: int) -> float:
        low = max(0, math.floor(pair_with(case.arguments["beta_fast"], pairs)))
        high = min(2 * pairs - 1, math.ceil(pair_with(case.arguments["beta_slow"], pairs)))
        ramp = min(1.0, max(0.0, (m - low) / (high - low if high > low else 0.001)))
        kept = base ** (-m / pairs)
        return (1 - ramp) * kept + ramp * kept / s

    return rotary(case, h, i, j, theta, lambda m, pairs: (0.1 * math.log(s) + 1) ** 2)


def rope_clipped(case: Case, h: int, i: int, j: int) -> float:
    length = case.shape["train_length"]

    def theta(m: int, pairs: int) -> float:
        plain = [case.arguments["base"] ** (-n / pairs) for n in range(pairs)]
        clipped = case.arguments["clipped"]
        if clipped is None:
            clipped = sum(length * frequency / (2 * math.pi) < 1 for frequency in plain)
        step = m - (pairs - clipped)
        if step < 0:
            return plain[m]
        share = step / (clipped - 1) if clipped > 1 else 0.0
        return plain[m] * (1 + math.cos(math.pi * share)) / 2

    return rotary(case, h, i, j, theta)


def fope(case: Case, h: int, i: int, j: int) -> float:
    """Query and key are turned one by one: the logit is no function of the distance."""
    pairs = case.head_dim // 2
    length = case.arguments["original_length"] or case.shape["train_length"]
    thetas = [case.arguments["base"] ** (-m / pairs) for m in range(pairs)]
    waves = [theta for theta in thetas if theta * length >= 2 * math.pi]
    cosines, sines = case.parameters["cosines_HNM"][h], case.parameters["sines_HNM"][h]
    total = dot(case.q[h, i, 2 * pairs :], case.k[h, j, 2 * pairs :])
    for m in range(pairs):
        turned = []
        for x, p in ((case.q[h, i], case.positions[i]), (case.k[h, j], case.positions[j])):
            cosine, sine = 1.0, 0.0
            if m < len(waves):
                cosine = math.fsum(float(cosines[n, m]) * math.cos(p * wave) for n, wave in enumerate(waves))
                sine = math.fsum(float(sines[n, m]) * math.sin(p * wave) for n, wave in enumerate(waves))
            first, second = float(x[m]), float(x[m + pairs])
            turned.append((first * cosine - second * sine, second * cosine + first * sine))
        total += turned[0][0] * turned[1][0] + turned[0][1] * turned[1][1]
    return total / math.sqrt(case.head_dim)


def rope_pp(case: Case, h: int, i: int, j: int) -> float:
    if h % 2 == 0:
        return rope(case, h, i, j)
    pairs = case.head_dim // 2
    total = dot(case.q[h - 1, i, 2 * pairs :], case.k[h - 1, j, 2 * pairs :])
    for m in range(pairs):
        angle = (
            steps_back(case, i, j)
            * plain_theta(case)(m, pairs)
            * (m < round(case.arguments["kept_frequencies"] * pairs))
        )
        query = complex(case.q[h - 1, i, m], case.q[h - 1, i, m + pairs])
        key = complex(case.k[h - 1, j, m], case.k[h - 1, j, m + pairs])
        total += (query * key.conjugate() * complex(math.cos(angle), math.sin(angle))).imag
    return total / math.sqrt(case.head_dim)


def xpos(case: Case, h: int, i: int, j: int) -> float:
    def fade(m: int, pairs: int) -> float:
        return ((2 * m / (2 * pairs) + 0.4) / 1.4) ** (steps_back(case, i, j) / case.arguments["scale_base"])

    return rotary(case, h, i, j, plain_theta(case), fade)


def softplus(x: float) -> float:
    return math.log1p(math.exp(x))


def pope(case: Case, h: int, i: int, j: int) -> float:
    total = 0.0
    for c in range(case.head_dim):
        delta = min(0.0, max(-2 * math.pi, float(case.parameters["delta_HK"][h, c])))
        angle = steps_back(case, i, j) * case.arguments["base"] ** (-c / case.head_dim) - delta
        total += softplus(case.q[h, i, c]) * softplus(case.k[h, j, c]) * math.cos(angle)
    return total / math.sqrt(case.head_dim)


def visible(case: Case, i: int) -> int:
    return i + 1 if case.causal else len(case.positions)


def logn(case: Case, h: int, i: int, j: int) -> float:
    return content(case, h, i, j) * math.log(visible(case, i)) / math.log(case.shape["train_length"])


def ssmax(case: Case, h: int, i: int, j: int) -> float:
    return content(case, h, i, j) * float(case.parameters["scale_H"][h]) * math.log(visible(case, i))


def rope_ssmax(case: Case, h: int, i: int, j: int) -> float:
    scale = float(case.parameters[f"parts.1.{case.layer}.scale_H"][h]) * math.log(visible(case, i))
    return rotary(case, h, i, j, lambda m, pairs: 1e4 ** (-m / pairs)) * scale


def grape_m(case: Case, h: int, i: int, j: int) -> float:
    logs = case.parameters["log_frequencies_R"]
    return rotary(case, h, i, j, lambda m, pairs: math.exp(float(logs[m]) / 16))


def rope_nope_temperature(case: Case, h: int, i: int, j: int) -> float:
    if case.layer % 2 == 0:
        return rotary(case, h, i, j, lambda m, pairs: 1e4 ** (-m / pairs))
    steps = math.floor((case.positions[i] + 1) / case.shape["train_length"])
    return content(case, h, i, j) * (1 + 0.1 * math.log(1 + steps))
