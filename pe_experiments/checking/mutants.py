"""Mistakes by name: our schemes, each broken in a way people break it or public code was broken.

The tests must catch every one of them, and the checker names the one it finds. A comment after a row names
the public project in which the mistake was reported.

A row changes one method of the scheme or one attribute. ``change(s, right, *arguments)`` is what the method
of the scheme ``s`` returns instead, where ``right`` is the method as it was; ``change(s)`` is the attribute.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import pe_experiments.checking.changes as changes
from pe_experiments.checking.changes import Change, at_ids, buckets_of_the_other_form, shifted_as_in_a_decoder
from pe_experiments.encodings import AttentionContext, ModelShape, PositionalEncoding
from pe_experiments.encodings.alibi import alibi_slopes
from pe_experiments.encodings.fire import EPSILON
from pe_experiments.encodings.rope import Rope, cos_and_sin, frequencies
from pe_experiments.encodings.scaled_logits import log_keys
from pe_experiments.encodings.sinusoidal import Sinusoidal
from pe_experiments.encodings.windows import window_mask
from pe_experiments.models.backbone import MakeEncoding


def scheme_of(name: str) -> str:
    """The choice under configs/pe that a mutant breaks."""
    return name.partition(":")[0]


def broken(name: str, make: MakeEncoding) -> MakeEncoding:
    """The maker of the mutant of that name, from the maker of the scheme it breaks."""
    part, change = MUTANTS[name]

    def make_broken(shape: ModelShape) -> PositionalEncoding:
        scheme = make(shape)
        if (right := getattr(type(scheme), part, None)) is None:
            setattr(scheme, part, change(scheme))
        else:
            method = {part: lambda self, *given: change(self, partial(right, self), *given)}
            scheme.__class__ = type(type(scheme).__name__, (type(scheme),), method)
        return scheme

    return make_broken


def returns(changed: Callable[[Any], Any]) -> Change:
    """``changed(what the method returns)``."""
    return lambda s, right, *given: changed(right(*given))


def times_head_dim(power: float) -> Change:
    return lambda s, right, *given: right(*given) * s.shape.head_dim**power


def exchanged(one: str, other: str) -> Change:
    """The method with one parameter in place of the other."""

    def change(s: Any, right: Any, *given: Any) -> Any:
        twin = copy.copy(s)
        twin._parameters = s._parameters | {one: getattr(s, other), other: getattr(s, one)}
        return right.func(twin, *given)

    return change


def with_ids(ids: Callable[[Tensor, Tensor], changes.Pair]) -> Change:
    """``ids(of the queries, of the keys)`` in place of both."""
    return lambda s, right, *given: right(*given[:-1], at_ids(given[-1], ids))


def swapped(at: AttentionContext) -> AttentionContext:
    """Queries at the positions of the keys and the other way round."""
    return at_ids(at, lambda i, j: (j, i))


def counted(i: Tensor, j: Tensor) -> changes.Pair:
    """Tokens counted from 0, whatever their ids; queries are the last ones."""
    keys = torch.arange(j.shape[1])[None]
    return keys[:, -i.shape[1] :], keys


COUNTED = with_ids(counted)
FROM_ZERO = with_ids(lambda i, j: (j[:, : i.shape[1]], j))  # the ids of the first keys
MIRRORED = with_ids(lambda i, j: (-i, -j))
QUERIES_AHEAD = with_ids(lambda i, j: (i + 1, j))


def of_tables(change: Callable[..., Sequence[Tensor]]) -> Change:
    """``change(cos, sin)`` in place of both, for queries and for keys."""
    return returns(lambda both: tuple(change(*tables) for tables in both))


def queries_times(factor: Callable[[Any, AttentionContext], Any]) -> Change:
    return lambda s, right, q, k, at: (q * factor(s, at), k)


def slopes(of_heads: Callable[[int], Tensor]) -> Change:
    return lambda s, right, at: (
        -of_heads(s.shape.num_heads)[:, None, None] * at.relative_positions_BTS.abs()[:, None]
    ).float()


def geometric_slopes(first: int, heads: int) -> Tensor:
    return 2.0 ** (-8 * torch.arange(first, first + heads, dtype=torch.float64) / heads)


# By the choice under configs/pe, what changes of its class, and the mistake.
# First what released models do: no mistakes, but weights do not carry over.
CONVENTIONS: dict[str, Change] = {
    "sinusoidal.vectors: sine and cosine exchanged": returns(
        lambda v: v.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    ),
    "sinusoidal.base: exponents m / (pairs - 1), as in Tensor2Tensor and fairseq": lambda s: (
        s.base ** (s.width / (s.width - 2))
    ),
    "sinusoidal.embed: tokens are multiplied by sqrt(d_model) too, as in the paper": lambda s, right, x, p: (
        right(x * x.shape[-1] ** 0.5, p)
    ),
    "alibi._bias: no interleaving where the number of heads is no power of two": slopes(
        lambda heads: geometric_slopes(1, heads)
    ),
    "deberta._rows: position to content uses d(i, j) instead of d(j, i)": returns(lambda r: (r[0], r[0].mT)),
    "rope_nope.for_layer: the layers are exchanged": lambda s, right, layer: right(layer + 1),
}
MISTAKES: dict[str, Change] = {
    "sinusoidal.vectors: a frequency per column (i instead of 2i)": changes.frequency_per_column(1),
    "sinusoidal.base: the exponent lacks its factor 2": lambda s: s.base**0.5,
    "sinusoidal.base: the exponent has its factor 2 twice": lambda s: s.base**2,
    "sinusoidal.vectors: the same, and a frequency per column": changes.frequency_per_column(2),
    "sinusoidal.base: the exponent is inverted": lambda s: 1 / s.base,  # WaveGrad #12
    "sinusoidal.base: frequencies are 1 (integer division)": lambda s: 1.0,  # BERT-pytorch #18
    "sinusoidal.base: frequencies e^-2m (floored)": lambda s: math.exp(s.width),  # LoFTR #41
    "sinusoidal.base: base 1,000": lambda s: s.base / 10,
    "sinusoidal.vectors: positions from 1": lambda s, right, p: right(p + 1),
    "sinusoidal.vectors: position ids are ignored, tokens counted": lambda s, right, p: right(
        torch.arange(p.shape[1])[None]
    ),
    "sinusoidal.embed: sequence-first module fed batch-first": lambda s, right, x, p: (
        x + s.vectors(torch.arange(x.shape[0])[:, None])
    ),
    "sinusoidal_scaled.vectors: the learned scale is not applied": lambda s, right, p: (
        Sinusoidal.vectors(s, p) + 0 * s.alpha
    ),
    "learned.vectors: positions from 1": lambda s, right, p: right((p + 1) % len(s.table)),
    "learned.embed: the encoding is never applied": lambda s, right, x, p: x,
    "raw_index.vectors: positions from 1": lambda s, right, p: right(p + 1),
    "raw_index.vectors: in every column (the next layer norm takes it out)": lambda s, right, p: (
        p[..., None].float().expand(-1, -1, s.width)
    ),
    "scaled_index.vectors: divided by the number of tokens": lambda s, right, p: F.pad(
        (p / p.shape[1])[..., None], (0, s.width - 1)
    ),
    "binary_counter.vectors: lowest bit first": returns(lambda bits: bits.flip(-1)),
    "rope.base: the exponent lacks its factor 2": lambda s: s.base**0.5,
    "rope.base: the exponent has its factor 2 twice": lambda s: s.base**2,
    "rope.base: the exponent is inverted": lambda s: 1 / s.base,
    "rope.base: d_model, not head_dim": lambda s: s.base ** (1 / s.shape.num_heads),
    "rope.base: base 1,000": lambda s: s.base / 10,
    "rope.base: the base is not passed on (10,000 stays)": lambda s: 10_000.0,  # torchtune #1341
    "rope.pairs: half of it rotates": lambda s: max(1, s.pairs // 2),
    "rope.frequencies_BR: frequencies in reverse order": returns(lambda f: f.flip(-1)),
    "rope.frequencies_BR: exponents from 1": lambda s, right, at: right(at) * s.base ** (-1 / s.pairs),
    "rope.base: exponents m / (pairs - 1)": lambda s: s.base ** (s.pairs / max(1, s.pairs - 1)),
    # gpt-neox #1003
    "rope.frequencies_BR: frequencies in bfloat16": returns(lambda f: f.bfloat16().double()),
    "rope.frequencies_BR: frequencies in float16": returns(lambda f: f.half().double()),
    "rope._rotations: keys rotate the other way": returns(lambda both: (both[0], (both[1][0], -both[1][1]))),
    "rope._rotations: cos and sin exchanged for queries": returns(lambda both: (both[0][::-1], both[1])),
    "rope._rotations: keys are one position ahead": with_ids(lambda i, j: (i, j + 1)),
    "rope._rotations: queries are one position ahead": QUERIES_AHEAD,
    "rope._rotations: the offset of the first row serves all rows while decoding": with_ids(
        lambda i, j: (i if i.shape[1] > 1 else i[:1], j)
    ),  # mlx #3494
    "rope._rotations: the ids of the first row serve all rows": with_ids(lambda i, j: (i[:1], j[:1])),
    "rope._rotations: the query of a cached step is counted from 0": FROM_ZERO,
    "rope._rotations: the query of a cached step is one position behind": with_ids(
        lambda i, j: (i - int(i.shape[1] < j.shape[1]), j)
    ),
    "rope._rotations: position ids are ignored, tokens counted": COUNTED,
    "rope._rotations: position ids are ignored, tokens counted anew in every call": with_ids(
        lambda i, j: (counted(i, i)[0], counted(j, j)[0])
    ),
    "rope._rotations: rotated twice": with_ids(lambda i, j: (2 * i, 2 * j)),
    "rope._rotations: positions in bfloat16": with_ids(lambda i, j: (i.bfloat16(), j.bfloat16())),
    "rope._rotations: angles in bfloat16": changes.angles_in_bfloat16,
    "rope._rotations: cos and sin in bfloat16": of_tables(lambda *x: [t.bfloat16().float() for t in x]),
    "rope._tables: rotate_half without its minus": of_tables(
        lambda cos, sin: (cos, torch.cat([sin.chunk(2, -1)[1]] * 2, -1))
    ),
    "rope.rotate: half-split angles on interleaved channels": changes.paired(
        lambda x: torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2),
        lambda angles: torch.cat([angles] * 2, -1),
    ),
    "rope.rotate: interleaved angles on half-split channels": changes.paired(
        lambda x: torch.cat([-x.chunk(2, -1)[1], x.chunk(2, -1)[0]], -1),
        lambda angles: angles.repeat_interleave(2, -1),
    ),
    "rope.rotate: only queries rotate": lambda s, right, q, k, at: (right(q, k, at)[0], k),
    "rope.rotate: only keys rotate": lambda s, right, q, k, at: (q, right(q, k, at)[1]),
    "rope.rotate: logits scaled twice": lambda s, right, q, k, at: right(q * s.shape.head_dim**-0.5, k, at),
    "rope.rotate: heads are counted in place of tokens": changes.heads_for_tokens,
    "rope.rotate: keys left of the text stay uninitialised": lambda s, right, q, k, at: (
        right(q, k, at)[0],
        right(q, k, at)[1].masked_fill(~at.visible_BTS.any(dim=1)[:, None, :, None], torch.nan),
    ),  # fla #967
    # llama.cpp #3364
    "rope.rotate: keys converted between layouts with too few heads": changes.keys_permuted,
    "rope_partial.base: frequencies of the whole head": lambda s: s.base ** (2 * s.pairs / s.shape.head_dim),
    "rope_partial.rotate: the whole head rotates": lambda s, right, *given: Rope(s.shape, base=s.base).rotate(
        *given
    ),  # pie #602
    "p_rope.frequencies_BR: the fastest frequencies are set to 0": lambda s, right, at: (
        frequencies(s.base, s.pairs)[None] * (torch.arange(s.pairs) >= s.pairs - s.rotated_pairs)
    ),
    "p_rope.frequencies_BR: frequencies spread over the pairs that rotate": lambda s, right, at: F.pad(
        frequencies(s.base, s.rotated_pairs), (0, s.pairs - s.rotated_pairs)
    )[None],
    "rope_linear.frequencies_BR: positions multiplied by the factor": lambda s, right, at: (
        Rope.frequencies_BR(s, at) * s.stretch_B(at)[:, None]
    ),
    "rope_ntk.frequencies_BR: the base is multiplied by the factor itself": lambda s, right, at: frequencies(
        s.base * float(s.stretch_B(at)), s.pairs
    )[None],
    "rope_dynamic_ntk.stretch_B: the factor is not taken back at the training length": lambda s, right, at: (
        (s.factor or 1.0) * s.times_longer_B(at)
    ),
    "rope_dynamic_ntk.stretch_B: the factor does not follow the length": lambda s, right, at: torch.tensor(
        [s.factor or 1.0], dtype=torch.float64
    ),  # vLLM #3488, #41236
    "rope_dynamic_ntk.times_longer_B: the factor follows the tokens so far": lambda s, right, at: (
        (at.q_positions_BT.max().double() + 1).div(s.shape.train_length).clamp(min=1)[None]
    ),  # transformers
    "rope_yarn.interpolated_share: the ramp is upside down": returns(lambda share: 1 - share),
    "rope_yarn._rotations: cos and sin are not scaled": lambda s, right, at: Rope._rotations(s, at),
    "rope_yarn._pair_with: the current length in place of the original one": lambda s, right, rotations: (
        right(rotations) + s.pairs * math.log(24 / s.shape.train_length) / math.log(s.base)
    ),  # TransformerLens #910
    "xpos._rotations: keys grow with their position as queries do": lambda s, right, at: (
        (right(at)[0], right(swapped(at))[0])
    ),
    "xpos._rotations: queries and keys have centres of their own": changes.centres_of_their_own,
    "xpos._scales: logits grow with distance": returns(lambda scales: 1 / scales),
    # cos(a - d) with the roles of q and k exchanged is cos(a + d) in the other direction.
    "pope.rotate: the sign of delta": lambda s, right, q, k, at: right(k, q, swapped(at))[::-1],
    "pope.rotate: magnitudes without softplus": lambda s, right, q, k, at: tuple(
        made / torch.cat([F.softplus(x)] * 2, -1) * torch.cat([x] * 2, -1)
        for made, x in zip(right(q, k, at), (q, k), strict=True)
    ),
    "pope._rotations: RoPE's frequencies, each twice": lambda s, right, at: tuple(
        cos_and_sin(p, frequencies(s.base, (s.shape.head_dim + 1) // 2).repeat(2)[None, : s.shape.head_dim])
        for p in (at.q_positions_BT, at.k_positions_BS)
    ),
    "logn.rotate: the position id in place of the number of keys": queries_times(
        lambda s, at: (at.q_positions_BT + 1).float().log()[:, None, :, None] / math.log(s.shape.train_length)
    ),
    # By the same number for all keys of a query, which the softmax ignores.
    "logn.rotate: subtracted instead of multiplied": queries_times(lambda s, at: 1.0),
    "ssmax.rotate: the query itself is not counted": queries_times(
        lambda s, at: s.scale_H[:, None, None] * (log_keys(at).exp() - 1).clamp(min=1).log()
    ),
    "ssmax.rotate: the length is left out": queries_times(lambda s, at: s.scale_H[:, None, None]),
    "alibi._bias: slopes for twice the heads": slopes(lambda heads: alibi_slopes(2 * heads)[:heads]),
    "alibi._bias: heads counted from 0": slopes(lambda heads: geometric_slopes(0, heads)),
    "alibi._bias: heads in reverse order": returns(lambda bias: bias.flip(1)),
    "alibi._bias: one slope for all heads": returns(lambda bias: bias[:, :1].expand_as(bias)),
    "alibi._bias: far keys are favoured (sign)": returns(torch.neg),
    "alibi._bias: added before the scale": times_head_dim(-0.5),
    "alibi._bias: the query of a cached step is counted from 0": FROM_ZERO,  # x-transformers
    "alibi._bias: position ids are ignored, tokens counted": COUNTED,
    "alibi_asymmetric._bias: keys to the right are the nearer ones": MIRRORED,
    "t5._bias: distance sign": MIRRORED,
    "t5._bias: two-sided buckets in a decoder, one-sided ones in an encoder": buckets_of_the_other_form,
    "t5.max_distance: max_distance of the paper, 128": lambda s: 128,
    "t5._bias: distances off by one": QUERIES_AHEAD,
    "t5._bias: added before the scale": times_head_dim(-0.5),
    "t5._bias: the query of a cached step is counted from 0": FROM_ZERO,  # candle #899
    "kerple_log._bias: far keys are favoured (sign)": returns(torch.neg),
    "kerple_log._bias: p and a exchanged": exchanged("p_H", "a_H"),
    "kerple_power._bias: p and a exchanged": exchanged("p_H", "a_H"),
    "kerple_power._bias: far keys are favoured (sign)": returns(torch.neg),
    "fire.bias: min in place of max": changes.with_share(
        lambda psi, distance, query, limit: psi(distance) / (psi(torch.minimum(query, limit)) + EPSILON)
    ),
    "fire.bias: the share is taken before the logarithm": changes.with_share(
        lambda psi, distance, query, limit: psi(distance / torch.maximum(query, limit))
    ),
    "fire.bias: queries counted from 1": with_ids(lambda i, j: (i + 1, j + 1)),
    "sliding_window.window: one position too wide": lambda s: s.window + 1,
    "hard_alibi._bias: windows start at 2 tokens": lambda s, right, at: window_mask(
        at, torch.tensor([h + 2.0 if h < s.windowed_heads else torch.inf for h in range(s.shape.num_heads)])
    ),
    "hard_alibi._bias: the last heads have the windows": returns(lambda bias: bias.flip(1)),
    "shaw.bias: sign of the distance before clipping": MIRRORED,
    "shaw.bias: not scaled": times_head_dim(0.5),
    "transformer_xl._split: distance sign": MIRRORED,
    "transformer_xl._split: the relative shift is off by one": QUERIES_AHEAD,  # labml #185
    "transformer_xl.bias: u and v exchanged": exchanged("u_HK", "v_HK"),
    # espnet #2684
    "transformer_xl.bias: the relative shift of a decoder in encoders": shifted_as_in_a_decoder,
    "deberta._rows: distance sign": MIRRORED,
    "deberta.bias: scaled for one term instead of three": lambda s, right, q, k, at: (
        3**0.5 * right(q, k, at) + (3**0.5 - 1) * (q * s.shape.head_dim**-0.5) @ k.mT
    ),
    "cope.bias: gates before the mask (the future is counted)": lambda s, right, q, k, at: right(
        q, k, AttentionContext(at.q_positions_BT, at.k_positions_BS, torch.ones_like(at.visible_BTS))
    ),
    "cope.bias: the interpolated logit is scaled too": times_head_dim(-0.5),
    "cope.bias: gates without the scale": lambda s, right, q, k, at: right(q, k * s.shape.head_dim**0.5, at),
    "fox.bias: the key's own gate counts": lambda s, right, q, k, at: (
        right(q, k, at) + F.logsigmoid(s.gate(at.x_BSD)).mT[:, :, None]
    ),
    "fox.bias: the sum of gates without the logarithm": changes.gates_without_logarithm,
    "fox.bias: what is remembered grows (sign)": returns(torch.neg),
    "stick_breaking.weights: the stick is broken from the far end": changes.broken_from_the_far_end,
    "stick_breaking.weights: the query takes a share of its own": lambda s, right, q, k, at: right(
        q, k, AttentionContext(at.q_positions_BT, at.k_positions_BS, at.visible_BTS, first_query=k.shape[2])
    ),
    "dape.bias: the bias is not added": lambda s, right, q, k, at: right(q, k, at) - s.added.bias(q, k, at),
    "dape.mlp: ReLU in place of leaky ReLU": lambda s: nn.Sequential(s.mlp[0], nn.ReLU(), s.mlp[2]),
    "path.reflections: beta without its factor 2": returns(lambda made: (made[0], made[1] / 2)),
    "path.reflections: w is not scaled to length 1": changes.unnormalised,
    "path.reflections: the convolution looks one token ahead": lambda s, right, x: (
        (right(F.pad(x[:, 1:], (0, 0, 0, 1)))[0], right(x)[1])
    ),
    "rope_ssmax._at_layer: the second scheme is never applied": returns(lambda parts: parts[:1]),
}
# By "choice: mistake", what changes and how.
MUTANTS = {
    f"{choice}: {mistake}": (part, change)
    for name, change in (CONVENTIONS | MISTAKES).items()
    for (choice, part), mistake in [(name.split(": ")[0].split("."), name.split(": ", 1)[1])]
}
