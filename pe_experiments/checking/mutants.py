"""Mistakes by name: our schemes, each broken in a way people break it.

The tests must catch every one of them, and the checker names the one it finds. A row of `MUTANTS` is
``"choice under configs/pe: mistake": {method: change}``: the method of the scheme's class returns
``change(scheme, right, *its arguments)`` instead, where ``right`` is the method as it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from pe_experiments.checking.historic import HISTORIC
from pe_experiments.checking.rotation_mutants import ROTATIONS, Change, Pair, moved
from pe_experiments.encodings import AttentionContext, ModelShape, PositionalEncoding
from pe_experiments.encodings.alibi import alibi_slopes
from pe_experiments.encodings.fire import EPSILON
from pe_experiments.encodings.scaled_logits import log_keys
from pe_experiments.encodings.sinusoidal import Sinusoidal, sinusoid_vectors
from pe_experiments.encodings.t5 import distance_bucket
from pe_experiments.encodings.windows import window_mask
from pe_experiments.models.backbone import MakeEncoding


def scheme_of(name: str) -> str:
    """The choice under configs/pe that a mutant breaks."""
    return name.partition(":")[0]


def broken(name: str, make: MakeEncoding) -> MakeEncoding:
    """What builds the mutant of that name, from what builds the scheme it breaks."""

    def method(right: Callable[..., Any], change: Change) -> Callable[..., Any]:
        return lambda self, *given: change(self, partial(right, self), *given)

    def make_broken(shape: ModelShape) -> PositionalEncoding:
        scheme = make(shape)
        cls, changes = type(scheme), MUTANTS[name]
        methods = {hook: method(getattr(cls, hook), change) for hook, change in changes.items()}
        scheme.__class__ = type(cls.__name__, (cls,), methods)
        return scheme

    return make_broken


def negated(self: Any, right: Change, *given: Any) -> Tensor:
    return -right(*given)


def times_head_dim(power: float) -> Change:
    return lambda self, right, *given: right(*given) * self.shape.head_dim**power


def from_one(self: Any, right: Change, positions: Tensor) -> Tensor:
    return right(positions + 1)


def mirrored(at: AttentionContext) -> AttentionContext:
    return AttentionContext(-at.q_positions_BT, -at.k_positions_BS, at.visible_BTS)


def own_frequencies(self: Any, right: Change, positions: Tensor) -> Tensor:
    column = torch.arange(self.width, dtype=torch.float64)
    angles = positions[..., None] * self.base ** (-column / self.width)
    return torch.where(column % 2 == 0, angles.sin(), angles.cos()).float()


def geometric_slopes(first: int, heads: int) -> Tensor:
    return 2.0 ** (-8 * torch.arange(first, first + heads, dtype=torch.float64) / heads)


def with_slopes(slopes: Callable[[int], Tensor]) -> dict[str, Change]:
    def bias(self: Any, right: Change, at: AttentionContext) -> Tensor:
        heads = self.shape.num_heads
        return (right(at) * (slopes(heads) / alibi_slopes(heads))[:, None, None]).float()

    return {"_bias": bias}


def with_buckets(max_distance_and_causal: Callable[[Any], tuple[int, bool]]) -> dict[str, Change]:
    def bias(self: Any, right: Change, at: AttentionContext) -> Tensor:
        ends = max_distance_and_causal(self)
        bucket_BTS = distance_bucket(at.relative_positions_BTS, self.num_buckets, *ends)
        return self.table[bucket_BTS].permute(0, 3, 1, 2)

    return {"_bias": bias}


def with_kernel(kernel: Callable[[Tensor, Tensor, Tensor], Tensor]) -> dict[str, Change]:
    """``kernel(p, a, distances)``: the bias of KERPLE."""

    def bias(self: Any, right: Change, at: AttentionContext) -> Tensor:
        p, a = (x.clamp(min=0.01)[:, None, None] for x in (self.p_H, self.a_H))
        return kernel(p, a, at.relative_positions_BTS.abs()[:, None].float())

    return {"_bias": bias}


def with_share(share: Callable[..., Tensor]) -> dict[str, Change]:
    """``share(psi, distances, positions of the queries, limit)``: the input of FIRE's network."""

    def bias(self: Any, right: Change, q: Tensor, k: Tensor, at: AttentionContext) -> Tensor:
        distance, query = at.relative_positions_BTS.abs().float(), at.q_positions_BT[:, :, None].float()
        share_BTS = share(self._psi, distance, query, (self.stretch * self.threshold).abs())
        return self.mlp(share_BTS[..., None]).permute(0, 3, 1, 2)

    return {"bias": bias}


def wider_windows(self: Any, right: Change, at: AttentionContext) -> Tensor:
    head_H = torch.arange(self.shape.num_heads)
    return window_mask(at, torch.where(head_H < self.windowed_heads, head_H + 2.0, torch.inf))


def u_and_v_exchanged(self: Any, right: Change, q: Tensor, k: Tensor, at: AttentionContext) -> Tensor:
    moved = (self.u_HK - self.v_HK)[:, None]
    return right(q + moved, k, at) - (moved * self.shape.head_dim**-0.5) @ k.mT


