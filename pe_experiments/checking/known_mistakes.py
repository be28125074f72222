"""Known mistakes: those that any encoding can have, and those reported for public code.

`REPORTED` also holds conventions of released models that differ from ours. To add a mistake, write an entry
there. A test introduces each of them into a correct encoding and requires that the checker names it.

Every ``replacement`` of a method is called as ``replacement(encoding, original, *arguments)``, where
``original`` is the bound method that it replaces. ``labels`` are the other arguments of `Change`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from pe_experiments.checking.pair import SMALL, model_shape
from pe_experiments.checking.subject import SizedComponent, build
from pe_experiments.encodings import AttentionContext, PositionalEncoding
from pe_experiments.encodings.rope import Rope
from pe_experiments.models.attention import makes_weights

PositionIds = tuple[Tensor, Tensor]  # of the queries i and of the keys j, [B, T] and [B, S]
ChangeIds = Callable[[Tensor, Tensor], PositionIds]


@dataclass(frozen=True)
class Change:
    """A change that introduces a mistake into a correct encoding.

    Args:
        apply: function that changes an encoding in place.
        convention: whether released models do the same; it is then no mistake, but weights do not carry over.
        projects: public projects for which the mistake was reported.
    """

    apply: Callable[[Any], None]
    convention: bool = False
    projects: str = ""

    def then(self, change: Change) -> Change:
        def apply(encoding: PositionalEncoding) -> None:
            self.apply(encoding)
            change.apply(encoding)

        return Change(apply)


def change_base(value: Callable[[Any], float], **labels: Any) -> Change:
    """Return a change that sets the base of frequencies to ``value(encoding)``."""
    return Change(lambda encoding: setattr(encoding, "base", value(encoding)), **labels)


def replace_method(encoding: PositionalEncoding, name: str, replacement: Callable[..., Any]) -> None:
    """Replace a method of this instance only."""
    cls = type(encoding)
    original = getattr(cls, name)

    def new_method(self: Any, *arguments: Any) -> Any:
        return replacement(self, partial(original, self), *arguments)

    encoding.__class__ = type(cls.__name__, (cls,), {name: new_method})


def change_method(name: str, replacement: Callable[..., Any], **labels: Any) -> Change:
    return Change(lambda encoding: replace_method(encoding, name, replacement), **labels)


def with_ids(at: AttentionContext, change_ids: ChangeIds) -> AttentionContext:
    """Return a copy of the context with changed position ids and without its cached results."""
    context = at.query_rows(0, at.q_positions_BT.shape[1])
    context.q_positions_BT, context.k_positions_BS = change_ids(at.q_positions_BT, at.k_positions_BS)
    return context


# Mistakes that any encoding can have: wrong position ids, half precision, no effect.


def at_every_hook(change_ids: ChangeIds) -> Change:
    """Return a change of the position ids that all hooks read.

    Embeddings read changed ids only if the ids of queries and keys change equally.
    """

    def hook(part, original, q, k, at):
        return original(q, k, with_ids(at, change_ids))

    return _at_embedding(change_ids).then(change_hooks(hook))


def _at_embedding(change_ids: ChangeIds) -> Change:
    """Return a change of the position ids of embeddings, if those of queries and keys change equally."""

    def embed(encoding, original, x, ids, *declared):
        query_ids, key_ids = change_ids(ids, ids)
        return original(x, key_ids if torch.equal(query_ids, key_ids) else ids, *declared)

    def change(encoding: PositionalEncoding) -> None:
        if encoding.acts_at_embedding:
            reads_row = type(encoding).embed_sequence is not PositionalEncoding.embed_sequence
            replace_method(encoding, "embed_sequence" if reads_row else "embed", embed)

    return Change(change)


def layer_encodings(encoding: PositionalEncoding) -> list[PositionalEncoding]:
    parts = [encoding.for_layer(layer) for layer in range(encoding.shape.num_layers)]
    return list({id(part): part for part in parts}.values())


def attention_hooks(encoding: PositionalEncoding) -> list[str]:
    """Return the names of the overridden hooks that attention calls."""
    if makes_weights(encoding):
        return ["weights"]
    base = PositionalEncoding
    return [name for name in ("rotate", "bias") if getattr(type(encoding), name) is not getattr(base, name)]


# Functions from the correct ids of queries i and keys j to wrong ones, by the description of the mistake.


def _count_tokens(i: Tensor, j: Tensor) -> PositionIds:
    """Return ids that count the keys from 0; the queries have the ids of the last keys."""
    key_ids = torch.arange(j.shape[1])[None]
    return key_ids[:, -i.shape[1] :], key_ids


def _last_id(i: Tensor, j: Tensor) -> PositionIds:
    last = j.amax(1, keepdim=True)
    return last.expand_as(i), last.expand_as(j)


WRONG_IDS: dict[str, ChangeIds] = {
    "position ids are ignored, tokens counted": _count_tokens,
    "position ids are ignored, tokens counted anew in every call": lambda i, j: (
        torch.arange(i.shape[1])[None],
        torch.arange(j.shape[1])[None],
    ),
    "every token has the position of the last one": _last_id,
    "positions from 1": lambda i, j: (i + 1, j + 1),
    "ids are counted from the first one of each row (an offset is lost)": lambda i, j: (
        i - j.amin(1, keepdim=True),
        j - j.amin(1, keepdim=True),
    ),
    "the sign of distances": lambda i, j: (-i, -j),
    "positions are doubled": lambda i, j: (2 * i, 2 * j),
    "the ids of the first row serve all rows": lambda i, j: (i[:1], j[:1]),
    "queries are one position ahead": lambda i, j: (i + 1, j),
    "keys are one position ahead": lambda i, j: (i, j + 1),
    "the sign of the keys' positions": lambda i, j: (i, -j),
    "positions in bfloat16": lambda i, j: (i.bfloat16(), j.bfloat16()),
    "positions in float16": lambda i, j: (i.half(), j.half()),
}


# The ids of queries and keys in a cached step, from the correct ids and the index of the first query.
WRONG_CACHED_IDS: dict[str, Callable[[Tensor, Tensor, int], PositionIds]] = {
    "the query of a cached step: it is counted from 0": lambda i, j, first: (
        torch.arange(i.shape[1])[None],
        j,
    ),
    "the query of a cached step: it is one position behind": lambda i, j, first: (i - 1, j),
    "the query of a cached step: it is one position ahead": lambda i, j, first: (i + 1, j),
    "the query of a cached step: it has its index in memory as its id (padding counts)": lambda i, j, first: (
        torch.arange(first, first + i.shape[1])[None],
        j,
    ),
    "the query of a cached step: the offset of the first row serves all rows": lambda i, j, first: (i[:1], j),
    "it has no effect on a cached step": lambda i, j, first: (0 * i, 0 * j),
}
REPORTED_CACHED_IDS = {
    "the query of a cached step: it is counted from 0": "x-transformers, candle #899",
    "the query of a cached step: the offset of the first row serves all rows": "mlx #3494",
}
# How an implementation may recognise a cached step.
CACHED: tuple[Callable[[Tensor, Tensor, AttentionContext], bool], ...] = (
    lambda q, k, at: at.first_query > 0,
    lambda q, k, at: q.shape[2] < k.shape[2],
)


def change_layers(hook: str, replacement: Callable[..., Any]) -> Change:
    def change(encoding: PositionalEncoding) -> None:
        for part in layer_encodings(encoding):
            replace_method(part, hook, replacement)

    return Change(change)


def change_hooks(hook: Callable[..., Any]) -> Change:
    def change(encoding: PositionalEncoding) -> None:
        for part in layer_encodings(encoding):
            for name in attention_hooks(part):
                replace_method(part, name, hook)

    return Change(change)


def mistakes_while_decoding() -> Iterator[tuple[str, Change]]:
    """Yield mistakes in steps with cached keys. They have no effect on single sequences."""
    for is_cached, (description, wrong_ids) in product(CACHED, WRONG_CACHED_IDS.items()):

        def hook(part, original, q, k, at, is_cached=is_cached, wrong_ids=wrong_ids):
            first = at.first_query
            if is_cached(q, k, at):
                at = with_ids(at, lambda i, j: wrong_ids(i, j, first))
            return original(q, k, at)

        yield description, replace(change_hooks(hook), projects=REPORTED_CACHED_IDS.get(description, ""))


TABLE_ENDS = (1_000, 1_024, 2_048, 4_096, 5_000, 8_192, 10_000, 16_384, 20_000, 32_768, 65_536, 100_000)


class _ClippedDistances(AttentionContext):
    """A context in which no distance is larger than ``limit``."""

    limit: int

    @property
    def relative_positions_BTS(self) -> Tensor:
        return super().relative_positions_BTS.clamp(-self.limit, self.limit)


def _clip_distances(limit: int) -> Change:
    def hook(part, original, q, k, at):
        context = with_ids(at, lambda i, j: (i, j))
        context.__class__ = _ClippedDistances
        assert isinstance(context, _ClippedDistances)
        context.limit = limit
        return original(q, k, context)

    return change_hooks(hook)


def mistakes_at_table_ends() -> Iterator[tuple[str, Change]]:
    """Yield ids that wrap or are clipped, and distances that are clipped, at usual sizes of tables."""
    for size in (end + offset for offset in (0, 1, -1) for end in TABLE_ENDS):
        last = size - 1
        yield f"ids wrap at {size:,}", at_every_hook(lambda i, j, n=size: (i % n, j % n))  # type: ignore[misc]
        yield (
            f"ids beyond {last:,} are taken as {last:,}",
            at_every_hook(lambda i, j, n=last: (i.clamp(max=n), j.clamp(max=n))),  # type: ignore[misc]
        )
        yield f"distances beyond {size:,} are taken as {size:,}", _clip_distances(size)


def _never_applied(encoding: PositionalEncoding) -> None:
    if not encoding.position_width:
        replace_method(encoding, "embed_sequence", lambda part, original, x, ids, declared: x)
    replace_method(encoding, "for_layer", lambda part, original, layer: PositionalEncoding(part.shape))


def _indices_as_ids(part, original, q, k, at):
    """Call a hook with indices in memory as ids, also where keys after the queries are in memory."""
    query_ids = torch.arange(q.shape[2])[None] + at.first_query
    return original(q, k, with_ids(at, lambda i, j: (query_ids, torch.arange(j.shape[1])[None])))


NO_EFFECT = "it has no effect (never applied, or all tokens at one position)"
# Without any effect it may also read equal ids everywhere, so that comes first.
GENERIC: dict[str, Change] = {
    NO_EFFECT: Change(_never_applied),
    **{description: at_every_hook(change_ids) for description, change_ids in WRONG_IDS.items()},
    "position ids are ignored, indices in memory read": (
        _at_embedding(_count_tokens).then(change_hooks(_indices_as_ids))
    ),
}


# Half precision in parts of an encoding: the methods whose results are rounded.
ROUNDED = {
    "frequencies": "frequencies_BR",
    "cos and sin": "_rotations",
    "vectors": "vectors",
    "the bias": "bias",
}
REPORTED_ROUNDING = {"frequencies in bfloat16": "gpt-neox #1003"}


def _round(result: Any, dtype: torch.dtype) -> Any:
    """Round a tensor, or all tensors of nested tuples, to half precision."""
    if isinstance(result, tuple):
        return tuple(_round(part, dtype) for part in result)
    return None if result is None else result.to(dtype).to(result.dtype)


def _angles_in_bfloat16(encoding, original, at):
    rounded_frequencies = encoding.frequencies_BR(at).bfloat16()[:, None, None]
    tables = []
    for ids in (at.q_positions_BT, at.k_positions_BS):
        angles = ids.bfloat16()[:, None, :, None] * rounded_frequencies
        tables.append((angles.float().cos(), angles.float().sin()))
    return tuple(tables)


def generic_mistakes(
    component: SizedComponent, causal: bool, at_table_ends: bool
) -> list[tuple[str, Change]]:
    """Return the mistakes that this encoding can have, with their descriptions.

    With ``at_table_ends`` these include wrapped and clipped ids, at all usual sizes of tables.
    """
    encoding = build(component.build, model_shape(SMALL, causal))
    parts = layer_encodings(encoding)
    hooks = {hook for part in parts for hook in attention_hooks(part)}
    mistakes = [*GENERIC.items()]
    for (what, method), dtype in product(ROUNDED.items(), (torch.bfloat16, torch.float16)):
        if all(hasattr(part, method) for part in parts) and (method != "bias" or "bias" in hooks):
            name = f"{what} in {str(dtype).removeprefix('torch.')}"

            def rounded(part, original, *arguments, dtype=dtype):
                return _round(original(*arguments), dtype)

            change = replace(change_layers(method, rounded), projects=REPORTED_ROUNDING.get(name, ""))
            mistakes.append((name, change))
    if isinstance(encoding, Rope):
        mistakes.append(("angles in bfloat16", change_method("_rotations", _angles_in_bfloat16)))
    if hooks:
        mistakes += mistakes_while_decoding()
    if at_table_ends:
        mistakes += mistakes_at_table_ends()
    return mistakes


# Reported for public code, or conventions of released models: sinusoids, RoPE and its extensions.


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


def factor_of_tokens_so_far(encoding, original, at):
    tokens_so_far = at.q_positions_BT.max().double() + 1
    return (tokens_so_far / encoding.shape.train_length).clamp(min=1)[None]


def ramp_of_current_length(encoding, original, rotations):
    """Return YaRN's ramp computed from the 24 tokens of a comparison instead of the original length."""
    length_ratio = 24 / encoding.shape.train_length
    return original(rotations) + encoding.pairs * math.log(length_ratio) / math.log(encoding.base)


