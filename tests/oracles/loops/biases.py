"""Logits of encodings that add a bias."""

from __future__ import annotations

import math

from tests.oracles.loops.case import Array, Case, content, dot, steps_back


def slope(h: int, heads: int) -> float:
    """Head h counted from 0."""
    power = 2 ** math.floor(math.log2(heads))
    if h < power:
        return 2 ** (-8 * (h + 1) / power)
    return 2 ** (-8 * (2 * (h - power) + 1) / (2 * power))


def alibi(case: Case, h: int, i: int, j: int) -> float:
    back = steps_back(case, i, j)
    nearer = 0.5 if case.arguments["symmetry"] == "asymmetric" and not case.causal and back > 0 else 0.0
    return content(case, h, i, j) - slope(h, case.shape["num_heads"]) * (abs(back) - nearer)


def t5(case: Case, h: int, i: int, j: int) -> float:
    buckets = len(case.parameters["table"])
    back = int(steps_back(case, i, j))
    furthest = case.arguments["max_distance"] or case.shape["train_length"]
    bucket = 0
    if not case.causal:
        buckets //= 2
        bucket = buckets if back < 0 else 0
    distance = max(back, 0) if case.causal else abs(back)
    exact = buckets // 2
    if distance < exact:
        bucket += distance
    else:
        share = math.log(distance / exact) / math.log(furthest / exact)
        bucket += min(buckets - 1, exact + int(share * (buckets - exact)))
    return content(case, h, i, j) + float(case.parameters["table"][bucket, h])


def kerple_log(case: Case, h: int, i: int, j: int) -> float:
    p, a = (max(0.01, float(case.parameters[name][h])) for name in ("p_H", "a_H"))
    return content(case, h, i, j) - p * math.log(1 + a * abs(steps_back(case, i, j)))


def kerple_power(case: Case, h: int, i: int, j: int) -> float:
    p, a = (max(0.01, float(case.parameters[name][h])) for name in ("p_H", "a_H"))
    return content(case, h, i, j) - a * abs(steps_back(case, i, j)) ** min(p, 2.0)


def bam(case: Case, h: int, i: int, j: int) -> float:
    heads = case.shape["num_heads"]
    fixed = {
        "shape_H": case.arguments["initial_shape"],
        "log_scale_H": math.log(slope(h, heads)),
        "location_H": case.arguments["initial_location"],
    }
    beta, a, location = (
        float(case.parameters[name][h]) if name in case.parameters else value for name, value in fixed.items()
    )
    ahead = -steps_back(case, i, j) - (math.exp(location) - math.exp(-location))
    return content(case, h, i, j) - (abs(ahead * math.exp(a)) + 1e-5) ** beta


def fire(case: Case, h: int, i: int, j: int) -> float:
    c = float(case.parameters["c"])
    threshold = case.arguments["threshold"] or case.shape["train_length"] / 2
    limit = max(abs(float(case.parameters["stretch"]) * threshold), case.positions[i])
    share = math.log(abs(c * steps_back(case, i, j)) + 1) / (math.log(abs(c * limit) + 1) + 1e-6)
    bias = float(case.parameters["mlp.2.bias"][h])
    for unit in range(case.arguments["width"]):
        before = case.parameters["mlp.0.weight"][unit, 0] * share + case.parameters["mlp.0.bias"][unit]
        bias += case.parameters["mlp.2.weight"][h, unit] * max(0.0, before)
    return content(case, h, i, j) + bias


def learned_relative(case: Case, h: int, i: int, j: int) -> float:
    profiles = case.parameters["profiles_RE"]
    back = int(steps_back(case, i, j))
    extent = case.arguments["extent"] or case.shape["train_length"] // 2
    if not 0 <= back < extent:
        return content(case, h, i, j)
    number = case.arguments["d_rel"]
    rows = case.parameters["mix.weight"][h * number : (h + 1) * number]
    mixed = math.fsum(dot(row, case.x[i]) * float(profiles[r, back]) for r, row in enumerate(rows))
    return content(case, h, i, j) + mixed


