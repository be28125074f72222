"""What broken encodings compute: replacements of position ids, of methods and of what methods return.

A replacement of a method takes the encoding, the method as it was, and the method's arguments.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pe_experiments.checking.changes import Pair, Replacement, with_ids
from pe_experiments.encodings import AttentionContext
from pe_experiments.encodings.alibi import alibi_slopes
from pe_experiments.encodings.fire import EPSILON
from pe_experiments.encodings.rope import Rope, cos_and_sin, frequencies
from pe_experiments.encodings.scaled_logits import log_keys
from pe_experiments.encodings.sinusoidal import Sinusoidal, sinusoid_vectors
from pe_experiments.encodings.t5 import distance_bucket
from pe_experiments.encodings.windows import window_mask

# Position ids: of the queries i and of the keys j, [B, T] and [B, S].


def counted(i: Tensor, j: Tensor) -> Pair:
    """Tokens counted from 0, whatever their ids; queries are the last ones."""
    keys = torch.arange(j.shape[1])[None]
    return keys[:, -i.shape[1] :], keys


def counted_in_every_call(i: Tensor, j: Tensor) -> Pair:
    return torch.arange(i.shape[1])[None], torch.arange(j.shape[1])[None]


def as_first_keys(i: Tensor, j: Tensor) -> Pair:
    return j[:, : i.shape[1]], j


def mirrored(i: Tensor, j: Tensor) -> Pair:
    return -i, -j


def exchanged(i: Tensor, j: Tensor) -> Pair:
    return j, i


def queries_ahead(i: Tensor, j: Tensor) -> Pair:
    return i + 1, j


def keys_ahead(i: Tensor, j: Tensor) -> Pair:
    return i, j + 1


def both_ahead(i: Tensor, j: Tensor) -> Pair:
    return i + 1, j + 1


def both_doubled(i: Tensor, j: Tensor) -> Pair:
    return 2 * i, 2 * j


def both_of_first_row(i: Tensor, j: Tensor) -> Pair:
    return i[:1], j[:1]


def cached_queries_of_first_row(i: Tensor, j: Tensor) -> Pair:
    return (i if i.shape[1] > 1 else i[:1]), j


def cached_queries_behind(i: Tensor, j: Tensor) -> Pair:
    return i - int(i.shape[1] < j.shape[1]), j


def in_bfloat16(i: Tensor, j: Tensor) -> Pair:
    return i.bfloat16(), j.bfloat16()


def in_float16(i: Tensor, j: Tensor) -> Pair:
    return i.half(), j.half()


def all_at_zero(i: Tensor, j: Tensor) -> Pair:
    return 0 * i, 0 * j


def all_at_last(i: Tensor, j: Tensor) -> Pair:
    return j.amax(1, keepdim=True).expand_as(i), j.amax(1, keepdim=True).expand_as(j)


def halved(i: Tensor, j: Tensor) -> Pair:
    return i // 2, j // 2


def counted_alone(ids: Tensor) -> Tensor:
    return torch.arange(ids.shape[1])[None]


def at_last(ids: Tensor) -> Tensor:
    return ids.amax(1, keepdim=True).expand_as(ids)


def from_the_end(ids: Tensor) -> Tensor:
    return ids.amax(1, keepdim=True) - ids


# Embeddings.


def frequency_per_column(power: float) -> Replacement:
    """Sinusoids in which every column has a frequency of its own, of the base to that power."""

    def vectors(encoding: Any, right: Replacement, positions: Tensor) -> Tensor:
        columns = torch.arange(encoding.width)
        both = sinusoid_vectors(positions, 2 * encoding.width, encoding.base**power)
        return both[..., 2 * columns + columns % 2].float()

    return vectors


def linear_sinusoids(encoding: Any, right: Replacement, positions: Tensor) -> Tensor:
    pairs = (encoding.width + 1) // 2
    angles = positions.double()[..., None] * (1 - torch.arange(pairs) / pairs)
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(-2)[..., : encoding.width].float()


def sines_exchanged(vectors: Tensor) -> Tensor:
    return vectors.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)


def sines_only(vectors: Tensor) -> Tensor:
    return vectors[..., ::2].repeat_interleave(2, -1)[..., : vectors.shape[-1]]


def cosines_only(vectors: Tensor) -> Tensor:
    return vectors[..., 1::2].repeat_interleave(2, -1)[..., : vectors.shape[-1]]


def tokens_times_sqrt_width(encoding: Any, right: Replacement, x: Tensor, positions: Tensor) -> Tensor:
    return right(x * x.shape[-1] ** 0.5, positions)


def all_times_sqrt_width(encoding: Any, right: Replacement, x: Tensor, positions: Tensor) -> Tensor:
    return right(x, positions) * x.shape[-1] ** 0.5


def batch_counted(encoding: Any, right: Replacement, x: Tensor, positions: Tensor) -> Tensor:
    return x + encoding.vectors(torch.arange(x.shape[0])[:, None])


def positions_from_one(encoding: Any, right: Replacement, positions: Tensor) -> Tensor:
    return right(positions + 1)


def rows_from_one(encoding: Any, right: Replacement, positions: Tensor) -> Tensor:
    return right((positions + 1) % len(encoding.table))


def positions_counted(encoding: Any, right: Replacement, positions: Tensor) -> Tensor:
    return right(torch.arange(positions.shape[1])[None])


def scale_unused(encoding: Any, right: Replacement, positions: Tensor) -> Tensor:
    return Sinusoidal.vectors(encoding, positions) + 0 * encoding.alpha


def tokens_alone(encoding: Any, right: Replacement, x: Tensor, positions: Tensor) -> Tensor:
    return x


def id_in_every_column(encoding: Any, right: Replacement, positions: Tensor) -> Tensor:
    return positions[..., None].float().expand(-1, -1, encoding.width)


def id_over_tokens(encoding: Any, right: Replacement, positions: Tensor, largest: Tensor) -> Tensor:
    return F.pad((positions / positions.shape[1])[..., None], (0, encoding.width - 1))


# Rotations.


def stacked_across(x: Tensor) -> Tensor:
    return torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)


def halves_across(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)


def angles_twice(angles: Tensor) -> Tensor:
    return torch.cat([angles, angles], -1)


def angles_repeated(angles: Tensor) -> Tensor:
    return angles.repeat_interleave(2, -1)


def paired(across: Callable[[Tensor], Tensor], table: Callable[[Tensor], Tensor]) -> Replacement:
    """``x cos + across(x) sin`` for q and k, with the tables of angles laid out by ``table``."""

    def rotate(encoding: Any, right: Replacement, q: Tensor, k: Tensor, at: AttentionContext) -> Any:
        rotated = []
        for x, (cos, sin) in zip((q, k), encoding._rotations(at), strict=True):
            turning, rest = x[..., : 2 * encoding.pairs], x[..., 2 * encoding.pairs :]
            turned = turning * table(cos) + across(turning) * table(sin)
            rotated.append(torch.cat([turned, rest], dim=-1))
        return tuple(rotated)

    return rotate


def exponents_from_one(encoding: Any, right: Replacement, at: AttentionContext) -> Tensor:
    return right(at) * encoding.base ** (-1 / encoding.pairs)


def linear_frequencies(encoding: Any, right: Replacement, at: AttentionContext) -> Tensor:
    return (1 - torch.arange(encoding.pairs, dtype=torch.float64) / encoding.pairs)[None]


def keys_turn_back(rotations: Any) -> Any:
    queries, (cos, sin) = rotations
    return queries, (cos, -sin)


def cos_for_sin_of_queries(rotations: Any) -> Any:
    (cos, sin), keys = rotations
    return (sin, cos), keys


def angles_in_bfloat16(encoding: Any, right: Replacement, at: AttentionContext) -> Any:
    turns = encoding.frequencies_BR(at).bfloat16()[:, None, None]
    tables = []
    for ids in (at.q_positions_BT, at.k_positions_BS):
        angles = ids.bfloat16()[:, None, :, None] * turns
        tables.append((angles.float().cos(), angles.float().sin()))
    return tuple(tables)


def tables_in_bfloat16(rotations: Any) -> Any:
    return tuple((cos.bfloat16().float(), sin.bfloat16().float()) for cos, sin in rotations)


def sines_without_minus(tables: Any) -> Any:
    """Tables whose signed sines have lost their sign."""
    return tuple((cos, angles_twice(sin.chunk(2, -1)[1])) for cos, sin in tables)


def only_queries(encoding: Any, right: Replacement, q: Tensor, k: Tensor, at: AttentionContext) -> Pair:
    return right(q, k, at)[0], k


def only_keys(encoding: Any, right: Replacement, q: Tensor, k: Tensor, at: AttentionContext) -> Pair:
    return q, right(q, k, at)[1]


def scaled_twice(encoding: Any, right: Replacement, q: Tensor, k: Tensor, at: AttentionContext) -> Pair:
    return right(q * encoding.shape.head_dim**-0.5, k, at)


def heads_for_tokens(encoding: Any, right: Replacement, q: Tensor, k: Tensor, at: AttentionContext) -> Any:
    heads = torch.arange(q.shape[1])[None]
    at = AttentionContext(heads, heads, at.visible_BTS)
    return tuple(x.transpose(1, 2) for x in right(q.transpose(1, 2), k.transpose(1, 2), at))


def keys_left_of_text_unset(
    encoding: Any, right: Replacement, q: Tensor, k: Tensor, at: AttentionContext
) -> Pair:
    rotated_q, rotated_k = right(q, k, at)
    unseen = ~at.visible_BTS.any(dim=1)[:, None, :, None]
    return rotated_q, rotated_k.masked_fill(unseen, torch.nan)


def keys_permuted(encoding: Any, right: Replacement, q: Tensor, k: Tensor, at: AttentionContext) -> Pair:
    """Keys taken from one layout to the other as if there were half as many heads, each twice as wide."""
    channels = k.transpose(1, 2).flatten(-2)
    wide = channels.unflatten(-1, (k.shape[1] // 2, 2, -1)).transpose(-1, -2).flatten(-3)
    back = wide.unflatten(-1, (k.shape[1], -1, 2)).transpose(-1, -2).flatten(-2)
    return right(q, back.transpose(1, 2), at)


def whole_head_rotates(encoding: Any, right: Replacement, q: Tensor, k: Tensor, at: AttentionContext) -> Pair:
    return Rope(encoding.shape, base=encoding.base).rotate(q, k, at)


def fastest_frequencies_zero(encoding: Any, right: Replacement, at: AttentionContext) -> Tensor:
    kept = torch.arange(encoding.pairs) >= encoding.pairs - encoding.rotated_pairs
    return frequencies(encoding.base, encoding.pairs)[None] * kept


def frequencies_spread(encoding: Any, right: Replacement, at: AttentionContext) -> Tensor:
    rest = encoding.pairs - encoding.rotated_pairs
    return F.pad(frequencies(encoding.base, encoding.rotated_pairs), (0, rest))[None]


def positions_times_factor(encoding: Any, right: Replacement, at: AttentionContext) -> Tensor:
    return Rope.frequencies_BR(encoding, at) * encoding.stretch_B(at)[:, None]


def base_times_factor(encoding: Any, right: Replacement, at: AttentionContext) -> Tensor:
    return frequencies(encoding.base * float(encoding.stretch_B(at)), encoding.pairs)[None]


def factor_not_taken_back(encoding: Any, right: Replacement, at: AttentionContext) -> Tensor:
    return (encoding.factor or 1.0) * encoding.times_longer_B(at)


def factor_fixed(encoding: Any, right: Replacement, at: AttentionContext) -> Tensor:
    return torch.tensor([encoding.factor or 1.0], dtype=torch.float64)


def factor_of_tokens_so_far(encoding: Any, right: Replacement, at: AttentionContext) -> Tensor:
    so_far = at.q_positions_BT.max().double() + 1
    return (so_far / encoding.shape.train_length).clamp(min=1)[None]


def unscaled_rotations(encoding: Any, right: Replacement, at: AttentionContext) -> Any:
    return Rope._rotations(encoding, at)


def scale_squared(encoding: Any, right: Replacement, at: AttentionContext) -> Any:
    scale = (0.1 * encoding.stretch_B(at).log() + 1).float()[:, None, None, None]
    return tuple((cos * scale, sin * scale) for cos, sin in right(at))


def ramp_of_current_length(encoding: Any, right: Replacement, rotations: float) -> float:
    """YaRN's ramp for the 24 tokens of a comparison in place of the original length."""
    longer = 24 / encoding.shape.train_length
    return right(rotations) + encoding.pairs * math.log(longer) / math.log(encoding.base)


