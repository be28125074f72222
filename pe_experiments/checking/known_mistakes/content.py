"""Known mistakes of encodings whose logits or weights depend on the content."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from pe_experiments.checking.known_mistakes.mistake import (
    Change,
    attribute,
    convention,
    exchanged,
    method,
    positions,
    reported,
    result,
    times_head_dim,
    unused,
    with_ids,
)
from pe_experiments.encodings import AttentionContext
from pe_experiments.encodings.scaled_logits import log_keys

# Scaled logits.


def id_for_number_of_keys(encoding, original, q, k, at):
    logs = (at.q_positions_BT + 1).float().log()[:, None, :, None]
    return q * logs / math.log(encoding.shape.train_length), k


def unscaled_queries(encoding, original, q, k, at):
    """Return unscaled queries, since a subtracted term is the same for all keys of a query."""
    return q, k


def earlier_keys_counted(encoding, original, q, k, at):
    earlier = (log_keys(at).exp() - 1).clamp(min=1)
    return q * encoding.scale_H[:, None, None] * earlier.log(), k


# Transformer-XL and DeBERTa.


def shifted_as_in_a_decoder(encoding, original, q, k, at):
    """Return scores whose right keys have distances of the next query, as after a decoder's shift."""
    bias = original(q, k, at)
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


def scaled_for_one_term(encoding, original, q, k, at):
    content = (q * encoding.shape.head_dim**-0.5) @ k.mT
    return 3**0.5 * original(q, k, at) + (3**0.5 - 1) * content


# Gates: CoPE and FoX.


def gates_of_the_future(encoding, original, q, k, at):
    everything = torch.ones_like(at.visible_BTS)
    return original(q, k, AttentionContext(at.q_positions_BT, at.k_positions_BS, everything))


def own_gate_counts(encoding, original, q, k, at):
    return original(q, k, at) + F.logsigmoid(encoding.gate(at.x_BSD)).mT[:, :, None]


def gates_without_logarithm(encoding, original, q, k, at):
    sums = torch.sigmoid(encoding.gate(at.x_BSD)).cumsum(1).transpose(1, 2)
    queries = sums[:, :, at.first_query : at.first_query + q.shape[2]]
    return queries[..., None] - sums[:, :, None]


# Stick-breaking, DAPE and PaTH.


def broken_from_the_far_end(encoding, original, q, k, at):
    ids = (at.q_positions_BT, at.k_positions_BS)
    first_query = k.shape[2] - q.shape[2] - at.first_query
    flipped = AttentionContext(*ids, at.visible_BTS.flip(1, 2), first_query=first_query)
    return original(q.flip(2), k.flip(2), flipped).flip(2, 3)


def query_takes_a_share(encoding, original, q, k, at):
    ids = (at.q_positions_BT, at.k_positions_BS)
    return original(q, k, AttentionContext(*ids, at.visible_BTS, first_query=k.shape[2]))


def not_normalised(encoding, original, x):
    mixed = encoding.convolution(F.pad(encoding.direction(x).mT, (2, 0)))
    heads = (encoding.shape.num_heads, encoding.shape.head_dim)
    return F.silu(mixed).mT.unflatten(-1, heads).transpose(1, 2), original(x)[1]


MISTAKES: dict[str, dict[str, Change]] = {
    "logn": {
        "the position id in place of the number of keys": method("rotate", id_for_number_of_keys),
        "subtracted instead of multiplied": method("rotate", unscaled_queries),
    },
    "ssmax": {
        "the query itself is not counted": method("rotate", earlier_keys_counted),
        "the length is left out": method(
            "rotate", lambda e, original, q, k, at: (q * e.scale_H[:, None, None], k)
        ),
    },
    "transformer_xl": {
        "distance sign": positions("_split", lambda i, j: (-i, -j)),
        "the relative shift is off by one": reported(
            "labml #185", positions("_split", lambda i, j: (i + 1, j))
        ),
        "u and v exchanged": exchanged("bias", "u_HK", "v_HK"),
        "u is left out": unused("bias", "u_HK"),
        "v is left out": unused("bias", "v_HK"),
        "the relative shift of a decoder in encoders": reported(
            "espnet #2684", method("bias", shifted_as_in_a_decoder)
        ),
    },
    "deberta": {
        "position to content uses d(i, j) instead of d(j, i)": convention(
            result("_rows", lambda rows: (rows[0], rows[0].mT))
        ),
        "distance sign": positions("_rows", lambda i, j: (-i, -j)),
        "scaled for one term instead of three": method("bias", scaled_for_one_term),
        "position to content is left out": unused("bias", "query_map_LDD"),
        "content to position is left out": unused("bias", "key_map_LDD"),
    },
    "cope": {
        "gates before the mask (the future is counted)": method("bias", gates_of_the_future),
        "the interpolated logit is scaled too": times_head_dim("bias", -0.5),
        "gates without the scale": method(
            "bias", lambda e, original, q, k, at: original(q, k * e.shape.head_dim**0.5, at)
        ),
    },
    "fox": {
        "the key's own gate counts": method("bias", own_gate_counts),
        "the sum of gates without the logarithm": method("bias", gates_without_logarithm),
        "what is remembered grows (sign)": result("bias", torch.neg),
    },
    "stick_breaking": {
        "the stick is broken from the far end": method("weights", broken_from_the_far_end),
        "the query takes a share of its own": method("weights", query_takes_a_share),
    },
    "dape": {
        "the bias is not added": method(
            "bias", lambda e, original, q, k, at: original(q, k, at) - e.added.bias(q, k, at)
        ),
        "ReLU in place of leaky ReLU": attribute(
            "mlp", lambda e: nn.Sequential(e.mlp[0], nn.ReLU(), e.mlp[2])
        ),
    },
    "path": {
        "beta without its factor 2": result(
            "reflections", lambda w_and_beta: (w_and_beta[0], w_and_beta[1] / 2)
        ),
        "w is not scaled to length 1": method("reflections", not_normalised),
        "the convolution looks one token ahead": method(
            "reflections", lambda e, original, x: (original(F.pad(x[:, 1:], (0, 0, 0, 1)))[0], original(x)[1])
        ),
    },
    "rope_ssmax": {
        "the second encoding is never applied": result("_at_layer", lambda parts: parts[:1]),
    },
}
