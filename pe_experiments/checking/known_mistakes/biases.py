"""Known mistakes of biases that depend only on positions."""

import math

import torch

from pe_experiments.checking.known_mistakes.mistake import (
    WRONG_IDS,
    Change,
    attribute,
    convention,
    exchanged,
    method,
    positions,
    reported,
    result,
    times_head_dim,
    wrong_ids,
)
from pe_experiments.encodings.alibi import alibi_slopes
from pe_experiments.encodings.fire import EPSILON
from pe_experiments.encodings.t5 import distance_bucket
from pe_experiments.encodings.windows import window_mask

CACHED_FROM_ZERO = "the query of a cached step is counted from 0"
FAR_FAVOURED = "far keys are favoured (sign)"


def mirrored(i, j):
    return -i, -j


# ALiBi: slopes from the number of heads.


def geometric_slopes(heads, first=1):
    return 2.0 ** (-8 * torch.arange(first, first + heads, dtype=torch.float64) / heads)


def extra_slopes_not_interleaved(heads):
    power = 1 << (heads.bit_length() - 1)
    return torch.cat([geometric_slopes(power), geometric_slopes(2 * power)])[:heads]


def slopes(slopes_of):
    """Return a change of ALiBi to the slopes ``slopes_of(heads)``."""

    def bias(encoding, original, at):
        slopes_H11 = slopes_of(encoding.shape.num_heads)[:, None, None]
        return (-slopes_H11 * at.relative_positions_BTS.abs()[:, None]).float()

    return method("_bias", bias)


# T5: buckets of distances.


def buckets_of_the_other_form(encoding, original, at):
    most = max(encoding.max_distance, encoding.num_buckets)
    two_sided = not encoding.shape.causal
    buckets = distance_bucket(at.relative_positions_BTS, encoding.num_buckets, most, two_sided)
    return encoding.table[buckets].permute(0, 3, 1, 2)


def buckets(bucket_of):
    """Return a change of T5 to ``bucket_of(distances, buckets of one side, encoding)``."""

    def bias(encoding, original, at):
        causal = encoding.shape.causal
        relative = at.relative_positions_BTS
        side = encoding.num_buckets if causal else encoding.num_buckets // 2
        distances = (-relative if causal else relative.abs()).clamp(min=0)
        ahead = 0 if causal else side * (relative > 0)
        return encoding.table[bucket_of(distances, side, encoding) + ahead].permute(0, 3, 1, 2)

    return method("_bias", bias)


def rounded_up(distances, side, encoding):
    single = side // 2
    logs = (distances.clamp(min=1).double() / single).log() / math.log(encoding.max_distance / single)
    shared = (single + (logs * (side - single)).ceil().long()).clamp(max=side - 1)
    return torch.where(distances < single, distances, shared)


# FIRE: the input of its network, from psi, distances, positions of the queries and the limit.


def share(share_of):
    def bias(encoding, original, q, k, at):
        distances = at.relative_positions_BTS.abs().float()
        queries = at.q_positions_BT[:, :, None].float()
        limit = (encoding.stretch * encoding.threshold).abs()
        shares = share_of(encoding._psi, distances, queries, limit)
        return encoding.mlp(shares[..., None]).permute(0, 3, 1, 2)

    return method("bias", bias)


def share_of_smaller(psi, distances, queries, limit):
    return psi(distances) / (psi(torch.minimum(queries, limit)) + EPSILON)


def windows_from_two(encoding, original, at):
    windows = torch.full((encoding.shape.num_heads,), torch.inf)
    windows[: encoding.windowed_heads] = 2.0 + torch.arange(encoding.windowed_heads)
    return window_mask(at, windows)


MISTAKES: dict[str, dict[str, Change]] = {
    "alibi": {
        "no interleaving where the number of heads is no power of two": convention(slopes(geometric_slopes)),
        "slopes for twice the heads": slopes(lambda heads: alibi_slopes(2 * heads)[:heads]),
        "slopes of the next power of two, of which the first are kept (padded heads)": slopes(
            lambda heads: geometric_slopes(1 << (heads - 1).bit_length())[:heads]
        ),
        "the extra heads take the first slopes of twice the heads, not every other one": slopes(
            extra_slopes_not_interleaved
        ),
        "slopes 1/2, 1/4, 1/8, ... at any number of heads": slopes(
            lambda heads: 2.0 ** -torch.arange(1, heads + 1, dtype=torch.float64)
        ),
        "heads counted from 0": slopes(lambda heads: geometric_slopes(heads, 0)),
        "heads in reverse order": result("_bias", lambda bias: bias.flip(1)),
        "one slope for all heads": result("_bias", lambda bias: bias[:, :1].expand_as(bias)),
        FAR_FAVOURED: result("_bias", torch.neg),
        "added before the scale": times_head_dim("_bias", -0.5),
        "the bias in bfloat16": result("_bias", lambda bias: bias.bfloat16().float()),
        "the bias in float16": result("_bias", lambda bias: bias.half().float()),
        CACHED_FROM_ZERO: reported("x-transformers", positions("_bias", WRONG_IDS[CACHED_FROM_ZERO])),
        **wrong_ids("_bias", "position ids are ignored, tokens counted"),
    },
    "alibi_asymmetric": {"keys to the right are the nearer ones": positions("_bias", mirrored)},
    "t5": {
        "max_distance of the paper, 128": convention(attribute("max_distance", lambda e: 128)),
        "distance sign": positions("_bias", mirrored),
        "two-sided buckets in a decoder, one-sided ones in an encoder": method(
            "_bias", buckets_of_the_other_form
        ),
        "max_distance is one too large": attribute("max_distance", lambda e: e.max_distance + 1),
        "max_distance is one too small": attribute("max_distance", lambda e: e.max_distance - 1),
        "distances are clipped, without a logarithm": buckets(
            lambda distances, side, encoding: distances.clamp(max=side - 1)
        ),
        "buckets are rounded up": buckets(rounded_up),
        "distances off by one": positions("_bias", lambda i, j: (i + 1, j)),
        "added before the scale": times_head_dim("_bias", -0.5),
        CACHED_FROM_ZERO: reported("candle #899", positions("_bias", WRONG_IDS[CACHED_FROM_ZERO])),
    },
    "kerple_log": {
        FAR_FAVOURED: result("_bias", torch.neg),
        "p and a exchanged": exchanged("_bias", "p_H", "a_H"),
        "the logarithm to base 2": result("_bias", lambda bias: bias / math.log(2)),
    },
    "kerple_power": {
        "p and a exchanged": exchanged("_bias", "p_H", "a_H"),
        FAR_FAVOURED: result("_bias", torch.neg),
    },
    "fire": {
        "min in place of max": share(share_of_smaller),
        "the share is taken before the logarithm": share(
            lambda psi, distances, queries, limit: psi(distances / torch.maximum(queries, limit))
        ),
        "queries counted from 1": positions("bias", lambda i, j: (i + 1, j + 1)),
    },
    "sliding_window": {"one position too wide": attribute("window", lambda e: e.window + 1)},
    "hard_alibi": {
        "windows start at 2 tokens": method("_bias", windows_from_two),
        "the last heads have the windows": result("_bias", lambda bias: bias.flip(1)),
    },
    "shaw": {
        "sign of the distance before clipping": positions("bias", mirrored),
        "not scaled": times_head_dim("bias", 0.5),
    },
}