def gates_without_logarithm(self: Any, right: Change, q: Tensor, k: Tensor, at: AttentionContext) -> Tensor:
    kept_BHS = torch.sigmoid(self.gate(at.x_BSD)).cumsum(1).transpose(1, 2)
    queries = slice(at.first_query, at.first_query + q.shape[2])
    return kept_BHS[:, :, queries, None] - kept_BHS[:, :, None]


def stick_left_by(first_masked: int, left_by: Callable[[Tensor], Tensor]) -> dict[str, Change]:
    """Stick-breaking with ``left_by`` of ln(1 - share) in place of the sum over nearer keys."""

    def weights(self: Any, right: Change, q: Tensor, k: Tensor, at: AttentionContext) -> Tensor:
        z = (q * self.shape.head_dim**-0.5) @ k.mT
        masked = torch.ones(z.shape[-2:], dtype=torch.bool).triu(first_masked)
        left = left_by(F.logsigmoid(-z).masked_fill(masked, 0.0))
        return (F.logsigmoid(z) + left).exp().masked_fill(masked, 0.0)

    return {"weights": weights}


def relu(self: Any, right: Change, q: Tensor, k: Tensor, at: AttentionContext) -> Tensor:
    self.mlp[1].negative_slope = 0.0
    return right(q, k, at)


def unnormalised(self: Any, right: Change, x_BSD: Tensor) -> Pair:
    mixed_BWS = self.convolution(F.pad(self.direction(x_BSD).mT, (2, 0)))
    w_BSHK = F.silu(mixed_BWS).mT.unflatten(-1, (self.shape.num_heads, self.shape.head_dim))
    return w_BSHK.transpose(1, 2), right(x_BSD)[1]


