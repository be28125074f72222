"""Mistakes and conventions of public code, rebuilt on our schemes; rows of `mutants.MUTANTS`.

A comment after a row names the public project in which the mistake was reported. Others of the kind are in
`mutants` itself (a shift off by one, frequencies of the whole head, the current length in place of the
original one).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from pe_experiments.encodings import AttentionContext
from pe_experiments.encodings.rope import Rope, frequencies
from pe_experiments.encodings.sinusoidal import sinusoid_vectors

Change = Callable[..., Any]
Pair = tuple[Tensor, Tensor]
FEW = 1  # queries of a call that decodes


def with_ids(ids: Callable[[Tensor, Tensor], Pair]) -> Change:
    """``ids(of the queries, of the keys)`` in place of both."""
    return lambda self, right, at: right(
        AttentionContext(*ids(at.q_positions_BT, at.k_positions_BS), at.visible_BTS)
    )


def counted(i: Tensor, j: Tensor) -> Pair:
    """Tokens counted from 0, whatever their ids; queries are the last ones."""
    keys = torch.arange(j.shape[1])[None]
    return keys[:, -i.shape[1] :], keys


FROM_ZERO = with_ids(lambda i, j: (j[:, : i.shape[1]], j))  # the ids of the first keys
COUNTED = with_ids(counted)


def heads_for_tokens(self: Any, right: Change, q: Tensor, k: Tensor, at: AttentionContext) -> Pair:
    heads = torch.arange(q.shape[1])[None]
    rotated = right(q.transpose(1, 2), k.transpose(1, 2), AttentionContext(heads, heads, at.visible_BTS))
    return rotated[0].transpose(1, 2), rotated[1].transpose(1, 2)


def angles_in_bfloat16(self: Any, right: Change, at: AttentionContext) -> Any:
    def rounded(positions_BT: Tensor) -> Pair:
        angles = positions_BT.bfloat16()[:, None, :, None] * self.frequencies_BR(at).bfloat16()[:, None, None]
        return angles.float().cos(), angles.float().sin()

    return rounded(at.q_positions_BT), rounded(at.k_positions_BS)


def of_tables(change: Callable[[Tensor, Tensor], Pair]) -> Change:
    """``change(cos, sin)`` in place of both, for queries and for keys."""
    return lambda self, right, at: tuple(change(*tables) for tables in right(at))


def sinusoids(base: Callable[[Any], float]) -> dict[str, Change]:
    return {"vectors": lambda self, right, p: sinusoid_vectors(p, self.width, base(self)).float()}


def uninitialised_padding(self: Any, right: Change, q: Tensor, k: Tensor, at: AttentionContext) -> Pair:
    real_B1S1 = at.visible_BTS.any(dim=1)[:, None, :, None]
    query, key = right(q, k, at)
    return query, key.masked_fill(~real_B1S1, torch.nan)


def interleaved_on_half_split(self: Any, right: Change, q: Tensor, k: Tensor, at: AttentionContext) -> Pair:
    def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x, rest = x.split([2 * self.pairs, x.shape[-1] - 2 * self.pairs], dim=-1)
        first, second = x.chunk(2, -1)
        x = x * cos.repeat_interleave(2, -1) + torch.cat([-second, first], -1) * sin.repeat_interleave(2, -1)
        return torch.cat([x, rest], dim=-1)

    of_queries, of_keys = self._rotations(at)
    return rotated(q, *of_queries), rotated(k, *of_keys)


def keys_permuted(self: Any, right: Change, q: Tensor, k: Tensor, at: AttentionContext) -> Pair:
    """Keys taken from one layout to the other as if there were half as many heads, each twice as wide."""
    channels = k.transpose(1, 2).flatten(-2)
    wide = channels.unflatten(-1, (k.shape[1] // 2, 2, -1)).transpose(-1, -2).flatten(-3)
    back = wide.unflatten(-1, (k.shape[1], -1, 2)).transpose(-1, -2).flatten(-2)
    return right(q, back.transpose(1, 2), at)


def shifted_as_in_a_decoder(self: Any, right: Change, q: Tensor, k: Tensor, at: AttentionContext) -> Tensor:
    """Keys on the right read what the shift of a decoder leaves there: distances of the next query."""
    bias = right(q, k, at)
    if self.shape.causal:
        return bias
    keys, scale = k.shape[2], self.shape.head_dim**-0.5
    last = at.k_positions_BS[:, -1:].expand_as(at.q_positions_BT)
    back = AttentionContext(last, at.k_positions_BS, at.visible_BTS)
    distances = self._split((q + self.v_HK[:, None]) * scale, back)
    shifted = (
        F.pad(distances, (1, 0))
        .unflatten(-1, (1, keys + 1))
        .flatten(-3)[..., keys:]
        .unflatten(-1, (-1, keys))
    )
    shifted = shifted + (self.u_HK[:, None] * scale) @ k.mT
    return torch.where(
        torch.ones(bias.shape[-2:], dtype=torch.bool).triu(1), shifted[..., : bias.shape[2], :], bias
    )


HISTORIC: dict[str, dict[str, Change]] = {
    "sinusoidal: every frequency is 1 (exponents divided as whole numbers)": sinusoids(
        lambda self: 1.0
    ),  # BERT-pytorch
    "sinusoidal: frequencies e^-2m (floor division of the exponent)": sinusoids(
        lambda self: math.exp(self.width)
    ),  # LoFTR
    "sinusoidal: the exponent is inverted": sinusoids(lambda self: 1 / self.base),  # WaveGrad
    "rope: the exponent is inverted": {
        "frequencies_BR": lambda self, right, at: frequencies(1 / self.base, self.pairs)[None]
    },
    "rope: the offset of the first row serves all rows while decoding": {
        "_rotations": with_ids(lambda i, j: (i if i.shape[1] > FEW else i[:1], j))
    },  # mlx
    "rope: the ids of the first row serve all rows": {"_rotations": with_ids(lambda i, j: (i[:1], j[:1]))},
    "rope: the query of a cached step is counted from 0": {"_rotations": FROM_ZERO},
    "alibi: the query of a cached step is counted from 0": {"_bias": FROM_ZERO},  # x-transformers
    "t5: the query of a cached step is counted from 0": {"_bias": FROM_ZERO},  # candle
    "rope: the query of a cached step is one position behind": {
        "_rotations": with_ids(lambda i, j: (i - int(i.shape[1] < j.shape[1]), j))
    },
    "rope: position ids are ignored, tokens counted": {"_rotations": COUNTED},
    "rope: position ids are ignored, tokens counted anew in every call": {
        "_rotations": with_ids(lambda i, j: (counted(i, i)[0], counted(j, j)[0]))
    },
    "alibi: position ids are ignored, tokens counted": {"_bias": COUNTED},
    "sinusoidal: position ids are ignored, tokens counted": {
        "vectors": lambda self, right, p: right(torch.arange(p.shape[1])[None])
    },
    "rope: heads are counted in place of tokens ([B, T, H, K] read as [B, H, T, K])": {
        "rotate": heads_for_tokens
    },
    "sinusoidal: the exponent has its factor 2 twice": sinusoids(lambda self: self.base**2),
    "sinusoidal: the same, and every column has a frequency of its own": {  # a much copied tutorial
        "vectors": lambda self, right, p: (
            sinusoid_vectors(p, 2 * self.width, self.base**2)
            .unflatten(-1, (-1, 2))[..., (column := torch.arange(self.width)), column % 2]
            .float()
        )
    },
    "rope: interleaved angles on half-split channels": {"rotate": interleaved_on_half_split},
    "rope: rotated twice": {"_rotations": with_ids(lambda i, j: (2 * i, 2 * j))},
    "rope: exponents m / (pairs - 1)": {
        "frequencies_BR": lambda self, right, at: right(at) ** (self.pairs / max(1, self.pairs - 1))
    },
    "rope: only keys rotate": {"rotate": lambda self, right, q, k, at: (q, right(q, k, at)[1])},
    "rope: rotate_half without its minus": {
        "_tables": of_tables(lambda cos, sin: (cos, torch.cat([sin.chunk(2, -1)[1]] * 2, -1)))
    },
    "rope: logits are scaled twice": {
        "rotate": lambda self, right, q, k, at: right(q * self.shape.head_dim**-0.5, k, at)
    },
    "rope: cos and sin in bfloat16": {
        "_rotations": of_tables(lambda cos, sin: (cos.bfloat16().float(), sin.bfloat16().float()))
    },
    "rope: angles in bfloat16": {"_rotations": angles_in_bfloat16},
    "rope: positions in bfloat16": {"_rotations": with_ids(lambda i, j: (i.bfloat16(), j.bfloat16()))},
    "sinusoidal: exponents m / (pairs - 1), as in Tensor2Tensor and fairseq": sinusoids(
        lambda self: self.base ** (self.width / (self.width - 2))
    ),
    "sinusoidal: tokens are multiplied by sqrt(d_model) too, as in the paper": {
        "embed": lambda self, right, x, p: right(x * x.shape[-1] ** 0.5, p)
    },
    "rope: frequencies in bfloat16": {
        "frequencies_BR": lambda self, right, at: right(at).bfloat16().double()
    },  # gpt-neox
    "rope: frequencies in float16": {"frequencies_BR": lambda self, right, at: right(at).half().double()},
    "rope: the base is not passed on (10,000 stays)": {
        "frequencies_BR": lambda self, right, at: frequencies(10_000.0, self.pairs)[None]
    },  # torchtune
    "rope: keys left of the text stay uninitialised": {"rotate": uninitialised_padding},  # fla
    "rope: keys converted between layouts with the wrong number of heads": {
        "rotate": keys_permuted
    },  # llama.cpp
    "rope_partial: the whole head rotates": {
        "rotate": lambda self, right, q, k, at: Rope(self.shape, base=self.base).rotate(q, k, at)
    },  # pie
    "rope_dynamic_ntk: the factor follows the tokens so far, cached keys keep an older one": {
        "times_longer_B": lambda self, right, at: torch.tensor(
            [max(1.0, (int(at.q_positions_BT.max()) + 1) / self.shape.train_length)], dtype=torch.float64
        )
    },  # transformers
    "rope_dynamic_ntk: the factor does not follow the length": {
        "stretch_B": lambda self, right, at: torch.tensor([self.factor or 1.0], dtype=torch.float64)
    },  # vLLM
    "transformer_xl: the relative shift of a decoder in an encoder": {
        "bias": shifted_as_in_a_decoder
    },  # espnet
}
CONVENTIONS = frozenset(  # of released models: no mistakes, but weights do not carry over
    {
        "sinusoidal: exponents m / (pairs - 1), as in Tensor2Tensor and fairseq",
        "sinusoidal: tokens are multiplied by sqrt(d_model) too, as in the paper",
        "sinusoidal: sine and cosine exchanged",
        "alibi: no interleaving where the number of heads is no power of two",
        "deberta: position to content uses d(i, j) instead of d(j, i)",
        "rope_nope: the layers are exchanged",
    }
)
