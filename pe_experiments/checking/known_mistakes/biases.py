"""Define known mistakes in biases that depend only on positions."""

import math

import torch

from pe_experiments.checking.known_mistakes.mistake import (
    WRONG_IDS,
    Change,
    as_convention,
    change_attribute,
    change_method,
    change_parameters,
    change_positions,
    change_result,
    exchange_parameters,
    reported_in,
    scale_by_head_dim,
    wrong_ids,
)
from pe_experiments.encodings.alibi import alibi_slopes
from pe_experiments.encodings.fire import EPSILON
from pe_experiments.encodings.sandwich import BASE
from pe_experiments.encodings.t5 import distance_bucket
from pe_experiments.encodings.windows import window_mask

CACHED_FROM_ZERO = "the query of a cached step is counted from 0"
FAR_FAVOURED = "far keys are favoured (sign)"


def negate_ids(i, j):
    return -i, -j


# ALiBi: slopes from the number of heads.


def geometric_slopes(heads, first=1):
    return 2.0 ** (-8 * torch.arange(first, first + heads, dtype=torch.float64) / heads)


def extra_slopes_not_interleaved(heads):
    power_of_two = 1 << (heads.bit_length() - 1)
    return torch.cat([geometric_slopes(power_of_two), geometric_slopes(2 * power_of_two)])[:heads]


def change_slopes(slopes_of):
    """Return a change of ALiBi's slopes to ``slopes_of(heads)``."""

    def bias(encoding, original, at):
        slopes_H11 = slopes_of(encoding.shape.num_heads)[:, None, None]
        return (-slopes_H11 * at.relative_positions_BTS.abs()[:, None]).float()

    return change_method("_bias", bias)


# T5: buckets of distances.


def buckets_of_the_other_form(encoding, original, at):
    max_distance = max(encoding.max_distance, encoding.num_buckets)
    two_sided = not encoding.shape.causal
    buckets = distance_bucket(at.relative_positions_BTS, encoding.num_buckets, max_distance, two_sided)
    return encoding.table[buckets].permute(0, 3, 1, 2)


def change_buckets(bucket_of):
    """Return a change of T5's buckets to ``bucket_of(distances, num_buckets, encoding)``, for one side."""

    def bias(encoding, original, at):
        relative = at.relative_positions_BTS
        if encoding.shape.causal:
            buckets = bucket_of((-relative).clamp(min=0), encoding.num_buckets, encoding)
        else:
            num_buckets = encoding.num_buckets // 2
            buckets = bucket_of(relative.abs(), num_buckets, encoding) + num_buckets * (relative > 0)
        return encoding.table[buckets].permute(0, 3, 1, 2)

    return change_method("_bias", bias)


def round_bucket_up(distances, num_buckets, encoding):
    exact = num_buckets // 2  # buckets that hold a single distance
    logs = (distances.clamp(min=1).double() / exact).log() / math.log(encoding.max_distance / exact)
    logarithmic = (exact + (logs * (num_buckets - exact)).ceil().long()).clamp(max=num_buckets - 1)
    return torch.where(distances < exact, distances, logarithmic)


# FIRE: the input of its network.


def change_network_input(network_input):
    """Return a change of the input of FIRE's network to ``network_input(psi, distances, queries, limit)``.

    ``queries`` are the position ids of the queries, ``limit`` is the learned threshold.
    """

    def bias(encoding, original, q, k, at):
        distances = at.relative_positions_BTS.abs().float()
        queries = at.q_positions_BT[:, :, None].float()
        limit = (encoding.stretch * encoding.threshold).abs()
        normalised = network_input(encoding._psi, distances, queries, limit)
        return encoding.mlp(normalised[..., None]).permute(0, 3, 1, 2)

    return change_method("bias", bias)


def divide_by_smaller(psi, distances, queries, limit):
    return psi(distances) / (psi(torch.minimum(queries, limit)) + EPSILON)


def windows_from_two(encoding, original, at):
    windows = torch.full((encoding.shape.num_heads,), torch.inf)
    windows[: encoding.windowed_heads] = 2.0 + torch.arange(encoding.windowed_heads)
    return window_mask(at, windows)


# Sandwich, Shaw.


def same_scale_for_all_heads(encoding, original, at):
    heads = torch.arange(1, encoding.shape.num_heads + 1)
    return original(at) * heads[:, None, None]


def table_clipped_too_early(encoding):
    """Return Shaw's table with the row of the farthest distance on either side like the one before it."""
    table = encoding.table_RK
    last = table[-1:] if encoding.shape.causal else table[-2:-1]
    return {"table_RK": torch.cat([table[1:2], table[1:-1], last])}


# NAPE.


def slopes_from_one_half(encoding, original, at):
    heads = torch.arange(1, encoding.shape.num_heads + 1)
    return original(at) * (heads / (heads + 1))[:, None, None]


