"""Logits of encodings that rotate or scale queries and keys."""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable
from dataclasses import replace

from tests.oracles.loops.case import Case, content, dot, steps_back


def turned(case: Case, h: int, i: int, j: int, pairs: int, factor: Callable[[int], complex]) -> complex:
    """Logit of pairs m, m + R as complex numbers, multiplied by factor(m); the other channels stay."""
    total = complex(dot(case.q[h, i, 2 * pairs :], case.k[h, j, 2 * pairs :]))
    for m in range(pairs):
        query = complex(case.q[h, i, m], case.q[h, i, m + pairs])
        key = complex(case.k[h, j, m], case.k[h, j, m + pairs])
        total += query * key.conjugate() * factor(m)
    return total / math.sqrt(case.head_dim)


def rotary(
    case: Case,
    h: int,
    i: int,
    j: int,
    theta: Callable[[int, int], float],
    gain: Callable[[int, int], float] = lambda m, pairs: 1.0,
) -> float:
    """Pairs are rotated by theta(m) per position."""
    pairs = int(case.arguments.get("rotary_fraction", 1.0) * case.head_dim) // 2
    rotating = round(case.arguments.get("kept_frequencies", 1.0) * pairs)

    def factor(m: int) -> complex:
        angle = steps_back(case, i, j) * theta(m, pairs) if m < rotating else 0.0
        return cmath.rect(gain(m, pairs), angle)

    return turned(case, h, i, j, pairs, factor).real


def plain_theta(case: Case) -> Callable[[int, int], float]:
    return lambda m, pairs: case.arguments["base"] ** (-2 * m / (2 * pairs))


def rope(case: Case, h: int, i: int, j: int) -> float:
    return rotary(case, h, i, j, plain_theta(case))


def original_length(case: Case) -> int:
    return case.arguments["original_length"] or case.shape["train_length"]


def growth_of(case: Case) -> float:
    return max(1.0, len(case.positions) / original_length(case))


def stretch(case: Case) -> float:
    return case.arguments["factor"] or growth_of(case)


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
    return rotary(case, h, i, j, ntk_theta(case, growth * growth_of(case) - (growth - 1)))


def rope_yarn(case: Case, h: int, i: int, j: int) -> float:
    s = stretch(case)
    base = case.arguments["base"]
    whole = case.arguments["truncate"]

    def pair_with(rotations: float, pairs: int) -> float:
        return pairs * math.log(original_length(case) / (2 * math.pi * rotations)) / math.log(base)

    def theta(m: int, pairs: int) -> float:
        low, high = (pair_with(case.arguments[f"beta_{end}"], pairs) for end in ("fast", "slow"))
        low = max(0.0, math.floor(low) if whole else low)
        high = min(2.0 * pairs - 1, math.ceil(high) if whole else high)
        ramp = min(1.0, max(0.0, (m - low) / (high - low if high > low else 0.001)))
        frequency = base ** (-m / pairs)
        if case.arguments.get("ramp") == "radix":
            steps = min(max(0.0, m - low), high - low)
            return frequency / s ** (steps * (steps + 1) / ((high - low) * (high - low + 1)))
        return (1 - ramp) * frequency + ramp * frequency / s

    factor = case.arguments["attention_factor"]
    if factor is None:
        scales = [case.arguments[name] for name in ("mscale", "mscale_all_dim")]
        over, under = scales if None not in scales else (1.0, 0.0)
        factor = (0.1 * over * math.log(s) + 1) / (0.1 * under * math.log(s) + 1)
    return rotary(case, h, i, j, theta, lambda m, pairs: factor**2)


def rope_llama3(case: Case, h: int, i: int, j: int) -> float:
    low, high = case.arguments["low_freq_factor"], case.arguments["high_freq_factor"]

    def theta(m: int, pairs: int) -> float:
        frequency = plain_theta(case)(m, pairs)
        wavelength = 2 * math.pi / frequency
        if wavelength > original_length(case) / low:
            return frequency / stretch(case)
        if wavelength < original_length(case) / high:
            return frequency
        share = (original_length(case) / wavelength - low) / (high - low)
        return share * frequency + (1 - share) * frequency / stretch(case)

    return rotary(case, h, i, j, theta)


def rope_longrope(case: Case, h: int, i: int, j: int) -> float:
    long = len(case.positions) > original_length(case)

    def theta(m: int, pairs: int) -> float:
        factors = case.arguments["long_factor" if long else "short_factor"]
        default = stretch(case) ** (m / (pairs - 1)) if long else 1.0
        return plain_theta(case)(m, pairs) / (default if factors is None else factors[m])

    factor = case.arguments["attention_factor"]
    if factor is None:
        factor = math.sqrt(1 + math.log(stretch(case)) / math.log(original_length(case)))
    return rotary(case, h, i, j, theta, lambda m, pairs: factor**2)


def rope_hf(case: Case, h: int, i: int, j: int) -> float:
    """The loop of the type, with the arguments by the names they have in the block."""
    block = dict(case.arguments["rope_parameters"] or {})
    loop = {"linear": rope_linear, "yarn": rope_yarn, "llama3": rope_llama3, "longrope": rope_longrope}
    arguments = {"base": block.get("rope_theta", 1e4), "beta_fast": 32.0, "beta_slow": 1.0, "truncate": True}
    arguments |= dict.fromkeys(("attention_factor", "mscale", "mscale_all_dim", "factor"))
    arguments["original_length"] = block.get("original_max_position_embeddings")
    arguments["rotary_fraction"] = block.get("partial_rotary_factor", 1.0)
    named = replace(case, arguments={**arguments, **block})
    return loop.get(block.get("rope_type", "default"), rope)(named, h, i, j)


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
            first = float(x[m])
            second = float(x[m + pairs])
            turned.append((first * cosine - second * sine, second * cosine + first * sine))
        total += turned[0][0] * turned[1][0] + turned[0][1] * turned[1][1]
    return total / math.sqrt(case.head_dim)


def rope_pp(case: Case, h: int, i: int, j: int) -> float:
    """Every second head is the imaginary part of the head before."""
    if h % 2 == 0:
        return rope(case, h, i, j)
    pairs = case.head_dim // 2
    rotating = round(case.arguments["kept_frequencies"] * pairs)

    def factor(m: int) -> complex:
        angle = steps_back(case, i, j) * plain_theta(case)(m, pairs) if m < rotating else 0.0
        return cmath.rect(1.0, angle)

    rest = dot(case.q[h - 1, i, 2 * pairs :], case.k[h - 1, j, 2 * pairs :])
    return turned(case, h - 1, i, j, pairs, factor).imag + rest / math.sqrt(case.head_dim)


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


def key_offset(case: Case, h: int, i: int, j: int) -> float:
    """The channels that do not rotate are those of the key before; the first key keeps its own."""
    still = 2 * (int(case.arguments["rotary_fraction"] * case.head_dim) // 2)
    before = max(0, j - 1)
    own = dot(case.q[h, i, still:], case.k[h, j, still:])
    earlier = dot(case.q[h, i, still:], case.k[h, before, still:])
    return rotary(case, h, i, j, plain_theta(case)) + (earlier - own) / math.sqrt(case.head_dim)
