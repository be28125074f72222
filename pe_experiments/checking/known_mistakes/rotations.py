"""Define known mistakes in RoPE and related encodings."""

import copy
import math

import torch
from torch.nn import functional as F

from pe_experiments.checking.known_mistakes.mistake import (
    WRONG_IDS,
    Change,
    as_convention,
    change_attribute,
    change_method,
    change_positions,
    change_result,
    reported_in,
    with_ids,
    wrong_ids,
)
from pe_experiments.encodings import AttentionContext
from pe_experiments.encodings.rope import Rope, cos_and_sin, frequencies

FIRST_OFFSET = "the offset of the first row serves all rows while decoding"

# RoPE: frequencies and position ids.


def linear_frequencies(encoding, original, at):
    return (1 - torch.arange(encoding.pairs, dtype=torch.float64) / encoding.pairs)[None]


def fastest_frequencies_zero(encoding, original, at):
    is_rotated = torch.arange(encoding.pairs) >= encoding.pairs - encoding.rotated_pairs
    return frequencies(encoding.base, encoding.pairs)[None] * is_rotated


def spread_frequencies(encoding, original, at):
    unrotated_pairs = encoding.pairs - encoding.rotated_pairs
    return F.pad(frequencies(encoding.base, encoding.rotated_pairs), (0, unrotated_pairs))[None]


# RoPE: cosines and sines of queries and keys.


def rotate_keys_back(rotations):
    queries, (cos, sin) = rotations
    return queries, (cos, -sin)


def exchange_cos_and_sin_of_queries(rotations):
    (cos, sin), keys = rotations
    return (sin, cos), keys


def angles_in_bfloat16(encoding, original, at):
    rounded_frequencies = encoding.frequencies_BR(at).bfloat16()[:, None, None]
    tables = []
    for ids in (at.q_positions_BT, at.k_positions_BS):
        angles = ids.bfloat16()[:, None, :, None] * rounded_frequencies
        tables.append((angles.float().cos(), angles.float().sin()))
    return tuple(tables)


def tables_in_bfloat16(rotations):
    return tuple((cos.bfloat16().float(), sin.bfloat16().float()) for cos, sin in rotations)


# RoPE: rotation of the channels.


def rotate_halves(x):
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)


def rotate_neighbours(x):
    return torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)


def repeat_each(angles):
    return angles.repeat_interleave(2, -1)


def repeat_all(angles):
    return torch.cat([angles, angles], -1)


def rotate_with(rotate_channels, repeat_angles):
    """Return a replacement of ``rotate`` that computes ``x cos + rotate_channels(x) sin`` for q and k.

    ``repeat_angles`` expands cosines and sines from one value per pair of channels to one per channel.
    """

    def rotate(encoding, original, q, k, at):
        rotated = []
        for x, (cos, sin) in zip((q, k), encoding._rotations(at), strict=True):
            rotating = x[..., : 2 * encoding.pairs]
            unrotated = x[..., 2 * encoding.pairs :]
            rotated_part = rotating * repeat_angles(cos) + rotate_channels(rotating) * repeat_angles(sin)
            rotated.append(torch.cat([rotated_part, unrotated], dim=-1))
        return tuple(rotated)

    return rotate


def rotate_only_queries_in_halves(encoding, original, q, k, at):
    return original(q, k, at)[0], rotate_with(rotate_neighbours, repeat_each)(encoding, original, q, k, at)[1]


def rotate_only_keys_in_halves(encoding, original, q, k, at):
    return rotate_with(rotate_neighbours, repeat_each)(encoding, original, q, k, at)[0], original(q, k, at)[1]


def heads_counted_as_tokens(encoding, original, q, k, at):
    head_ids = torch.arange(q.shape[1])[None]
    at = AttentionContext(head_ids, head_ids, at.visible_BTS)
    return tuple(x.transpose(1, 2) for x in original(q.transpose(1, 2), k.transpose(1, 2), at))


def leave_padded_keys_unset(encoding, original, q, k, at):
    rotated_q, rotated_k = original(q, k, at)
    never_visible = ~at.visible_BTS.any(dim=1)[:, None, :, None]
    return rotated_q, rotated_k.masked_fill(never_visible, torch.nan)


