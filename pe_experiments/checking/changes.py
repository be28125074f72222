"""Mistakes that take more than a line: what `mutants` puts in place of a method of a scheme."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from pe_experiments.encodings import AttentionContext
from pe_experiments.encodings.rope import Rope
from pe_experiments.encodings.sinusoidal import sinusoid_vectors
from pe_experiments.encodings.t5 import distance_bucket

Change = Callable[..., Any]
Pair = tuple[Tensor, Tensor]


def at_ids(at: AttentionContext, ids: Callable[[Tensor, Tensor], Pair]) -> AttentionContext:
    return AttentionContext(*ids(at.q_positions_BT, at.k_positions_BS), at.visible_BTS)


def frequency_per_column(power: float) -> Change:
    """Sinusoids in which every column has a frequency of its own, of the base to that power."""

    def vectors(s: Any, right: Change, p: Tensor) -> Tensor:
        columns = torch.arange(s.width)
        return sinusoid_vectors(p, 2 * s.width, s.base**power)[..., 2 * columns + columns % 2].float()

    return vectors


def paired(across: Callable[[Tensor], Tensor], table: Callable[[Tensor], Tensor]) -> Change:
    """``x cos + across(x) sin`` for q and k, with the tables of angles laid out by ``table``."""

    def rotated(s: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x, rest = x[..., : 2 * s.pairs], x[..., 2 * s.pairs :]
        return torch.cat([x * table(cos) + across(x) * table(sin), rest], dim=-1)

    return lambda s, right, q, k, at: tuple(
        rotated(s, x, *tables) for x, tables in zip((q, k), s._rotations(at), strict=True)
    )


def heads_for_tokens(s: Any, right: Change, q: Tensor, k: Tensor, at: AttentionContext) -> Any:
    heads = torch.arange(q.shape[1])[None]
    at = AttentionContext(heads, heads, at.visible_BTS)
    return tuple(x.transpose(1, 2) for x in right(q.transpose(1, 2), k.transpose(1, 2), at))


def angles_in_bfloat16(s: Any, right: Change, at: AttentionContext) -> Any:
    turns = s.frequencies_BR(at).bfloat16()[:, None, None]
    ids = (positions.bfloat16()[:, None, :, None] for positions in (at.q_positions_BT, at.k_positions_BS))
    return tuple(((one * turns).float().cos(), (one * turns).float().sin()) for one in ids)


def keys_permuted(s: Any, right: Change, q: Tensor, k: Tensor, at: AttentionContext) -> Pair:
    """Keys taken from one layout to the other as if there were half as many heads, each twice as wide."""
    channels = k.transpose(1, 2).flatten(-2)
    wide = channels.unflatten(-1, (k.shape[1] // 2, 2, -1)).transpose(-1, -2).flatten(-3)
    back = wide.unflatten(-1, (k.shape[1], -1, 2)).transpose(-1, -2).flatten(-2)
    return right(q, back.transpose(1, 2), at)


def centres_of_their_own(s: Any, right: Change, at: AttentionContext) -> tuple[Pair, Pair]:
    _, (cos, sin) = Rope._rotations(s, at)
    scale = s._scales(-at.k_positions_BS)
    return right(at)[0], (cos * scale, sin * scale)


def buckets_of_the_other_form(s: Any, right: Change, at: AttentionContext) -> Tensor:
    most = max(s.max_distance, s.num_buckets)
    buckets = distance_bucket(at.relative_positions_BTS, s.num_buckets, most, not s.shape.causal)
    return s.table[buckets].permute(0, 3, 1, 2)


def with_share(share: Callable[..., Tensor]) -> Change:
    """``share(psi, distances, positions of the queries, limit)``: the input of FIRE's network."""

    def bias(s: Any, right: Change, q: Tensor, k: Tensor, at: AttentionContext) -> Tensor:
        distance, query = at.relative_positions_BTS.abs().float(), at.q_positions_BT[:, :, None].float()
        share_BTS = share(s._psi, distance, query, (s.stretch * s.threshold).abs())
        return s.mlp(share_BTS[..., None]).permute(0, 3, 1, 2)

    return bias


def shifted_as_in_a_decoder(s: Any, right: Change, q: Tensor, k: Tensor, at: AttentionContext) -> Tensor:
    """Keys on the right read what the shift of a decoder leaves there: distances of the next query."""
    bias = right(q, k, at)
    if s.shape.causal:
        return bias
    keys, scale = k.shape[2], s.shape.head_dim**-0.5
    last = at.k_positions_BS[:, -1:].expand_as(at.q_positions_BT)
    distances = s._split((q + s.v_HK[:, None]) * scale, at_ids(at, lambda i, j: (last, j)))
    rows = F.pad(distances, (1, 0)).unflatten(-1, (1, keys + 1)).flatten(-3)[..., keys:]
    shifted = rows.unflatten(-1, (-1, keys)) + (s.u_HK[:, None] * scale) @ k.mT
    right_of_query = torch.ones(bias.shape[-2:], dtype=torch.bool).triu(1)
    return torch.where(right_of_query, shifted[..., : bias.shape[2], :], bias)


def gates_without_logarithm(s: Any, right: Change, q: Tensor, k: Tensor, at: AttentionContext) -> Tensor:
    kept_BHS = torch.sigmoid(s.gate(at.x_BSD)).cumsum(1).transpose(1, 2)
    queries = slice(at.first_query, at.first_query + q.shape[2])
    return kept_BHS[:, :, queries, None] - kept_BHS[:, :, None]


def broken_from_the_far_end(s: Any, right: Change, q: Tensor, k: Tensor, at: AttentionContext) -> Tensor:
    at = copy.copy(at)
    at._visible, at._shared = at.visible_BTS.flip(1, 2), {}
    at.first_query = k.shape[2] - q.shape[2] - at.first_query
    return right(q.flip(2), k.flip(2), at).flip(2, 3)


def unnormalised(s: Any, right: Change, x_BSD: Tensor) -> Pair:
    mixed_BWS = s.convolution(F.pad(s.direction(x_BSD).mT, (2, 0)))
    w_BSHK = F.silu(mixed_BWS).mT.unflatten(-1, (s.shape.num_heads, s.shape.head_dim))
    return w_BSHK.transpose(1, 2), right(x_BSD)[1]
