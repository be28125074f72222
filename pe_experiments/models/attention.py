"""Multi-head attention with interchangeable implementations.

Shapes: B batch, T queries, S keys, H heads, K head_dim, D d_model. An implementation maps rotated
q and k, v and a weighting to the weighted values. All implementations agree up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pe_experiments.encodings import AttentionContext, ModelShape, PositionalEncoding
from pe_experiments.encodings.base import PositionBias
from pe_experiments.encodings.softmax import MASKED, Softmax, biased_mask
from pe_experiments.encodings.tensors import at_least_float32
from pe_experiments.models.attention_parts import AttentionPart, QkNorm
from pe_experiments.models.cpu import UNPACKED, Linear, Unpacked, fused_kernel_is_faster, rounded_up

BLOCK_LOGITS = 1 << 21  # logits or biases computed at a time by `blocked`: 8 MB in float32
FEWEST_QUERIES = 16  # of a block, because each block costs time of its own
KEY_STEPS = 16  # different numbers of keys that blocks of a row read
LONG = 2048  # tokens from which a length x length tensor is worth avoiding


@dataclass(frozen=True)
class Weighting:
    """How queries and keys become attention weights.

    Attributes:
        encoding: rotates queries and keys and adds a bias to their logits, or computes the weights itself.
        at: the positions.
        sink_H: logit of a further key without a value, for each head; None if there is none.
        softmax: takes the place of softmax (``model.attention``); None means softmax.
        qk_norm: normalises rotated queries and keys (``model.qk_norm=after``); None means no norm there.
    """

    encoding: PositionalEncoding
    at: AttentionContext
    sink_H: Tensor | None = None
    softmax: Softmax | None = None
    qk_norm: QkNorm | None = None

    @property
    def needs_weights(self) -> bool:
        """Return whether the fused kernel cannot compute these weights."""
        return self.softmax is not None or needs_weights(self.encoding)

    def rotated(self, q_BHTK: Tensor, k_BHSK: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries and keys as the encoding rotates them, normalised after that if asked for.

        An encoding that computes its own weights rotates by itself.
        """
        if makes_weights(self.encoding):
            return q_BHTK, k_BHSK
        q_BHTK, k_BHSK = self.encoding.rotate(q_BHTK, k_BHSK, self.at)
        return (q_BHTK, k_BHSK) if self.qk_norm is None else self.qk_norm.of_rotated(q_BHTK, k_BHSK)

    def of(self, q_BHTK: Tensor, k_BHSK: Tensor) -> Tensor:
        """Return attention weights [B, H, T, S] of rotated queries and keys."""
        if makes_weights(self.encoding):
            return self.encoding.weights(q_BHTK, k_BHSK, self.at)
        if self.sink_H is None and self.softmax is None:
            return self.encoding.softmax_weights(q_BHTK, k_BHSK, self.at)
        bias = self.encoding.bias(q_BHTK, k_BHSK, self.at)
        logits_BHTS = self.encoding.scaled_logits(q_BHTK, k_BHSK) + biased_mask(bias, self.at)
        if self.softmax is not None:
            return self.softmax(logits_BHTS.clamp(min=MASKED))  # finite: 0 times infinity has no gradient
        assert self.sink_H is not None  # the logit of a further key, which is left out of the result
        sink_BHT1 = self.sink_H.to(logits_BHTS.dtype)[:, None, None].expand(*logits_BHTS.shape[:-1], 1)
        return torch.softmax(torch.cat([logits_BHTS, sink_BHT1], dim=-1), dim=-1)[..., :-1]


def eager(q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, weighting: Weighting) -> Tensor:
    """Compute the weights, then the weighted sum. Fastest for training on short rows on a CPU."""
    weights_BHTS = weighting.of(q_BHTK, k_BHSK)
    return weighting.encoding.read(weights_BHTS, v_BHSK, weighting.at)