def permute_keys(encoding, original, q, k, at):
    """Rotate keys whose layout was converted as if there were half as many heads, each twice as wide."""
    channels = k.transpose(1, 2).flatten(-2)
    interleaved = channels.unflatten(-1, (k.shape[1] // 2, 2, -1)).transpose(-1, -2).flatten(-3)
    permuted = interleaved.unflatten(-1, (k.shape[1], -1, 2)).transpose(-1, -2).flatten(-2)
    return original(q, permuted.transpose(1, 2), at)


def rotate_whole_head(encoding, original, q, k, at):
    return Rope(encoding.shape, base=encoding.base).rotate(q, k, at)


# Extensions of RoPE.


def base_times_factor(encoding, original, at):
    return frequencies(encoding.base * float(encoding.stretch_B(at)), encoding.pairs)[None]


def wrong_ntk_exponent(encoding, original, at):
    exponent = 2 * encoding.pairs / (2 * encoding.pairs - 1)
    return frequencies(encoding.base * float(encoding.stretch_B(at)) ** exponent, encoding.pairs)[None]


def factor_of_tokens_so_far(encoding, original, at):
    tokens_so_far = at.q_positions_BT.max().double() + 1
    return (tokens_so_far / encoding.shape.train_length).clamp(min=1)[None]


def scale_of_decimal_logarithm(encoding, original, at):
    return 0.1 * encoding.stretch_B(at).log10() + 1


def blend_upside_down(encoding, original, at):
    """Exchange kept and interpolated frequencies in the blended band alone."""
    frequency = Rope.frequencies_BR(encoding, at)
    interpolated = frequency / encoding.stretch_B(at)[:, None]
    right = original(at)
    is_blended = (right < frequency) & (right > interpolated)
    return torch.where(is_blended, frequency + interpolated - right, right)


def exchange_long_and_short(encoding, original, at):
    exchanged = copy.copy(encoding)
    exchanged.short_factor = encoding.long_factor
    exchanged.long_factor = encoding.short_factor or (1.0,) * encoding.pairs
    return original.func(exchanged, at)


def scale_squared(encoding, original, at):
    scale = encoding.attention_factor_B(at).float()[:, None, None, None]
    return tuple((cos * scale, sin * scale) for cos, sin in original(at))


def ramp_of_current_length(encoding, original, rotations):
    """Return YaRN's ramp computed from the 24 tokens of a comparison instead of the original length."""
    length_ratio = 24 / encoding.shape.train_length
    return original(rotations) + encoding.pairs * math.log(length_ratio) / math.log(encoding.base)


# xPos and PoPE.


def keys_grow_too(encoding, original, at):
    return original(at)[0], original(with_ids(at, lambda i, j: (j, i)))[0]


def keys_grow_from_zero(encoding, original, at):
    (cos_q, sin_q), (cos_k, sin_k) = Rope._rotations(encoding, at)
    scale_q, scale_k = (encoding._scales(ids) for ids in (at.q_positions_BT, at.k_positions_BS))
    return (cos_q * scale_q, sin_q * scale_q), (cos_k * scale_k, sin_k * scale_k)


def keys_decay_one_ahead(encoding, original, at):
    _, (cos, sin) = Rope._rotations(encoding, at)
    low, high = at.k_positions_BS.aminmax(dim=-1, keepdim=True)
    scale = encoding._scales((low + high) / 2 - at.k_positions_BS - 1)
    return original(at)[0], (cos * scale, sin * scale)


def decay_of_half_the_exponent(encoding, original, offsets):
    pairs = torch.arange(encoding.pairs, dtype=torch.float64)
    logs = ((pairs / (2 * encoding.pairs) + 0.4) / 1.4).log()
    return (offsets.double()[:, None, :, None] / encoding.scale_base * logs).exp().float()


def separate_centres(encoding, original, at):
    _, (cos, sin) = Rope._rotations(encoding, at)
    scale = encoding._scales(-at.k_positions_BS)
    return original(at)[0], (cos * scale, sin * scale)


def negate_delta(encoding, original, q, k, at):
    """Rotate queries instead of keys by delta, which negates delta in the logits."""
    rotated_k, rotated_q = original(k, q, with_ids(at, lambda i, j: (j, i)))
    return rotated_q, rotated_k


def without_softplus(encoding, original, q, k, at):
    rotated = []
    for rotated_x, x in zip(original(q, k, at), (q, k), strict=True):
        rotated.append(rotated_x / repeat_all(F.softplus(x)) * repeat_all(x))
    return tuple(rotated)


def frequencies_of_rope_twice(encoding, original, at):
    head_dim = encoding.shape.head_dim
    theta = frequencies(encoding.base, (head_dim + 1) // 2).repeat(2)[None, :head_dim]
    return cos_and_sin(at.q_positions_BT, theta), cos_and_sin(at.k_positions_BS, theta)


# Partial key offset.


def zero_first_key(encoding, original, q, k, at):
    q, k = original(q, k, at)
    k = k.clone()
    k[:, :, 0, 2 * encoding.pairs :] = 0
    return q, k


def offset_all_channels(encoding, original, q, k, at):
    q, k = Rope.rotate(encoding, q, k, at)
    return q, torch.cat([k[:, :, :1], k[:, :, :-1]], dim=2)


def offset_queries(encoding, original, q, k, at):
    q, k = original(q, k, at)
    still = slice(2 * encoding.pairs, None)
    q = q.clone()
    q[:, :, 1:, still] = q[:, :, :-1, still].clone()
    return q, k


MISTAKES: dict[str, dict[str, Change]] = {
    "rope_nope": {
        "the layers are exchanged": as_convention(
            change_method("for_layer", lambda e, original, layer: original(layer + 1))
        ),
    },
    "rope": {
        "the exponent lacks its factor 2": change_attribute("base", lambda e: e.base**0.5),
        "the exponent has its factor 2 twice": change_attribute("base", lambda e: e.base**2),
        "the exponent is inverted": change_attribute("base", lambda e: 1 / e.base),
        "d_model, not head_dim": change_attribute("base", lambda e: e.base ** (1 / e.shape.num_heads)),
        "base 1,000": change_attribute("base", lambda e: e.base / 10),
        "the base is not passed on (10,000 stays)": reported_in(
            "torchtune #1341", change_attribute("base", lambda e: 10000.0)
        ),
        "half of it rotates": change_attribute("pairs", lambda e: max(1, e.pairs // 2)),
        "frequencies in reverse order": change_result("frequencies_BR", lambda f: f.flip(-1)),
        "exponents from 1": change_method(
            "frequencies_BR", lambda e, original, at: original(at) * e.base ** (-1 / e.pairs)
        ),
        "exponents m / (pairs - 1)": change_attribute(
            "base", lambda e: e.base ** (e.pairs / max(1, e.pairs - 1))
        ),
        "linear frequencies": change_method("frequencies_BR", linear_frequencies),
        "frequencies in bfloat16": reported_in(
            "gpt-neox #1003", change_result("frequencies_BR", lambda f: f.bfloat16().double())
        ),
        "frequencies in float16": change_result("frequencies_BR", lambda f: f.half().double()),
        "keys rotate the other way": change_result("_rotations", rotate_keys_back),
        "cos and sin exchanged for queries": change_result("_rotations", exchange_cos_and_sin_of_queries),
        **wrong_ids(
            "_rotations",
            "keys are one position ahead",
            "queries are one position ahead",
            "the ids of the first row serve all rows",
            "the query of a cached step is counted from 0",
            "the query of a cached step is one position behind",
            "the query of a cached step is one position ahead",
            "position ids are ignored, tokens counted",
            "positions in bfloat16",
            "positions in float16",
        ),
        FIRST_OFFSET: reported_in("mlx #3494", change_positions("_rotations", WRONG_IDS[FIRST_OFFSET])),
        "position ids are ignored, tokens counted anew in every call": change_positions(
            "_rotations", lambda i, j: (torch.arange(i.shape[1])[None], torch.arange(j.shape[1])[None])
        ),
        "rotated twice": change_positions("_rotations", lambda i, j: (2 * i, 2 * j)),
        "angles in bfloat16": change_method("_rotations", angles_in_bfloat16),
        "cos and sin in bfloat16": change_result("_rotations", tables_in_bfloat16),
        "rotate_half without its minus": change_result(
            "_tables", lambda tables: tuple((cos, repeat_all(sin.chunk(2, -1)[1])) for cos, sin in tables)
        ),
        "half-split angles on interleaved channels": change_method(
            "rotate", rotate_with(rotate_neighbours, repeat_all)
        ),
        "interleaved angles on half-split channels": change_method(
            "rotate", rotate_with(rotate_halves, repeat_each)
        ),
        "queries rotate halves, keys neighbouring channels": change_method(
            "rotate", rotate_only_queries_in_halves
        ),
        "keys rotate halves, queries neighbouring channels": change_method(
            "rotate", rotate_only_keys_in_halves
        ),
        "only queries rotate": change_method(
            "rotate", lambda e, original, q, k, at: (original(q, k, at)[0], k)
        ),
        "only keys rotate": change_method("rotate", lambda e, original, q, k, at: (q, original(q, k, at)[1])),
        "logits scaled twice": change_method(
            "rotate", lambda e, original, q, k, at: original(q * e.shape.head_dim**-0.5, k, at)
        ),
        "heads are counted in place of tokens": change_method("rotate", heads_counted_as_tokens),
        "keys left of the text stay uninitialised": reported_in(
            "fla #967", change_method("rotate", leave_padded_keys_unset)
        ),
        "keys converted between layouts with too few heads": reported_in(
            "llama.cpp #3364", change_method("rotate", permute_keys)
        ),
    },
    "rope_partial": {
        "frequencies of the whole head": change_attribute(
            "base", lambda e: e.base ** (2 * e.pairs / e.shape.head_dim)
        ),
        "the whole head rotates": reported_in("pie #602", change_method("rotate", rotate_whole_head)),
    },
    "p_rope": {
        "the fastest frequencies are set to 0": change_method("frequencies_BR", fastest_frequencies_zero),
        "frequencies spread over the pairs that rotate": change_method("frequencies_BR", spread_frequencies),
    },
    "rope_linear": {
        "positions multiplied by the factor": change_method(
            "frequencies_BR", lambda e, original, at: Rope.frequencies_BR(e, at) * e.stretch_B(at)[:, None]
        ),
    },
    "rope_ntk": {
        "the base is multiplied by the factor itself": change_method("frequencies_BR", base_times_factor),
        "the exponent is d / (d - 1) in place of d / (d - 2)": change_method(
            "frequencies_BR", wrong_ntk_exponent
        ),
    },
    "rope_dynamic_ntk": {
        "the factor is not taken back at the training length": change_method(
            "stretch_B", lambda e, original, at: (e.factor or 1.0) * e.times_longer_B(at)
        ),
        "the factor does not follow the length": reported_in(
            "vLLM #3488, #41236",
            change_method(
                "stretch_B", lambda e, original, at: torch.tensor([e.factor or 1.0], dtype=torch.float64)
            ),
        ),
        "the factor follows the tokens so far": reported_in(
            "transformers", change_method("times_longer_B", factor_of_tokens_so_far)
        ),
    },
    "rope_yarn": {
        "the ramp is upside down": change_result("interpolated_share", lambda share: 1 - share),
        "cos and sin are not scaled": change_method(
            "_rotations", lambda e, original, at: Rope._rotations(e, at)
        ),
        "cos and sin are scaled twice": change_method("_rotations", scale_squared),
        "the logarithm of the scale is to base 10": change_method(
            "attention_factor_B", scale_of_decimal_logarithm
        ),
        "the current length in place of the original one": reported_in(
            "TransformerLens #910", change_method("_pair_with", ramp_of_current_length)
        ),
    },
    "rope_llama3": {
        "kept and interpolated frequencies are exchanged in the blend": change_method(
            "frequencies_BR", blend_upside_down
        ),
    },
    "rope_longrope": {
        "the short and the long factors are exchanged": change_method(
            "frequencies_BR", exchange_long_and_short
        ),
        "cos and sin are not scaled": change_method(
            "_rotations", lambda e, original, at: Rope._rotations(e, at)
        ),
    },
    "xpos": {
        "keys grow with their position as queries do": change_method("_rotations", keys_grow_too),
        "keys grow with their position as queries do, counted from 0": change_method(
            "_rotations", keys_grow_from_zero
        ),
        "queries and keys have centres of their own": change_method("_rotations", separate_centres),
        "logits grow with distance": change_result("_scales", torch.reciprocal),
        "keys decay as if they were one position ahead": change_method("_rotations", keys_decay_one_ahead),
        "the pair's index is divided by the head's channels, not by its pairs, in the decay": change_method(
            "_scales", decay_of_half_the_exponent
        ),
    },
    "key_offset": {
        "the other channels are those of the key itself": change_method(
            "rotate", lambda e, original, q, k, at: Rope.rotate(e, q, k, at)
        ),
        "all channels are those of the key before": change_method("rotate", offset_all_channels),
        "the first key is zero in the other channels": change_method("rotate", zero_first_key),
        "the channels of queries are offset, too": change_method("rotate", offset_queries),
    },
    "pope": {
        "the sign of delta": change_method("rotate", negate_delta),
        "magnitudes without softplus": change_method("rotate", without_softplus),
        "RoPE's frequencies, each twice": change_method("_rotations", frequencies_of_rope_twice),
    },
}