# ALiBi: slopes from the number of heads.


def geometric_slopes(heads):
    return 2.0 ** (-8 * torch.arange(1, 1 + heads, dtype=torch.float64) / heads)


def extra_slopes_not_interleaved(heads):
    power_of_two = 1 << (heads.bit_length() - 1)
    return torch.cat([geometric_slopes(power_of_two), geometric_slopes(2 * power_of_two)])[:heads]


def change_slopes(slopes_of, **labels):
    def bias(encoding, original, at):
        slopes_H11 = slopes_of(encoding.shape.num_heads)[:, None, None]
        return (-slopes_H11 * at.relative_positions_BTS.abs()[:, None]).float()

    return change_method("_bias", bias, **labels)


# Encodings that depend on content.


def leave_later_units(encoding, original, inputs, at):
    """Zero the logits of keys that the query does not see, but not the hidden units that read them."""
    return encoding.mlp(inputs.masked_fill(~at.visible_BTS[:, None], 0))


def scaled_beyond_the_original_length(encoding, original, q, k, at):
    is_longer = at.visible_keys_BT[:, None, :, None] > encoding.shape.original_length
    return torch.where(is_longer, original(q, k, at)[0], q), k


REPORTED: dict[str, dict[str, Change]] = {
    "sinusoidal": {
        "exponents m / (pairs - 1), as in Tensor2Tensor and fairseq": change_base(
            lambda e: e.base ** (e.width / (e.width - 2)), convention=True
        ),
        "tokens are multiplied by sqrt(d_model) too, as in the paper": change_method(
            "embed", lambda e, original, x, ids: original(x * x.shape[-1] ** 0.5, ids), convention=True
        ),
        "the exponent is inverted": change_base(lambda e: 1 / e.base, projects="WaveGrad #12"),
        "frequencies are 1 (integer division)": change_base(lambda e: 1.0, projects="BERT-pytorch #18"),
        "frequencies e^-2m (floored)": change_base(lambda e: math.exp(e.width), projects="LoFTR #41"),
    },
    "rope": {
        "keys left of the text stay uninitialised": change_method(
            "rotate", leave_padded_keys_unset, projects="fla #967"
        ),
        "keys converted between layouts with too few heads": change_method(
            "rotate", permute_keys, projects="llama.cpp #3364"
        ),
    },
    "rope_nope": {
        "the layers are exchanged": change_method(
            "for_layer", lambda e, original, layer: original(layer + 1), convention=True
        ),
    },
    "rope_partial": {
        "the whole head rotates": change_method(
            "rotate",
            lambda e, original, q, k, at: Rope(e.shape, base=e.base).rotate(q, k, at),
            projects="pie #602",
        ),
    },
    "rope_dynamic_ntk": {
        "the factor does not follow the length": change_method(
            "stretch_B",
            lambda e, original, at: torch.tensor([e.factor or 1.0], dtype=torch.float64),
            projects="vLLM #3488, #41236",
        ),
        "the factor follows the tokens so far": change_method(
            "times_longer_B", factor_of_tokens_so_far, projects="transformers"
        ),
    },
    "rope_yarn": {
        "the current length in place of the original one": change_method(
            "_pair_with", ramp_of_current_length, projects="TransformerLens #910"
        ),
    },
    "alibi": {
        "no interleaving where the number of heads is no power of two": change_slopes(
            geometric_slopes, convention=True
        ),
        "the extra heads take the first slopes of twice the heads, not every other one": change_slopes(
            extra_slopes_not_interleaved
        ),
    },
    "logn": {
        "nothing is scaled below the original length, as in Qwen": change_method(
            "rotate", scaled_beyond_the_original_length, convention=True
        ),
    },
    "transformer_xl": {
        "the relative shift is off by one": change_method(
            "_split",
            lambda e, original, q, at: original(q, with_ids(at, lambda i, j: (i + 1, j))),
            projects="labml #185",
        ),
    },
    "deberta": {
        "position to content uses d(i, j) instead of d(j, i)": change_method(
            "_rows",
            lambda e, original, at: (original(at)[0], original(at)[0].mT),
            convention=True,
        ),
    },
    "dape_v2": {
        "hidden units of later keys are left in": change_method(
            "_convolved", leave_later_units, projects="chuanyang-Zheng/DAPE"
        ),
    },
}