def sdpa(q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, weighting: Weighting) -> Tensor:
    """Call PyTorch's fused kernel with the bias as its additive mask, and a sink as a key without a value."""
    encoding, sink_H = weighting.encoding, weighting.sink_H
    bias = encoding.bias(q_BHTK, k_BHSK, weighting.at)
    mask = biased_mask(bias, weighting.at)
    if sink_H is not None:
        mask = mask.expand(-1, len(sink_H), -1, -1)
        sink_BHT1 = sink_H.to(mask.dtype)[:, None, None].expand(*mask.shape[:-1], 1)
        mask = torch.cat([mask, sink_BHT1], dim=-1)
        k_BHSK, v_BHSK = F.pad(k_BHSK, (0, 0, 0, 1)), F.pad(v_BHSK, (0, 0, 0, 1))
    if bias is not None or sink_H is not None:
        # The kernel needs a mask of q's dtype, and bfloat16 cannot represent distances.
        q_BHTK, k_BHSK, v_BHSK = (at_least_float32(x) for x in (q_BHTK, k_BHSK, v_BHSK))
    with torch.autocast(q_BHTK.device.type, enabled=False):
        scale = encoding.shape.head_dim**-0.5
        mask = mask.to(q_BHTK.dtype)
        return F.scaled_dot_product_attention(q_BHTK, k_BHSK, v_BHSK, attn_mask=mask, scale=scale)


