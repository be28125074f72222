"""Mistakes reported for public code, and conventions of released models that differ from ours."""

import math

import torch
from torch.nn import functional as F

from pe_experiments.checking.known_mistakes.mistake import (
    Change,
    change_attribute,
    change_method,
    change_result,
    with_ids,
)
from pe_experiments.encodings.rope import Rope

# Sinusoids, RoPE and its extensions.


def multiply_tokens(encoding, original, x, positions):
    return original(x * x.shape[-1] ** 0.5, positions)


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


def factor_of_tokens_so_far(encoding, original, at):
    tokens_so_far = at.q_positions_BT.max().double() + 1
    return (tokens_so_far / encoding.shape.train_length).clamp(min=1)[None]


def fixed_factor(encoding, original, at):
    return torch.tensor([encoding.factor or 1.0], dtype=torch.float64)


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
    """Return a change of ALiBi's slopes to ``slopes_of(heads)``."""

    def bias(encoding, original, at):
        slopes_H11 = slopes_of(encoding.shape.num_heads)[:, None, None]
        return (-slopes_H11 * at.relative_positions_BTS.abs()[:, None]).float()

    return change_method("_bias", bias, **labels)


# Encodings that depend on content.


def leave_later_units(encoding, original, inputs, at):
    """Zero the logits of keys that the query does not see, but not the hidden units that read them."""
    return encoding.mlp(inputs.masked_fill(~at.visible_BTS[:, None], 0))


def shift_by_one_more(encoding, original, q, at):
    return original(q, with_ids(at, lambda i, j: (i + 1, j)))


def shift_as_in_decoder(encoding, original, q, k, at):
    """Return scores in which keys right of a query have the distances of the next query.

    This is the result of a decoder's relative shift in an encoder.
    """
    bias = original(q, k, at)
    if encoding.shape.causal:
        return bias
    keys = k.shape[2]
    scale = encoding.shape.head_dim**-0.5
    last_id = at.k_positions_BS[:, -1:].expand_as(at.q_positions_BT)
    at_last_id = with_ids(at, lambda i, j: (last_id, j))
    unshifted = encoding._split((q + encoding.v_HK[:, None]) * scale, at_last_id)
    rows = F.pad(unshifted, (1, 0)).unflatten(-1, (1, keys + 1)).flatten(-3)[..., keys:]
    shifted = rows.unflatten(-1, (-1, keys)) + (encoding.u_HK[:, None] * scale) @ k.mT
    right_of_query = torch.ones(bias.shape[-2:], dtype=torch.bool).triu(1)
    return torch.where(right_of_query, shifted[..., : bias.shape[2], :], bias)


def scaled_beyond_the_original_length(encoding, original, q, k, at):
    is_longer = at.visible_keys_BT[:, None, :, None] > encoding.shape.original_length
    return torch.where(is_longer, original(q, k, at)[0], q), k


REPORTED: dict[str, dict[str, Change]] = {
    "sinusoidal": {
        "exponents m / (pairs - 1), as in Tensor2Tensor and fairseq": change_attribute(
            "base", lambda e: e.base ** (e.width / (e.width - 2)), convention=True
        ),
        "tokens are multiplied by sqrt(d_model) too, as in the paper": change_method(
            "embed", multiply_tokens, convention=True
        ),
        "the exponent is inverted": change_attribute("base", lambda e: 1 / e.base, projects="WaveGrad #12"),
        "frequencies are 1 (integer division)": change_attribute(
            "base", lambda e: 1.0, projects="BERT-pytorch #18"
        ),
        "frequencies e^-2m (floored)": change_attribute(
            "base", lambda e: math.exp(e.width), projects="LoFTR #41"
        ),
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
        "the whole head rotates": change_method("rotate", rotate_whole_head, projects="pie #602"),
    },
    "rope_dynamic_ntk": {
        "the factor does not follow the length": change_method(
            "stretch_B", fixed_factor, projects="vLLM #3488, #41236"
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
        "the relative shift is off by one": change_method("_split", shift_by_one_more, projects="labml #185"),
        "the relative shift of a decoder in encoders": change_method(
            "bias", shift_as_in_decoder, projects="espnet #2684"
        ),
    },
    "deberta": {
        "position to content uses d(i, j) instead of d(j, i)": change_result(
            "_rows", lambda rows: (rows[0], rows[0].mT), convention=True
        ),
    },
    "dape_v2": {
        "hidden units of later keys are left in": change_method(
            "_convolved", leave_later_units, projects="chuanyang-Zheng/DAPE"
        ),
    },
}
