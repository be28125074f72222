"""Mistakes by name: our encodings, each broken in a way people break it or public code was broken.

The checker names the one that an implementation equals; the tests break every encoding in every way and
require the name. Conventions are what released models do otherwise: no mistakes, but weights do not carry
over.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from pe_experiments.checking import broken as b
from pe_experiments.checking.changes import (
    Attribute,
    Change,
    EveryHook,
    Exchanged,
    Method,
    NothingWhileDecoding,
    Positions,
    Result,
    TimesHeadDim,
    Unused,
)
from pe_experiments.encodings import ModelShape, PositionalEncoding
from pe_experiments.models.backbone import MakeEncoding


@dataclass(frozen=True)
class Mistake:
    """One mistake: the encoding under configs/pe that it breaks, what is wrong, and the change.

    Args:
        convention: released models do it, so it is none.
    """

    encoding: str
    what: str
    change: Change
    convention: bool = False

    @property
    def name(self) -> str:
        return f"{self.encoding}: {self.what}"

    def broken(self, make: MakeEncoding) -> MakeEncoding:
        """The builder of the broken encoding, from the builder of the right one."""

        def build_broken(shape: ModelShape) -> PositionalEncoding:
            encoding = make(shape)
            self.change(encoding)
            return encoding

        return build_broken


# By the choice under configs/pe, what is wrong and what changes.
CONVENTIONS: dict[str, dict[str, Change]] = {
    "sinusoidal": {
        "sine and cosine exchanged": Result("vectors", b.sines_exchanged),
        "exponents m / (pairs - 1), as in Tensor2Tensor and fairseq": Attribute(
            "base", lambda e: e.base ** (e.width / (e.width - 2))
        ),
        "tokens are multiplied by sqrt(d_model) too, as in the paper": Method(
            "embed", b.tokens_times_sqrt_width
        ),
    },
    "alibi": {
        "no interleaving where the number of heads is no power of two": Method(
            "_bias", b.with_slopes(b.geometric_slopes)
        ),
    },
    "t5": {
        "max_distance of the paper, 128": Attribute("max_distance", lambda e: 128),
    },
    "deberta": {
        "position to content uses d(i, j) instead of d(j, i)": Result("_rows", b.rows_of_queries),
    },
    "rope_nope": {
        "the layers are exchanged": Method("for_layer", lambda encoding, right, layer: right(layer + 1)),
    },
}

EMBEDDINGS: dict[str, dict[str, Change]] = {
    "sinusoidal": {
        "tokens and vectors together are multiplied by sqrt(d_model)": Method(
            "embed", b.all_times_sqrt_width
        ),
        "a frequency per column (i instead of 2i)": Method("vectors", b.frequency_per_column(1)),
        "the exponent lacks its factor 2": Attribute("base", lambda e: e.base**0.5),
        "the exponent has its factor 2 twice": Attribute("base", lambda e: e.base**2),
        "the exponent has its factor 2 twice, and a frequency per column": Method(
            "vectors", b.frequency_per_column(2)
        ),
        "the exponent is inverted": Attribute("base", lambda e: 1 / e.base),
        "frequencies are 1 (integer division)": Attribute("base", lambda e: 1.0),
        "frequencies e^-2m (floored)": Attribute("base", lambda e: math.exp(e.width)),
        "linear frequencies": Method("vectors", b.linear_sinusoids),
        "base 1,000": Attribute("base", lambda e: e.base / 10),
        "sines in every column": Result("vectors", b.sines_only),
        "cosines in every column": Result("vectors", b.cosines_only),
        "positions from 1": Method("vectors", b.positions_from_one),
        "position ids are ignored, tokens counted": Method("vectors", b.positions_counted),
        "sequence-first module fed batch-first": Method("embed", b.batch_counted),
    },
    "sinusoidal_scaled": {
        "the learned scale is not applied": Method("vectors", b.scale_unused),
    },
    "learned": {
        "positions from 1": Method("vectors", b.rows_from_one),
        "the encoding is never applied": Method("embed", b.tokens_alone),
    },
    "raw_index": {
        "positions from 1": Method("vectors", b.positions_from_one),
        "in every column (the next layer norm takes it out)": Method("vectors", b.id_in_every_column),
    },
    "scaled_index": {
        "divided by the number of tokens": Method("_fractions", b.id_over_tokens),
    },
    "binary_counter": {
        "lowest bit first": Result("vectors", lambda bits: bits.flip(-1)),
    },
}

ROTATIONS: dict[str, dict[str, Change]] = {
    "rope": {
        "the exponent lacks its factor 2": Attribute("base", lambda e: e.base**0.5),
        "the exponent has its factor 2 twice": Attribute("base", lambda e: e.base**2),
        "the exponent is inverted": Attribute("base", lambda e: 1 / e.base),
        "d_model, not head_dim": Attribute("base", lambda e: e.base ** (1 / e.shape.num_heads)),
        "base 1,000": Attribute("base", lambda e: e.base / 10),
        "the base is not passed on (10,000 stays)": Attribute("base", lambda e: 10000.0),
        "half of it rotates": Attribute("pairs", lambda e: max(1, e.pairs // 2)),
        "frequencies in reverse order": Result("frequencies_BR", lambda f: f.flip(-1)),
        "exponents from 1": Method("frequencies_BR", b.exponents_from_one),
        "exponents m / (pairs - 1)": Attribute("base", lambda e: e.base ** (e.pairs / max(1, e.pairs - 1))),
        "linear frequencies": Method("frequencies_BR", b.linear_frequencies),
        "frequencies in bfloat16": Result("frequencies_BR", lambda f: f.bfloat16().double()),
        "frequencies in float16": Result("frequencies_BR", lambda f: f.half().double()),
        "keys rotate the other way": Result("_rotations", b.keys_turn_back),
        "cos and sin exchanged for queries": Result("_rotations", b.cos_for_sin_of_queries),
        "keys are one position ahead": Positions("_rotations", b.keys_ahead),
        "queries are one position ahead": Positions("_rotations", b.queries_ahead),
        "the offset of the first row serves all rows while decoding": Positions(
            "_rotations", b.cached_queries_of_first_row
        ),
        "the ids of the first row serve all rows": Positions("_rotations", b.both_of_first_row),
        "the query of a cached step is counted from 0": Positions("_rotations", b.as_first_keys),
        "the query of a cached step is one position behind": Positions("_rotations", b.cached_queries_behind),
        "position ids are ignored, tokens counted": Positions("_rotations", b.counted),
        "position ids are ignored, tokens counted anew in every call": Positions(
            "_rotations", b.counted_in_every_call
        ),
        "rotated twice": Positions("_rotations", b.both_doubled),
        "positions in bfloat16": Positions("_rotations", b.in_bfloat16),
        "positions in float16": Positions("_rotations", b.in_float16),
        "angles in bfloat16": Method("_rotations", b.angles_in_bfloat16),
        "cos and sin in bfloat16": Result("_rotations", b.tables_in_bfloat16),
        "rotate_half without its minus": Result("_tables", b.sines_without_minus),
        "half-split angles on interleaved channels": Method(
            "rotate", b.paired(b.stacked_across, b.angles_twice)
        ),
        "interleaved angles on half-split channels": Method(
            "rotate", b.paired(b.halves_across, b.angles_repeated)
        ),
        "only queries rotate": Method("rotate", b.only_queries),
        "only keys rotate": Method("rotate", b.only_keys),
        "logits scaled twice": Method("rotate", b.scaled_twice),
        "heads are counted in place of tokens": Method("rotate", b.heads_for_tokens),
        "keys left of the text stay uninitialised": Method("rotate", b.keys_left_of_text_unset),
        "keys converted between layouts with too few heads": Method("rotate", b.keys_permuted),
    },
    "rope_partial": {
        "frequencies of the whole head": Attribute(
            "base", lambda e: e.base ** (2 * e.pairs / e.shape.head_dim)
        ),
        "the whole head rotates": Method("rotate", b.whole_head_rotates),
    },
    "p_rope": {
        "the fastest frequencies are set to 0": Method("frequencies_BR", b.fastest_frequencies_zero),
        "frequencies spread over the pairs that rotate": Method("frequencies_BR", b.frequencies_spread),
    },
    "rope_linear": {
        "positions multiplied by the factor": Method("frequencies_BR", b.positions_times_factor),
    },
    "rope_ntk": {
        "the base is multiplied by the factor itself": Method("frequencies_BR", b.base_times_factor),
    },
    "rope_dynamic_ntk": {
        "the factor is not taken back at the training length": Method("stretch_B", b.factor_not_taken_back),
        "the factor does not follow the length": Method("stretch_B", b.factor_fixed),
        "the factor follows the tokens so far": Method("times_longer_B", b.factor_of_tokens_so_far),
    },
    "rope_yarn": {
        "the ramp is upside down": Result("interpolated_share", lambda share: 1 - share),
        "cos and sin are not scaled": Method("_rotations", b.unscaled_rotations),
        "cos and sin are scaled twice": Method("_rotations", b.scale_squared),
        "the current length in place of the original one": Method("_pair_with", b.ramp_of_current_length),
    },
    "xpos": {
        "keys grow with their position as queries do": Method("_rotations", b.keys_grow_too),
        "queries and keys have centres of their own": Method("_rotations", b.separate_centres),
        "logits grow with distance": Result("_scales", torch.reciprocal),
    },
    "pope": {
        "the sign of delta": Method("rotate", b.delta_negated),
        "magnitudes without softplus": Method("rotate", b.without_softplus),
        "RoPE's frequencies, each twice": Method("_rotations", b.frequencies_of_rope_twice),
    },
}

BIASES: dict[str, dict[str, Change]] = {
    "alibi": {
        "slopes for twice the heads": Method("_bias", b.with_slopes(b.slopes_of_twice_the_heads)),
        "slopes of the next power of two, of which the first are kept (padded heads)": Method(
            "_bias", b.with_slopes(b.slopes_of_padded_heads)
        ),
        "the extra heads take the first slopes of twice the heads, not every other one": Method(
            "_bias", b.with_slopes(b.extra_slopes_not_interleaved)
        ),
        "slopes 1/2, 1/4, 1/8, ... at any number of heads": Method("_bias", b.with_slopes(b.halving_slopes)),
        "heads counted from 0": Method("_bias", b.with_slopes(b.slopes_from_zero)),
        "heads in reverse order": Result("_bias", lambda bias: bias.flip(1)),
        "one slope for all heads": Result("_bias", lambda bias: bias[:, :1].expand_as(bias)),
        "far keys are favoured (sign)": Result("_bias", torch.neg),
        "added before the scale": TimesHeadDim("_bias", -0.5),
        "the bias in bfloat16": Result("_bias", b.bfloat16_bias),
        "the bias in float16": Result("_bias", b.float16_bias),
        "the query of a cached step is counted from 0": Positions("_bias", b.as_first_keys),
        "position ids are ignored, tokens counted": Positions("_bias", b.counted),
    },
    "alibi_asymmetric": {
        "keys to the right are the nearer ones": Positions("_bias", b.mirrored),
    },
    "t5": {
        "distance sign": Positions("_bias", b.mirrored),
        "two-sided buckets in a decoder, one-sided ones in an encoder": Method(
            "_bias", b.buckets_of_the_other_form
        ),
        "max_distance is one too large": Attribute("max_distance", lambda e: e.max_distance + 1),
        "max_distance is one too small": Attribute("max_distance", lambda e: e.max_distance - 1),
        "distances are clipped, without a logarithm": Method("_bias", b.distances_clipped),
        "buckets are rounded up": Method("_bias", b.buckets_rounded_up),
        "distances off by one": Positions("_bias", b.queries_ahead),
        "added before the scale": TimesHeadDim("_bias", -0.5),
        "the query of a cached step is counted from 0": Positions("_bias", b.as_first_keys),
    },
    "kerple_log": {
        "far keys are favoured (sign)": Result("_bias", torch.neg),
        "p and a exchanged": Exchanged("_bias", "p_H", "a_H"),
        "the logarithm to base 2": Result("_bias", lambda bias: bias / math.log(2)),
    },
    "kerple_power": {
        "p and a exchanged": Exchanged("_bias", "p_H", "a_H"),
        "far keys are favoured (sign)": Result("_bias", torch.neg),
    },
    "fire": {
        "min in place of max": Method("bias", b.with_share(b.share_of_smaller)),
        "the share is taken before the logarithm": Method("bias", b.with_share(b.share_before_logarithm)),
        "queries counted from 1": Positions("bias", b.both_ahead),
    },
    "sliding_window": {
        "one position too wide": Attribute("window", lambda e: e.window + 1),
    },
    "hard_alibi": {
        "windows start at 2 tokens": Method("_bias", b.windows_from_two),
        "the last heads have the windows": Result("_bias", lambda bias: bias.flip(1)),
    },
    "shaw": {
        "sign of the distance before clipping": Positions("bias", b.mirrored),
        "not scaled": TimesHeadDim("bias", 0.5),
    },
}

OTHERS: dict[str, dict[str, Change]] = {
    "logn": {
        "the position id in place of the number of keys": Method("rotate", b.id_for_number_of_keys),
        "subtracted instead of multiplied": Method("rotate", b.unscaled_queries),
    },
    "ssmax": {
        "the query itself is not counted": Method("rotate", b.earlier_keys_counted),
        "the length is left out": Method("rotate", b.length_left_out),
    },
    "transformer_xl": {
        "distance sign": Positions("_split", b.mirrored),
        "the relative shift is off by one": Positions("_split", b.queries_ahead),
        "u and v exchanged": Exchanged("bias", "u_HK", "v_HK"),
        "u is left out": Unused("bias", "u_HK"),
        "v is left out": Unused("bias", "v_HK"),
        "the relative shift of a decoder in encoders": Method("bias", b.shifted_as_in_a_decoder),
    },
    "deberta": {
        "distance sign": Positions("_rows", b.mirrored),
        "scaled for one term instead of three": Method("bias", b.scaled_for_one_term),
        "position to content is left out": Unused("bias", "query_map_LDD"),
        "content to position is left out": Unused("bias", "key_map_LDD"),
    },
    "cope": {
        "gates before the mask (the future is counted)": Method("bias", b.gates_of_the_future),
        "the interpolated logit is scaled too": TimesHeadDim("bias", -0.5),
        "gates without the scale": Method("bias", b.gates_unscaled),
    },
    "fox": {
        "the key's own gate counts": Method("bias", b.own_gate_counts),
        "the sum of gates without the logarithm": Method("bias", b.gates_without_logarithm),
        "what is remembered grows (sign)": Result("bias", torch.neg),
    },
    "stick_breaking": {
        "the stick is broken from the far end": Method("weights", b.broken_from_the_far_end),
        "the query takes a share of its own": Method("weights", b.query_takes_a_share),
    },
    "dape": {
        "the bias is not added": Method("bias", b.bias_left_out),
        "ReLU in place of leaky ReLU": Attribute("mlp", b.with_plain_relu),
    },
    "path": {
        "beta without its factor 2": Result("reflections", lambda made: (made[0], made[1] / 2)),
        "w is not scaled to length 1": Method("reflections", b.unnormalised),
        "the convolution looks one token ahead": Method("reflections", b.convolved_ahead),
    },
    "rope_ssmax": {
        "the second encoding is never applied": Result("_at_layer", lambda parts: parts[:1]),
    },
}

# Public projects in which a mistake was reported.
REPORTS = {
    "sinusoidal: the exponent is inverted": "WaveGrad #12",
    "sinusoidal: frequencies are 1 (integer division)": "BERT-pytorch #18",
    "sinusoidal: frequencies e^-2m (floored)": "LoFTR #41",
    "rope: the base is not passed on (10,000 stays)": "torchtune #1341",
    "rope: frequencies in bfloat16": "gpt-neox #1003",
    "rope: the offset of the first row serves all rows while decoding": "mlx #3494",
    "rope: keys left of the text stay uninitialised": "fla #967",
    "rope: keys converted between layouts with too few heads": "llama.cpp #3364",
    "rope_partial: the whole head rotates": "pie #602",
    "rope_dynamic_ntk: the factor does not follow the length": "vLLM #3488, #41236",
    "rope_dynamic_ntk: the factor follows the tokens so far": "transformers",
    "rope_yarn: the current length in place of the original one": "TransformerLens #910",
    "alibi: the query of a cached step is counted from 0": "x-transformers",
    "t5: the query of a cached step is counted from 0": "candle #899",
    "transformer_xl: the relative shift is off by one": "labml #185",
    "transformer_xl: the relative shift of a decoder in encoders": "espnet #2684",
}


def _named(table: dict[str, dict[str, Change]], convention: bool = False) -> dict[str, Mistake]:
    """The rows of a table by name."""
    rows = [(encoding, what, change) for encoding, part in table.items() for what, change in part.items()]
    mistakes = [Mistake(encoding, what, change, convention) for encoding, what, change in rows]
    return {mistake.name: mistake for mistake in mistakes}


MISTAKES = _named(CONVENTIONS, convention=True)
for table in (EMBEDDINGS, ROTATIONS, BIASES, OTHERS):
    MISTAKES |= _named(table)

# Mistakes that any encoding can have, without its name.
COMMON: dict[str, Change] = {
    "position ids are ignored, tokens counted": EveryHook(b.counted, b.counted_alone),
    "every token has the position of the last one": EveryHook(b.all_at_last, b.at_last),
    "every token has position 0": EveryHook(b.all_at_zero, torch.zeros_like),
    "positions from 1": EveryHook(b.both_ahead, lambda ids: ids + 1),
    "positions run backwards": EveryHook(b.mirrored, b.from_the_end),
    "positions are doubled": EveryHook(b.both_doubled, lambda ids: 2 * ids),
    "positions are halved and rounded down": EveryHook(b.halved, lambda ids: ids // 2),
    "the ids of the first row serve all rows": EveryHook(b.both_of_first_row, lambda ids: ids[:1]),
    "queries are one position ahead": EveryHook(b.queries_ahead),
    "keys are one position ahead": EveryHook(b.keys_ahead),
    "the query of a cached step is counted from 0": EveryHook(b.as_first_keys),
    "the query of a cached step is one position behind": EveryHook(b.cached_queries_behind),
    "the offset of the first row serves all rows while decoding": EveryHook(b.cached_queries_of_first_row),
    "it has no effect while decoding with cached keys": NothingWhileDecoding(),
    "positions in bfloat16": EveryHook(b.in_bfloat16, lambda ids: ids.bfloat16()),
    "positions in float16": EveryHook(b.in_float16, lambda ids: ids.half()),
}


def common_mistakes(encoding: str) -> list[Mistake]:
    """The common mistakes of an encoding that its own list does not have."""
    mistakes = (Mistake(encoding, what, change) for what, change in COMMON.items())
    return [mistake for mistake in mistakes if mistake.name not in MISTAKES]