MUTANTS: dict[str, dict[str, Change]] = {
    **HISTORIC,
    "sinusoidal: sine and cosine exchanged": {
        "vectors": lambda self, right, p: right(p).unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    },
    "sinusoidal: every column has a frequency of its own (exponent i instead of 2i)": {
        "vectors": own_frequencies
    },
    "sinusoidal: the exponent lacks its factor 2": {
        "vectors": lambda self, right, p: sinusoid_vectors(p, self.width, self.base**0.5).float()
    },
    "sinusoidal: positions from 1": {"vectors": from_one},
    "sinusoidal: base 1,000": {
        "vectors": lambda self, right, p: sinusoid_vectors(p, self.width, self.base / 10).float()
    },
    "sinusoidal: sequence-first module fed batch-first (one constant vector per row)": {
        "embed": lambda self, right, x, p: x + self.vectors(torch.arange(x.shape[0])[:, None])
    },
    "sinusoidal_scaled: the learned scale is not applied": {
        "vectors": lambda self, right, p: Sinusoidal.vectors(self, p) + 0 * self.alpha
    },
    "learned: positions from 1": {"vectors": lambda self, right, p: right((p + 1) % len(self.table))},
    "learned: the encoding is never applied": {"embed": lambda self, right, x, p: x},
    "raw_index: positions from 1": {"vectors": from_one},
    "raw_index: in every column (the next layer norm takes it out)": {
        "vectors": lambda self, right, p: p[..., None].float().expand(-1, -1, self.width)
    },
    "scaled_index: divided by the number of tokens": {
        "vectors": lambda self, right, p: F.pad((p / p.shape[1])[..., None], (0, self.width - 1))
    },
    "binary_counter: lowest bit first": {"vectors": lambda self, right, p: right(p).flip(-1)},
    **ROTATIONS,
    # The same change for all keys is not seen by a softmax.
    "logn: subtracted instead of multiplied": {
        "rotate": lambda self, right, q, k, at: (q, k),
        "bias": lambda self, right, q, k, at: -log_keys(at),
    },
    "logn: the position id in place of the number of keys": {
        "rotate": lambda self, right, q, k, at: (
            q * (at.q_positions_BT + 1).float().log()[:, None, :, None] / math.log(self.shape.train_length),
            k,
        )
    },
    "ssmax: the query itself is not counted": {
        "rotate": lambda self, right, q, k, at: (
            q * self.scale_H[:, None, None] * (log_keys(at).exp() - 1).clamp(min=1).log(),
            k,
        )
    },
    "ssmax: the scale is learned, the length left out": {
        "rotate": lambda self, right, q, k, at: (q * self.scale_H[:, None, None], k)
    },
    "alibi: slopes for the wrong number of heads": with_slopes(lambda heads: alibi_slopes(2 * heads)[:heads]),
    "alibi: heads counted from 0": with_slopes(lambda heads: geometric_slopes(0, heads)),
    "alibi: no interleaving where the number of heads is no power of two": with_slopes(
        lambda heads: geometric_slopes(1, heads)
    ),
    "alibi: heads in reverse order": with_slopes(lambda heads: alibi_slopes(heads).flip(0)),
    "alibi: one slope for all heads": with_slopes(lambda heads: alibi_slopes(heads)[:1].expand(heads)),
    "alibi: far keys are favoured (sign)": {"_bias": negated},
    "alibi: added before the scale": {"_bias": times_head_dim(-0.5)},
    "alibi_asymmetric: keys to the right are the nearer ones": {
        "_bias": lambda self, right, at: right(mirrored(at))
    },
    "t5: distance sign": {"_bias": lambda self, right, at: right(mirrored(at))},
    "t5: two-sided buckets in a decoder, one-sided ones in an encoder": with_buckets(
        lambda t5: (max(t5.max_distance, t5.num_buckets), not t5.shape.causal)
    ),
    "t5: max_distance of the paper, 128": with_buckets(lambda t5: (128, t5.shape.causal)),
    "t5: distances off by one": {"_bias": lambda self, right, at: right(moved(at, queries=1))},
    "t5: added before the scale": {"_bias": times_head_dim(-0.5)},
    "kerple_log: far keys are favoured (sign)": {"_bias": negated},
    "kerple_log: p and a exchanged": with_kernel(lambda p, a, distance: -a * torch.log1p(p * distance)),
    "kerple_power: p and a exchanged": with_kernel(lambda p, a, distance: -p * distance**a),
    "kerple_power: far keys are favoured (sign)": {"_bias": negated},
    "fire: min in place of max": with_share(
        lambda psi, distance, query, limit: psi(distance) / (psi(torch.minimum(query, limit)) + EPSILON)
    ),
    "fire: the share is taken before the logarithm": with_share(
        lambda psi, distance, query, limit: psi(distance / torch.maximum(query, limit))
    ),
    "fire: queries counted from 1": with_share(
        lambda psi, distance, query, limit: psi(distance) / (psi(torch.maximum(query + 1, limit)) + EPSILON)
    ),
    "sliding_window: one position too wide": {
        "_bias": lambda self, _, at: window_mask(at, torch.tensor([self.window + 1.0]))
    },
    "hard_alibi: windows start at 2 tokens": {"_bias": wider_windows},
    "hard_alibi: the last heads have the windows": {"_bias": lambda self, right, at: right(at).flip(1)},
    "shaw: sign of the distance before clipping": {
        "bias": lambda self, right, q, k, at: right(q, k, mirrored(at))
    },
    "shaw: not scaled": {"bias": times_head_dim(0.5)},
    "transformer_xl: distance sign": {"_distances": lambda self, right, q, at: right(q, mirrored(at))},
    "transformer_xl: the relative shift is off by one": {
        "_distances": lambda self, right, q, at: right(q, moved(at, queries=1))
    },
    "transformer_xl: u and v exchanged": {"bias": u_and_v_exchanged},
    "deberta: position to content uses d(i, j) instead of d(j, i)": {
        "_rows": lambda self, right, at: (right(at)[0], right(at)[0].mT)
    },
    "deberta: distance sign": {"_rows": lambda self, right, at: right(mirrored(at))},
    "deberta: scaled for one term instead of three": {
        "rotate": lambda self, right, q, k, at: (q, k),
        "bias": lambda self, right, q, k, at: right(q, k * 3**0.5, at),
    },
    "cope: gates before the mask (the future is counted)": {
        "bias": lambda self, right, q, k, at: right(
            q, k, AttentionContext(at.q_positions_BT, at.k_positions_BS, torch.ones_like(at.visible_BTS))
        )
    },
    "cope: the interpolated logit is scaled too": {"bias": times_head_dim(-0.5)},
    "cope: gates from logits without the scale": {
        "bias": lambda self, right, q, k, at: right(q, k * self.shape.head_dim**0.5, at)
    },
    "fox: the key's own gate counts": {
        "bias": lambda self, right, q, k, at: (
            right(q, k, at) + F.logsigmoid(self.gate(at.x_BSD)).mT[:, :, None]
        )
    },
    "fox: the sum of gates without the logarithm": {"bias": gates_without_logarithm},
    "fox: what is remembered grows (sign)": {"bias": negated},
    "stick_breaking: the stick is broken from the far end": stick_left_by(
        0, lambda left: F.pad(left.cumsum(-1)[..., :-1], (1, 0))
    ),
    "stick_breaking: the query takes a share of its own": stick_left_by(
        1, lambda left: F.pad(left.flip(-1).cumsum(-1).flip(-1)[..., 1:], (0, 1))
    ),
    "dape: the bias itself is not added": {
        "bias": lambda self, right, q, k, at: right(q, k, at) - self.added.bias(q, k, at)
    },
    "dape: ReLU in place of leaky ReLU": {"bias": relu},
    "path: beta without its factor 2": {"reflections": lambda self, right, x: (right(x)[0], right(x)[1] / 2)},
    "path: w is not scaled to length 1": {"reflections": unnormalised},
    "path: the convolution looks one token ahead": {
        "reflections": lambda self, right, x: (right(F.pad(x[:, 1:], (0, 0, 0, 1)))[0], right(x)[1])
    },
    "rope_ssmax: the second scheme is never applied": {"_at_layer": lambda self, right, i: right(i)[:1]},
    "rope_nope: the layers are exchanged": {"for_layer": lambda self, right, layer: right(layer + 1)},
}