MISTAKES: dict[str, dict[str, Change]] = {
    "alibi": {
        "no interleaving where the number of heads is no power of two": as_convention(
            change_slopes(geometric_slopes)
        ),
        "slopes for twice the heads": change_slopes(lambda heads: alibi_slopes(2 * heads)[:heads]),
        "slopes of the next power of two, of which the first are kept (padded heads)": change_slopes(
            lambda heads: geometric_slopes(1 << (heads - 1).bit_length())[:heads]
        ),
        "the extra heads take the first slopes of twice the heads, not every other one": change_slopes(
            extra_slopes_not_interleaved
        ),
        "slopes 1/2, 1/4, 1/8, ... at any number of heads": change_slopes(
            lambda heads: 2.0 ** -torch.arange(1, heads + 1, dtype=torch.float64)
        ),
        "heads counted from 0": change_slopes(lambda heads: geometric_slopes(heads, 0)),
        "heads in reverse order": change_result("_bias", lambda bias: bias.flip(1)),
        "one slope for all heads": change_result("_bias", lambda bias: bias[:, :1].expand_as(bias)),
        FAR_FAVOURED: change_result("_bias", torch.neg),
        "added before the scale": scale_by_head_dim("_bias", -0.5),
        "the bias in bfloat16": change_result("_bias", lambda bias: bias.bfloat16().float()),
        "the bias in float16": change_result("_bias", lambda bias: bias.half().float()),
        CACHED_FROM_ZERO: reported_in(
            "x-transformers", change_positions("_bias", WRONG_IDS[CACHED_FROM_ZERO])
        ),
        **wrong_ids("_bias", "position ids are ignored, tokens counted"),
    },
    "alibi_asymmetric": {"keys to the right are the nearer ones": change_positions("_bias", negate_ids)},
    "t5": {
        "max_distance of the paper, 128": as_convention(change_attribute("max_distance", lambda e: 128)),
        "distance sign": change_positions("_bias", negate_ids),
        "two-sided buckets in a decoder, one-sided ones in an encoder": change_method(
            "_bias", buckets_of_the_other_form
        ),
        "max_distance is one too large": change_attribute("max_distance", lambda e: e.max_distance + 1),
        "max_distance is one too small": change_attribute("max_distance", lambda e: e.max_distance - 1),
        "distances are clipped, without a logarithm": change_buckets(
            lambda distances, num_buckets, encoding: distances.clamp(max=num_buckets - 1)
        ),
        "buckets are rounded up": change_buckets(round_bucket_up),
        "distances off by one": change_positions("_bias", lambda i, j: (i + 1, j)),
        "added before the scale": scale_by_head_dim("_bias", -0.5),
        CACHED_FROM_ZERO: reported_in("candle #899", change_positions("_bias", WRONG_IDS[CACHED_FROM_ZERO])),
    },
    "kerple_log": {
        FAR_FAVOURED: change_result("_bias", torch.neg),
        "p and a exchanged": exchange_parameters("_bias", "p_H", "a_H"),
        "the logarithm to base 2": change_result("_bias", lambda bias: bias / math.log(2)),
    },
    "kerple_power": {
        "p and a exchanged": exchange_parameters("_bias", "p_H", "a_H"),
        FAR_FAVOURED: change_result("_bias", torch.neg),
    },
    "fire": {
        "min in place of max": change_network_input(divide_by_smaller),
        "the logarithm is left out": change_network_input(
            lambda psi, distances, queries, limit: distances / (torch.maximum(queries, limit) + EPSILON)
        ),
        "the share is taken before the logarithm": change_network_input(
            lambda psi, distances, queries, limit: psi(distances / torch.maximum(queries, limit))
        ),
        "queries counted from 1": change_positions("bias", lambda i, j: (i + 1, j + 1)),
    },
    "sandwich": {
        "m counts from 0": change_method(
            "_vectors", lambda e, original, ids: original(ids.double() * BASE ** (2 / e.width))
        ),
        "the sum is not scaled by head": change_method("_bias", same_scale_for_all_heads),
        FAR_FAVOURED: change_result("_bias", torch.neg),
    },
    "sliding_window": {"one position too wide": change_attribute("window", lambda e: e.window + 1)},
    "hard_alibi": {
        "windows start at 2 tokens": change_method("_bias", windows_from_two),
        "the last heads have the windows": change_result("_bias", lambda bias: bias.flip(1)),
    },
    "nape": {
        "the last heads have the bias": change_result("_bias", lambda bias: bias.flip(1)),
        "slopes from 1/2 on": change_method("_bias", slopes_from_one_half),
        "all heads have a bias": change_attribute("alibi_heads", lambda e: e.shape.num_heads),
    },
    "shaw": {
        "distances are clipped one too early": change_parameters("bias", table_clipped_too_early),
        "sign of the distance before clipping": change_positions("bias", negate_ids),
        "not scaled": scale_by_head_dim("bias", 0.5),
    },
}
