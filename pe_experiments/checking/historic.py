"""Mistakes that public code has made, rebuilt on our schemes; rows of `mutants.MUTANTS`.

The project in which each was reported stands behind its row. Others of the kind are in `mutants` itself
(a shift off by one, frequencies of the whole head, the current length in place of the original one).
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


def counted_from_zero(self: Any, right: Change, at: AttentionContext) -> Any:
    """Fewer queries than keys get the positions of the first keys."""
    queries = at.q_positions_BT.shape[1]
    return right(AttentionContext(at.k_positions_BS[:, :queries], at.k_positions_BS, at.visible_BTS))


def offset_of_first_row(self: Any, right: Change, at: AttentionContext) -> Any:
    if at.q_positions_BT.shape[1] > FEW:
        return right(at)
    return right(AttentionContext(at.q_positions_BT[:1], at.k_positions_BS, at.visible_BTS))


def sinusoids(base: Callable[[Any], float]) -> dict[str, Change]:
    return {"vectors": lambda self, right, p: sinusoid_vectors(p, self.width, base(self)).float()}


def uninitialised_padding(self: Any, right: Change, q: Tensor, k: Tensor, at: AttentionContext) -> Pair:
    real_B1S1 = at.visible_BTS.any(dim=1)[:, None, :, None]
    query, key = right(q, k, at)
    return query, key.masked_fill(~real_B1S1, torch.nan)


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
        "_rotations": offset_of_first_row
    },  # mlx
    "rope: the query of a cached step is counted from 0": {"_rotations": counted_from_zero},
    "alibi: the query of a cached step is counted from 0": {"_bias": counted_from_zero},  # x-transformers
    "t5: the query of a cached step is counted from 0": {"_bias": counted_from_zero},  # candle
    "rope: positions in bfloat16": {
        "_rotations": lambda self, right, at: right(
            AttentionContext(at.q_positions_BT.bfloat16(), at.k_positions_BS.bfloat16(), at.visible_BTS)
        )
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
        "alibi: no interleaving where the number of heads is no power of two",
        "deberta: position to content uses d(i, j) instead of d(j, i)",
        "rope_nope: the layers are exchanged",
    }
)