def keys_grow_too(encoding: Any, right: Replacement, at: AttentionContext) -> Any:
    return right(at)[0], right(with_ids(at, exchanged))[0]


def separate_centres(encoding: Any, right: Replacement, at: AttentionContext) -> Any:
    _, (cos, sin) = Rope._rotations(encoding, at)
    scale = encoding._scales(-at.k_positions_BS)
    return right(at)[0], (cos * scale, sin * scale)


def delta_negated(encoding: Any, right: Replacement, q: Tensor, k: Tensor, at: AttentionContext) -> Any:
    """cos(a - d): that is cos(a + d) in the other direction, with the roles of q and k exchanged."""
    rotated_k, rotated_q = right(k, q, with_ids(at, exchanged))
    return rotated_q, rotated_k


def without_softplus(encoding: Any, right: Replacement, q: Tensor, k: Tensor, at: AttentionContext) -> Any:
    rotated = []
    for result, x in zip(right(q, k, at), (q, k), strict=True):
        rotated.append(result / angles_twice(F.softplus(x)) * angles_twice(x))
    return tuple(rotated)


def frequencies_of_rope_twice(encoding: Any, right: Replacement, at: AttentionContext) -> Any:
    head_dim = encoding.shape.head_dim
    theta = frequencies(encoding.base, (head_dim + 1) // 2).repeat(2)[None, :head_dim]
    return cos_and_sin(at.q_positions_BT, theta), cos_and_sin(at.k_positions_BS, theta)


# Biases of positions.


def with_slopes(slopes: Callable[[int], Tensor]) -> Replacement:
    """ALiBi with other slopes, a function of the number of heads."""

    def bias(encoding: Any, right: Replacement, at: AttentionContext) -> Tensor:
        slopes_H11 = slopes(encoding.shape.num_heads)[:, None, None]
        return (-slopes_H11 * at.relative_positions_BTS.abs()[:, None]).float()

    return bias


def geometric_slopes(heads: int, first: int = 1) -> Tensor:
    return 2.0 ** (-8 * torch.arange(first, first + heads, dtype=torch.float64) / heads)


def slopes_from_zero(heads: int) -> Tensor:
    return geometric_slopes(heads, 0)


def slopes_of_twice_the_heads(heads: int) -> Tensor:
    return alibi_slopes(2 * heads)[:heads]


def slopes_of_padded_heads(heads: int) -> Tensor:
    """The slopes of the next power of two, of which the first are kept."""
    return geometric_slopes(1 << (heads - 1).bit_length())[:heads]


def extra_slopes_not_interleaved(heads: int) -> Tensor:
    power = 1 << (heads.bit_length() - 1)
    return torch.cat([geometric_slopes(power), geometric_slopes(2 * power)])[:heads]


def halving_slopes(heads: int) -> Tensor:
    return 2.0 ** -torch.arange(1, heads + 1, dtype=torch.float64)


def buckets_of_the_other_form(encoding: Any, right: Replacement, at: AttentionContext) -> Tensor:
    most = max(encoding.max_distance, encoding.num_buckets)
    two_sided = not encoding.shape.causal
    buckets = distance_bucket(at.relative_positions_BTS, encoding.num_buckets, most, two_sided)
    return encoding.table[buckets].permute(0, 3, 1, 2)


def distances_clipped(encoding: Any, right: Replacement, at: AttentionContext) -> Tensor:
    """T5's table read by the distance itself, up to the last bucket."""
    causal, relative = encoding.shape.causal, at.relative_positions_BTS
    side = encoding.num_buckets if causal else encoding.num_buckets // 2
    distances = (-relative if causal else relative.abs()).clamp(0, side - 1)
    ahead = 0 if causal else side * (relative > 0)
    return encoding.table[distances + ahead].permute(0, 3, 1, 2)


def buckets_rounded_up(encoding: Any, right: Replacement, at: AttentionContext) -> Tensor:
    """The logarithm of a distance is rounded up instead of down."""
    causal, relative = encoding.shape.causal, at.relative_positions_BTS
    side = encoding.num_buckets if causal else encoding.num_buckets // 2
    single = side // 2
    distance = (-relative if causal else relative.abs()).clamp(min=0)
    logs = (distance.clamp(min=1).double() / single).log() / math.log(encoding.max_distance / single)
    shared = (single + (logs * (side - single)).ceil().long()).clamp(max=side - 1)
    bucket = torch.where(distance < single, distance, shared)
    return encoding.table[bucket + (0 if causal else side * (relative > 0))].permute(0, 3, 1, 2)


def windows_from_two(encoding: Any, right: Replacement, at: AttentionContext) -> Tensor:
    windows = torch.full((encoding.shape.num_heads,), torch.inf)
    windows[: encoding.windowed_heads] = 2.0 + torch.arange(encoding.windowed_heads)
    return window_mask(at, windows)


def bfloat16_bias(bias: Tensor) -> Tensor:
    return bias.bfloat16().float()


def float16_bias(bias: Tensor) -> Tensor:
    return bias.half().float()


def with_share(share: Callable[..., Tensor]) -> Replacement:
    """``share(psi, distances, positions of the queries, limit)``: the input of FIRE's network."""

    def bias(encoding: Any, right: Replacement, q: Tensor, k: Tensor, at: AttentionContext) -> Tensor:
        distances = at.relative_positions_BTS.abs().float()
        queries = at.q_positions_BT[:, :, None].float()
        limit = (encoding.stretch * encoding.threshold).abs()
        return encoding.mlp(share(encoding._psi, distances, queries, limit)[..., None]).permute(0, 3, 1, 2)

    return bias


def share_of_smaller(psi: Any, distance: Tensor, query: Tensor, limit: Tensor) -> Tensor:
    return psi(distance) / (psi(torch.minimum(query, limit)) + EPSILON)


def share_before_logarithm(psi: Any, distance: Tensor, query: Tensor, limit: Tensor) -> Tensor:
    return psi(distance / torch.maximum(query, limit))


# Logits of content, and weights.


def id_for_number_of_keys(
    encoding: Any, right: Replacement, q: Tensor, k: Tensor, at: AttentionContext
) -> Pair:
    logs = (at.q_positions_BT + 1).float().log()[:, None, :, None]
    return q * logs / math.log(encoding.shape.train_length), k


def unscaled_queries(encoding: Any, right: Replacement, q: Tensor, k: Tensor, at: AttentionContext) -> Pair:
    """What a subtracted term amounts to: it is the same for all keys of a query."""
    return q, k


def earlier_keys_counted(
    encoding: Any, right: Replacement, q: Tensor, k: Tensor, at: AttentionContext
) -> Pair:
    earlier = (log_keys(at).exp() - 1).clamp(min=1)
    return q * encoding.scale_H[:, None, None] * earlier.log(), k


def length_left_out(encoding: Any, right: Replacement, q: Tensor, k: Tensor, at: AttentionContext) -> Pair:
    return q * encoding.scale_H[:, None, None], k


def shifted_as_in_a_decoder(
    encoding: Any, right: Replacement, q: Tensor, k: Tensor, at: AttentionContext
) -> Tensor:
    """Keys on the right read what the shift of a decoder leaves there: distances of the next query."""
    bias = right(q, k, at)
    if encoding.shape.causal:
        return bias
    keys = k.shape[2]
    scale = encoding.shape.head_dim**-0.5
    last = at.k_positions_BS[:, -1:].expand_as(at.q_positions_BT)
    of_last = with_ids(at, lambda i, j: (last, j))
    distances = encoding._split((q + encoding.v_HK[:, None]) * scale, of_last)
    rows = F.pad(distances, (1, 0)).unflatten(-1, (1, keys + 1)).flatten(-3)[..., keys:]
    shifted = rows.unflatten(-1, (-1, keys)) + (encoding.u_HK[:, None] * scale) @ k.mT
    right_of_query = torch.ones(bias.shape[-2:], dtype=torch.bool).triu(1)
    return torch.where(right_of_query, shifted[..., : bias.shape[2], :], bias)


def rows_of_queries(rows: Pair) -> Pair:
    return rows[0], rows[0].mT


def scaled_for_one_term(
    encoding: Any, right: Replacement, q: Tensor, k: Tensor, at: AttentionContext
) -> Tensor:
    content = (q * encoding.shape.head_dim**-0.5) @ k.mT
    return 3**0.5 * right(q, k, at) + (3**0.5 - 1) * content


def gates_of_the_future(encoding: Any, right: Replacement, q: Tensor, k: Tensor, at: AttentionContext) -> Any:
    everything = torch.ones_like(at.visible_BTS)
    return right(q, k, AttentionContext(at.q_positions_BT, at.k_positions_BS, everything))


def gates_unscaled(encoding: Any, right: Replacement, q: Tensor, k: Tensor, at: AttentionContext) -> Any:
    return right(q, k * encoding.shape.head_dim**0.5, at)


def own_gate_counts(encoding: Any, right: Replacement, q: Tensor, k: Tensor, at: AttentionContext) -> Any:
    return right(q, k, at) + F.logsigmoid(encoding.gate(at.x_BSD)).mT[:, :, None]


def gates_without_logarithm(
    encoding: Any, right: Replacement, q: Tensor, k: Tensor, at: AttentionContext
) -> Tensor:
    sums = torch.sigmoid(encoding.gate(at.x_BSD)).cumsum(1).transpose(1, 2)
    queries = sums[:, :, at.first_query : at.first_query + q.shape[2]]
    return queries[..., None] - sums[:, :, None]


def broken_from_the_far_end(
    encoding: Any, right: Replacement, q: Tensor, k: Tensor, at: AttentionContext
) -> Tensor:
    flipped = AttentionContext(
        at.q_positions_BT,
        at.k_positions_BS,
        at.visible_BTS.flip(1, 2),
        first_query=k.shape[2] - q.shape[2] - at.first_query,
    )
    return right(q.flip(2), k.flip(2), flipped).flip(2, 3)


def query_takes_a_share(
    encoding: Any, right: Replacement, q: Tensor, k: Tensor, at: AttentionContext
) -> Tensor:
    shifted = AttentionContext(at.q_positions_BT, at.k_positions_BS, at.visible_BTS, first_query=k.shape[2])
    return right(q, k, shifted)


def bias_left_out(encoding: Any, right: Replacement, q: Tensor, k: Tensor, at: AttentionContext) -> Tensor:
    return right(q, k, at) - encoding.added.bias(q, k, at)


def with_plain_relu(encoding: Any) -> nn.Module:
    return nn.Sequential(encoding.mlp[0], nn.ReLU(), encoding.mlp[2])


def unnormalised(encoding: Any, right: Replacement, x: Tensor) -> Pair:
    mixed = encoding.convolution(F.pad(encoding.direction(x).mT, (2, 0)))
    heads = (encoding.shape.num_heads, encoding.shape.head_dim)
    return F.silu(mixed).mT.unflatten(-1, heads).transpose(1, 2), right(x)[1]


def convolved_ahead(encoding: Any, right: Replacement, x: Tensor) -> Pair:
    return right(F.pad(x[:, 1:], (0, 0, 0, 1)))[0], right(x)[1]