def continuous_bias(case: Case, h: int, i: int, j: int) -> float:
    back = steps_back(case, i, j)
    read = [math.copysign(math.log(1 + abs(back)), back) if case.arguments["distance"] == "log" else back]
    for layer in range(case.arguments["depth"] + 1):
        weight, bias = (case.parameters[f"mlp.{2 * layer}.{name}"] for name in ("weight", "bias"))
        if layer:
            read = [value * (1 + math.tanh(value / 2)) / 2 for value in read]  # x sigmoid(x)
        read = [dot(row, read) + float(shift) for row, shift in zip(weight, bias, strict=True)]
    return content(case, h, i, j) + read[h]


def windowed(case: Case, h: int, i: int, j: int, window: float) -> float:
    return content(case, h, i, j) if abs(steps_back(case, i, j)) < window else -math.inf


def sliding_window(case: Case, h: int, i: int, j: int) -> float:
    if case.positions[j] < case.arguments["first"]:
        return content(case, h, i, j)
    return windowed(case, h, i, j, case.arguments["window"] or max(2, case.shape["train_length"] // 4))


def hard_alibi(case: Case, h: int, i: int, j: int) -> float:
    number = case.arguments["windowed_heads"] or case.shape["num_heads"] // 2
    return windowed(case, h, i, j, h + 1 if h < number else math.inf)


def shaw_row(case: Case, i: int, j: int) -> int:
    furthest = case.arguments["max_distance"] or min(16, case.shape["train_length"] - 1)
    ahead = max(-furthest, min(furthest, int(-steps_back(case, i, j))))
    return ahead + furthest


def shaw(case: Case, h: int, i: int, j: int) -> float:
    added = case.parameters["table_RK"][shaw_row(case, i, j)]
    key = [float(c + a) for c, a in zip(case.k[h, j], added, strict=True)]
    return dot(case.q[h, i], key) / math.sqrt(case.head_dim)


def transformer_xl(case: Case, h: int, i: int, j: int) -> float:
    width = case.shape["d_model"]
    dim = case.head_dim
    half = (width + 1) // 2
    sinusoids = []
    for column in range(width):
        angle = steps_back(case, i, j) * case.arguments["base"] ** (-2 * (column % half) / width)
        sinusoids.append(math.sin(angle) if column < half else math.cos(angle))
    rows = case.parameters["distance.weight"][h * dim : (h + 1) * dim]
    distance = [dot(row, sinusoids) for row in rows]
    u, v = case.parameters["u_HK"][h], case.parameters["v_HK"][h]
    total = sum(
        (case.q[h, i, c] + u[c]) * case.k[h, j, c] + (case.q[h, i, c] + v[c]) * distance[c]
        for c in range(dim)
    )
    return float(total) / math.sqrt(dim)


def deberta(case: Case, h: int, i: int, j: int) -> float:
    furthest = case.arguments["max_distance"] or case.shape["train_length"] // 2
    dim = case.head_dim
    back = int(steps_back(case, i, j))

    def view(name: str, distance: int) -> Array:
        row = case.parameters["positions_RD"][min(2 * furthest - 1, max(0, distance + furthest))]
        return (row @ case.parameters[name][case.layer])[h * dim : (h + 1) * dim]

    mirrored = -back if case.arguments["key_index"] == "paper" else back
    total = dot(case.q[h, i], case.k[h, j])
    total += dot(case.q[h, i], view("key_map_LDD", back)) + dot(case.k[h, j], view("query_map_LDD", mirrored))
    return total / math.sqrt(3 * dim)


def scale_invariant(case: Case, h: int, i: int, j: int) -> float:
    grown = math.log(1 + abs(steps_back(case, i, j)) / case.arguments["tau"])
    return math.sqrt(2 * grown + 1) * content(case, h, i, j) - 2 * grown


def sandwich(case: Case, h: int, i: int, j: int) -> float:
    half = case.arguments["width"] // 2
    product = sum(math.cos(steps_back(case, i, j) / 10_000 ** (m / half)) for m in range(1, half + 1))
    return content(case, h, i, j) + (product - half) / ((h + 1) * 8 / case.shape["num_heads"])


def nape_heads(case: Case) -> int:
    heads = case.arguments["alibi_heads"]
    return case.shape["num_heads"] // 2 if heads is None else heads


def nape_slope(case: Case, h: int) -> float:
    if h >= nape_heads(case):
        return 0.0
    return 1 / (h + 1) if case.arguments["slopes"] == "linear" else 2.0**-h


def nape(case: Case, h: int, i: int, j: int) -> float:
    return content(case, h, i, j) - nape_slope(case, h) * abs(steps_back(case, i, j))