def blocked(q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, weighting: Weighting) -> Tensor:
    """Compute a few query rows at a time, so that memory grows linearly with the length.

    In a causal model a block reads hardly more than the keys up to its last query, which halves the work. A
    softmax of the user's gets all keys, because its weights may depend on their number.
    """
    encoding, at = weighting.encoding, weighting.at
    compute = eager if weighting.needs_weights else sdpa
    batch, heads, queries, _ = q_BHTK.shape
    keys = k_BHSK.shape[2]
    sees_later_keys = encoding.looks_ahead or encoding.reads_row or weighting.softmax is not None
    skips_later_keys = encoding.shape.causal and not sees_later_keys
    # The fused kernel stores no logits, so that only a bias takes memory.
    has_one_bias = isinstance(encoding, PositionBias) or type(encoding).bias is PositionalEncoding.bias
    rows = len(at.q_positions_BT) if has_one_bias and not weighting.needs_weights else batch
    size = max(FEWEST_QUERIES, BLOCK_LOGITS // (rows * heads * keys))
    # Allocated once, because small results between large temporaries would fragment the heap.
    y_BHTK = torch.empty(batch, heads, queries, v_BHSK.shape[-1], dtype=v_BHSK.dtype, device=v_BHSK.device)
    # A block of a new size does not fit into the memory that earlier ones freed. With few sizes FIRE takes
    # 0.3 GB at 16,384 tokens, with a size for each block 9 GB.
    step = max(size, keys // KEY_STEPS)
    for start in range(0, queries, size):
        stop = min(start + size, queries)
        seen = min(rounded_up(stop, step), keys) if skips_later_keys else keys
        q_BHtK, k_BHsK, v_BHsK = q_BHTK[:, :, start:stop], k_BHSK[:, :, :seen], v_BHSK[:, :, :seen]
        of_rows = replace(weighting, at=at.query_rows(start, stop, seen))
        y_BHTK[:, :, start:stop] = compute(q_BHtK, k_BHsK, v_BHsK, of_rows)
    return y_BHTK


Implementation = Callable[[Tensor, Tensor, Tensor, Weighting], Tensor]
MakeSoftmax = Callable[[ModelShape], Softmax]
IMPLEMENTATIONS: dict[str, Implementation] = {"eager": eager, "sdpa": sdpa, "blocked": blocked}


def makes_weights(encoding: PositionalEncoding) -> bool:
    """Return whether the encoding computes weights other than the masked softmax of its logits."""
    return type(encoding).weights is not PositionalEncoding.weights


def needs_weights(encoding: PositionalEncoding) -> bool:
    """Return whether the fused kernel cannot compute this encoding."""
    return makes_weights(encoding) or encoding.reads_weights


def choose_implementation(implementation: str, q_BHTK: Tensor, weighting: Weighting) -> Implementation:
    """Return the function to call; ``auto`` saves memory on long rows and otherwise takes the fastest."""
    tokens = q_BHTK.shape[2]
    if implementation == "auto" and tokens >= LONG and not torch.is_grad_enabled():
        return blocked
    if weighting.needs_weights:
        return blocked if implementation == "blocked" else eager
    if implementation != "auto":
        return IMPLEMENTATIONS[implementation]
    return sdpa if q_BHTK.is_cuda or fused_kernel_is_faster(weighting.encoding, tokens) else eager


class Attention(nn.Module):
    """Multi-head self-attention with the positions of an encoding and optional parts."""

    def __init__(
        self,
        shape: ModelShape,
        implementation: str = "auto",
        biases: bool = True,
        parts: Sequence[AttentionPart] = (),
        softmax: Softmax | None = None,
    ):
        super().__init__()
        self.shape = shape
        self.implementation = implementation
        self.qkv = Linear(shape.d_model, 3 * shape.d_model, bias=biases)
        self.output = Linear(shape.d_model, shape.d_model, bias=biases)
        self.parts = nn.ModuleList(parts)
        self.softmax = softmax

    def hidden(self, x_ND: Tensor, packing: Unpacked) -> Tensor:
        """Return the hidden states that `forward` takes, from those after the norm."""
        for part in self.parts:
            x_ND = part.hidden(x_ND, packing)  # type: ignore[operator]
        return x_ND

    def forward(
        self, x_ND: Tensor, encoding: PositionalEncoding, at: AttentionContext, packing: Unpacked = UNPACKED
    ) -> Tensor:
        q_BHTK, k_BHTK, v_BHTK = self._heads(packing.pad(self.qkv(x_ND)))
        weighting = self._weighting(encoding, at)
        attend = choose_implementation(self.implementation, q_BHTK, weighting)
        y_BHTK = attend(*weighting.rotated(q_BHTK, k_BHTK), encoding.values(v_BHTK, at), weighting)
        y_BHTK = encoding.outputs(y_BHTK, at)
        y_ND = packing.pack(y_BHTK.transpose(1, 2).flatten(-2))
        for part in self.parts:
            y_ND = part.output(y_ND, packing.residual_rows(x_ND))  # type: ignore[operator]
        return self.output(y_ND)

    def weights(self, x_BTD: Tensor, encoding: PositionalEncoding, at: AttentionContext) -> Tensor:
        """Return the weights [B, H, T, S] of `forward`, even if the implementation does not compute them."""
        q_BHTK, k_BHTK, _ = self._heads(self.qkv(x_BTD))
        weighting = self._weighting(encoding, at)
        return weighting.of(*weighting.rotated(q_BHTK, k_BHTK))

    def _heads(self, qkv_BTQ: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, each [B, H, T, K]."""
        qkv_BT3HK = qkv_BTQ.unflatten(-1, (3, self.shape.num_heads, self.shape.head_dim))
        # One by one, because the gradient of a single permutation would be copied twice.
        q_BHTK, k_BHTK, v_BHTK = (x_BTHK.transpose(1, 2).contiguous() for x_BTHK in qkv_BT3HK.unbind(2))
        for part in self.parts:
            q_BHTK, k_BHTK = part.queries_and_keys(q_BHTK, k_BHTK)  # type: ignore[operator]
        return q_BHTK, k_BHTK, v_BHTK

    def _weighting(self, encoding: PositionalEncoding, at: AttentionContext) -> Weighting:
        logits = [part.sink_logits() for part in self.parts]  # type: ignore[operator]
        sink_H = next((sink_H for sink_H in logits if sink_H is not None), None)
        norms = [part for part in self.parts if isinstance(part, QkNorm) and part.after_rotation]
        return Weighting(encoding, at, sink_H, self.softmax, norms[0] if norms else None)
