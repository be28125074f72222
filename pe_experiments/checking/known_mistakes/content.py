"""Define known mistakes in encodings whose logits or weights depend on the content."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from pe_experiments.checking.known_mistakes.mistake import (
    Change,
    as_convention,
    change_attribute,
    change_method,
    change_positions,
    change_result,
    exchange_parameters,
    reported_in,
    scale_by_head_dim,
    with_ids,
    zero_parameter,
)
from pe_experiments.encodings import AttentionContext
from pe_experiments.encodings.scaled_logits import log_keys

# Scaled logits.


def id_for_number_of_keys(encoding, original, q, k, at):
    logs = (at.q_positions_BT + 1).float().log()[:, None, :, None]
    return q * logs / math.log(encoding.shape.train_length), k


def unscaled_queries(encoding, original, q, k, at):
    """Return q and k unchanged: a term that is the same for all keys of a query has no effect."""
    return q, k


def count_one_key_more(encoding, original, q, k, at):
    logs = (log_keys(at).exp() + 1).log()
    return q * logs / math.log(max(encoding.shape.original_length, 2)), k


def count_earlier_keys(encoding, original, q, k, at):
    earlier_keys = (log_keys(at).exp() - 1).clamp(min=1)
    return q * encoding.scale_H[:, None, None] * earlier_keys.log(), k


# DAPE.


def leave_later_units(encoding, original, inputs, at):
    """Zero the logits of keys that the query does not see, but not the hidden units that read them."""
    return encoding.mlp(inputs.masked_fill(~at.visible_BTS[:, None], 0))


# Transformer-XL and DeBERTa.


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


def scale_for_one_term(encoding, original, q, k, at):
    content = (q * encoding.shape.head_dim**-0.5) @ k.mT
    return 3**0.5 * original(q, k, at) + (3**0.5 - 1) * content


def scaled_beyond_the_original_length(encoding, original, q, k, at):
    is_longer = at.visible_keys_BT[:, None, :, None] > encoding.shape.original_length
    return torch.where(is_longer, original(q, k, at)[0], q), k


# Gates: CoPE and FoX.


def gates_of_the_future(encoding, original, q, k, at):
    all_visible = torch.ones_like(at.visible_BTS)
    return original(q, k, AttentionContext(at.q_positions_BT, at.k_positions_BS, all_visible))


def exchange_rows(encoding, original, q, k, at):
    """Interpolate with the share of the lower row on the upper one."""
    gates = (q @ k.mT * encoding.shape.head_dim**-0.5).sigmoid() * at.visible_BTS[:, None]
    counts = gates.flip(-1).cumsum(-1).flip(-1).clamp(max=encoding.max_position)
    rows = counts.floor().long()
    scores = q @ encoding.table_RK.T
    lower, upper = (scores.gather(-1, r.clamp(max=encoding.max_position)) for r in (rows, rows + 1))
    return torch.lerp(upper, lower, counts - rows)


def own_gate_counts(encoding, original, q, k, at):
    return original(q, k, at) + F.logsigmoid(encoding.gate(at.x_BSD)).mT[:, :, None]


def gates_without_logarithm(encoding, original, q, k, at):
    key_sums = torch.sigmoid(encoding.gate(at.x_BSD)).cumsum(1).transpose(1, 2)
    query_sums = key_sums[:, :, at.first_query : at.first_query + q.shape[2]]
    return query_sums[..., None] - key_sums[:, :, None]


# Stick-breaking, DAPE and PaTH.


def break_from_far_end(encoding, original, q, k, at):
    ids = (at.q_positions_BT, at.k_positions_BS)
    first_query = k.shape[2] - q.shape[2] - at.first_query
    flipped = AttentionContext(*ids, at.visible_BTS.flip(1, 2), first_query=first_query)
    return original(q.flip(2), k.flip(2), flipped).flip(2, 3)


def query_takes_a_share(encoding, original, q, k, at):
    ids = (at.q_positions_BT, at.k_positions_BS)
    return original(q, k, AttentionContext(*ids, at.visible_BTS, first_query=k.shape[2]))


def reflections_without_normalisation(encoding, original, x):
    mixed = encoding.convolution(F.pad(encoding.direction(x).mT, (2, 0)))
    heads = (encoding.shape.num_heads, encoding.shape.head_dim)
    return F.silu(mixed).mT.unflatten(-1, heads).transpose(1, 2), original(x)[1]


MISTAKES: dict[str, dict[str, Change]] = {
    "logn": {
        "nothing is scaled below the original length, as in Qwen": as_convention(
            change_method("rotate", scaled_beyond_the_original_length)
        ),
        "the position id in place of the number of keys": change_method("rotate", id_for_number_of_keys),
        "the logarithm of n + 1": change_method("rotate", count_one_key_more),
        "subtracted instead of multiplied": change_method("rotate", unscaled_queries),
    },
    "ssmax": {
        "the query itself is not counted": change_method("rotate", count_earlier_keys),
        "the length is left out": change_method(
            "rotate", lambda e, original, q, k, at: (q * e.scale_H[:, None, None], k)
        ),
    },
    "transformer_xl": {
        "distance sign": change_positions("_split", lambda i, j: (-i, -j)),
        "the relative shift is off by one": reported_in(
            "labml #185", change_positions("_split", lambda i, j: (i + 1, j))
        ),
        "u and v exchanged": exchange_parameters("bias", "u_HK", "v_HK"),
        "u is left out": zero_parameter("bias", "u_HK"),
        "v is left out": zero_parameter("bias", "v_HK"),
        "the relative shift of a decoder in encoders": reported_in(
            "espnet #2684", change_method("bias", shift_as_in_decoder)
        ),
    },
    "deberta": {
        "position to content uses d(i, j) instead of d(j, i)": as_convention(
            change_result("_rows", lambda rows: (rows[0], rows[0].mT))
        ),
        "distance sign": change_positions("_rows", lambda i, j: (-i, -j)),
        "scaled for one term instead of three": change_method("bias", scale_for_one_term),
        "position to content is left out": zero_parameter("bias", "query_map_LDD"),
        "content to position is left out": zero_parameter("bias", "key_map_LDD"),
    },
    "cope": {
        "gates before the mask (the future is counted)": change_method("bias", gates_of_the_future),
        "the interpolated logit is scaled too": scale_by_head_dim("bias", -0.5),
        "the two rows of an interpolation are exchanged": change_method("bias", exchange_rows),
        "gates without the scale": change_method(
            "bias", lambda e, original, q, k, at: original(q, k * e.shape.head_dim**0.5, at)
        ),
    },
    "fox": {
        "the key's own gate counts": change_method("bias", own_gate_counts),
        "the sum of gates without the logarithm": change_method("bias", gates_without_logarithm),
        "what is remembered grows (sign)": change_result("bias", torch.neg),
    },
    "stick_breaking": {
        "the stick is broken from the far end": change_method("weights", break_from_far_end),
        "the query takes a share of its own": change_method("weights", query_takes_a_share),
    },
    "dape": {
        "the bias is not added": change_method(
            "bias", lambda e, original, q, k, at: original(q, k, at) - e.added.bias(q, k, at)
        ),
        "ReLU in place of leaky ReLU": change_attribute(
            "mlp", lambda e: nn.Sequential(e.mlp[0], nn.ReLU(), e.mlp[2])
        ),
    },
    "dape_v2": {
        "hidden units of later keys are left in": reported_in(
            "chuanyang-Zheng/DAPE", change_method("_convolved", leave_later_units)
        ),
        "later keys are not zeroed": change_method(
            "_convolved", lambda e, original, inputs, at: e.mlp(inputs)
        ),
    },
    "asentmax": {
        "softmax in place of entmax": change_method(
            "weights", lambda e, original, q, k, at: e.logits(q, k, at).softmax(-1)
        ),
        "logits do not grow with the number of keys": change_attribute("scale", lambda e: "none"),
        "no head has a bias": change_method(
            "logits", lambda e, original, q, k, at: original(q, k, at) - e.nape.bias(q, k, at)
        ),
    },
    "repo": {
        "every head has the position of the first": change_result(
            "positions", lambda positions: positions[:, :1].expand_as(positions)
        ),
        "positions are counted on from token to token": change_result(
            "positions", lambda positions: positions.cumsum(-1)
        ),
    },
    "path": {
        "beta without its factor 2": change_result(
            "reflections", lambda w_and_beta: (w_and_beta[0], w_and_beta[1] / 2)
        ),
        "w is not scaled to length 1": change_method("reflections", reflections_without_normalisation),
        "the convolution looks one token ahead": change_method(
            "reflections", lambda e, original, x: (original(F.pad(x[:, 1:], (0, 0, 0, 1)))[0], original(x)[1])
        ),
    },
    "rope_ssmax": {
        "the second encoding is never applied": change_result("_at_layer", lambda parts: parts[:1]),
    },
}
