"""Mistakes in rotations, by name: rows of `mutants.MUTANTS`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from pe_experiments.encodings import AttentionContext
from pe_experiments.encodings.rope import Rope, frequencies

Change = Callable[..., Any]
Pair = tuple[Tensor, Tensor]


def moved(at: AttentionContext, queries: int = 0, keys: int = 0) -> AttentionContext:
    return AttentionContext(at.q_positions_BT + queries, at.k_positions_BS + keys, at.visible_BTS)


def exchanged(at: AttentionContext) -> AttentionContext:
    return AttentionContext(at.k_positions_BS, at.q_positions_BT, at.visible_BTS)


def half_split_on_interleaved(self: Any, right: Change, q: Tensor, k: Tensor, at: AttentionContext) -> Pair:
    def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        cos, sin = torch.cat([cos, cos], -1), torch.cat([sin, sin], -1)
        x, rest = x.split([2 * self.pairs, x.shape[-1] - 2 * self.pairs], dim=-1)
        pairs = x.unflatten(-1, (-1, 2))
        x = x * cos + torch.stack([-pairs[..., 1], pairs[..., 0]], -1).flatten(-2) * sin
        return torch.cat([x, rest], dim=-1)

    of_queries, of_keys = self._rotations(at)
    return rotated(q, *of_queries), rotated(k, *of_keys)


def keys_backwards(self: Any, right: Change, at: AttentionContext) -> tuple[Pair, Pair]:
    queries, (cos, sin) = right(at)
    return queries, (cos, -sin)


def cos_and_sin_exchanged(self: Any, right: Change, at: AttentionContext) -> tuple[Pair, Pair]:
    (cos, sin), keys = right(at)
    return (sin, cos), keys


def with_frequencies(base_and_pairs: Callable[..., tuple[float, int]]) -> dict[str, Change]:
    return {
        "frequencies_BR": lambda self, right, at: frequencies(*base_and_pairs(self, at))[None, : self.pairs]
    }


def slowest_kept(self: Any, right: Change, at: AttentionContext) -> Tensor:
    kept = frequencies(self.base, self.pairs)
    kept[: self.pairs - self.rotated_pairs] = 0
    return kept[None]


def centres_of_their_own(self: Any, right: Change, at: AttentionContext) -> tuple[Pair, Pair]:
    _, (cos, sin) = Rope._rotations(self, at)
    scale = self._scales(-at.k_positions_BS)
    return right(at)[0], (cos * scale, sin * scale)


def without_softplus(self: Any, right: Change, q: Tensor, k: Tensor, at: AttentionContext) -> Pair:
    rotated = zip(right(q, k, at), (q, k), strict=True)
    query, key = (made / torch.cat([F.softplus(x)] * 2, -1) * torch.cat([x] * 2, -1) for made, x in rotated)
    return query, key


ROTATIONS: dict[str, dict[str, Change]] = {
    "rope: half-split angles on interleaved channels": {"rotate": half_split_on_interleaved},
    "rope: keys rotate the other way": {"_rotations": keys_backwards},
    "rope: only queries rotate": {"rotate": lambda self, right, q, k, at: (right(q, k, at)[0], k)},
    "rope: keys are one position ahead": {"_rotations": lambda self, right, at: right(moved(at, keys=1))},
    "rope: queries are one position ahead": {
        "_rotations": lambda self, right, at: right(moved(at, queries=1))
    },
    "rope: the exponent lacks its factor 2": with_frequencies(lambda rope, at: (rope.base**0.5, rope.pairs)),
    "rope: the exponent has its factor 2 twice": with_frequencies(
        lambda rope, at: (rope.base**2, rope.pairs)
    ),
    "rope: d_model in place of head_dim in the exponent": with_frequencies(
        lambda rope, at: (rope.base ** (1 / rope.shape.num_heads), rope.pairs)
    ),
    "rope: frequencies in reverse order": {"frequencies_BR": lambda self, right, at: right(at).flip(-1)},
    "rope: cos and sin exchanged for queries": {"_rotations": cos_and_sin_exchanged},
    "rope: exponents from 1 instead of 0": {
        "frequencies_BR": lambda self, right, at: right(at) * self.base ** (-1 / self.pairs)
    },
    "rope: base 1,000": with_frequencies(lambda rope, at: (rope.base / 10, rope.pairs)),
    "rope: half of the channels rotate": with_frequencies(
        lambda rope, at: (rope.base, max(1, rope.pairs // 2))
    ),
    "rope_partial: frequencies of the whole head": with_frequencies(
        lambda rope, at: (rope.base, rope.shape.head_dim // 2)
    ),
    "p_rope: the fastest frequencies are set to 0": {"frequencies_BR": slowest_kept},
    "p_rope: frequencies spread over the pairs that rotate": {
        "frequencies_BR": lambda self, right, at: F.pad(
            frequencies(self.base, self.rotated_pairs), (0, self.pairs - self.rotated_pairs)
        )[None]
    },
    "rope_linear: positions multiplied by the factor": {
        "frequencies_BR": lambda self, right, at: Rope.frequencies_BR(self, at) * self.stretch_B(at)[:, None]
    },
    "rope_ntk: the base is multiplied by the factor itself": with_frequencies(
        lambda rope, at: (rope.base * float(rope.stretch_B(at)), rope.pairs)
    ),
    "rope_dynamic_ntk: the factor is not taken back at the training length": {
        "stretch_B": lambda self, right, at: (self.factor or 1.0) * self.times_longer_B(at)
    },
    "rope_yarn: the ramp is upside down": {"interpolated_share": lambda self, right, on: 1 - right(on)},
    "rope_yarn: cos and sin are not scaled": {"_rotations": lambda self, _, at: Rope._rotations(self, at)},
    "rope_yarn: the current length in place of the original one": {
        "_pair_with": lambda self, right, rotations: (
            right(rotations) + self.pairs * math.log(24 / self.shape.train_length) / math.log(self.base)
        )
    },
    "xpos: keys grow with their position as queries do": {
        "_rotations": lambda self, right, at: (right(at)[0], right(exchanged(at))[0])
    },
    "xpos: logits grow with distance": {"_scales": lambda self, right, offsets: 1 / right(offsets)},
    "xpos: queries and keys have centres of their own": {"_rotations": centres_of_their_own},
    # cos(a - d) with the roles of q and k exchanged is cos(a + d) in the other direction.
    "pope: the sign of delta": {"rotate": lambda self, right, q, k, at: right(k, q, exchanged(at))[::-1]},
    "pope: RoPE's frequencies, each twice": {
        "_frequencies": lambda self, right, at: frequencies(self.base, (self.shape.head_dim + 1) // 2).repeat(
            2
        )[None, : self.shape.head_dim]
    },
    "pope: magnitudes without softplus": {"rotate": without_softplus},
}
