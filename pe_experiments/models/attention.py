"""Multi-head attention with interchangeable routes to the same result.

Shapes: B batch, T queries, S keys, H heads, K head_dim, D d_model. A route turns q, k, v and an encoding into
the attended values; all agree to float tolerance.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pe_experiments.encodings import AttentionContext, ModelShape, PositionalEncoding
from pe_experiments.encodings.base import additive_mask, at_least_float32

BLOCK_LOGITS = 1 << 21  # logits made at a time by the blocked route: 8 MB in float32
LONG = 2048  # tokens from which a length x length tensor is worth avoiding
FUSED = 512  # tokens from which the fused kernel's forward pass wins on a CPU, whoever multiplies there


def eager(
    q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, encoding: PositionalEncoding, at: AttentionContext
) -> Tensor:
    """Written out: weights, then the weighted sum. On a CPU the fastest to train with."""
    weights_BHTS = encoding.weights(q_BHTK, k_BHSK, at)
    return weights_BHTS.to(v_BHSK.dtype) @ v_BHSK


def sdpa(
    q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, encoding: PositionalEncoding, at: AttentionContext
) -> Tensor:
    """PyTorch's fused kernel, with the bias as its additive mask."""
    q_BHTK, k_BHSK = encoding.rotate(q_BHTK, k_BHSK, at)
    bias = encoding.bias(q_BHTK, k_BHSK, at)
    mask = at.once(additive_mask) if bias is None else at.once(additive_mask) + bias
    if bias is not None:  # the kernel takes a mask of q's type, and bfloat16 cannot hold distances
        q_BHTK, k_BHSK, v_BHSK = (at_least_float32(x) for x in (q_BHTK, k_BHSK, v_BHSK))
    with torch.autocast(q_BHTK.device.type, enabled=False):
        scale = encoding.shape.head_dim**-0.5
        mask = mask.to(q_BHTK.dtype)
        return F.scaled_dot_product_attention(q_BHTK, k_BHSK, v_BHSK, attn_mask=mask, scale=scale)


def blocked(
    q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, encoding: PositionalEncoding, at: AttentionContext
) -> Tensor:
    """A few query rows at a time: memory grows with the length, not with its square."""
    own_weights = makes_weights(encoding)
    if not own_weights:  # a scheme that makes its own rotates there, block by block
        q_BHTK, k_BHSK = encoding.rotate(q_BHTK, k_BHSK, at)
    batch, heads, queries, _ = q_BHTK.shape
    size = max(1, BLOCK_LOGITS // (batch * heads * k_BHSK.shape[2]))
    # Made at once: small results kept between large temporaries would pin the heap at every block.
    y_BHTK = torch.empty(batch, heads, queries, v_BHSK.shape[-1], dtype=v_BHSK.dtype, device=v_BHSK.device)
    for start in range(0, queries, size):
        rows_BHtK = q_BHTK[:, :, start : start + size]
        here = at.query_rows(start, start + rows_BHtK.shape[2])
        make = encoding.weights if own_weights else encoding.softmax_weights
        weights = make(rows_BHtK, k_BHSK, here)
        y_BHTK[:, :, start : start + size] = weights.to(v_BHSK.dtype) @ v_BHSK
    return y_BHTK


Route = Callable[[Tensor, Tensor, Tensor, PositionalEncoding, AttentionContext], Tensor]
ROUTES: dict[str, Route] = {"eager": eager, "sdpa": sdpa, "blocked": blocked}


def makes_weights(encoding: PositionalEncoding) -> bool:
    """Whether the scheme's weights are something else than the masked softmax of its logits."""
    return type(encoding).weights is not PositionalEncoding.weights


def choose_route(implementation: str, encoding: PositionalEncoding, q_BHTK: Tensor) -> Route:
    """The route to take; ``auto`` decides by device, length and whether gradients are wanted."""
    if makes_weights(encoding):  # no fused kernel has them
        long = implementation == "auto" and q_BHTK.shape[2] >= LONG and not torch.is_grad_enabled()
        return blocked if long or implementation == "blocked" else eager
    if implementation != "auto":
        return ROUTES[implementation]
    if torch.is_grad_enabled():
        return sdpa if q_BHTK.is_cuda else eager  # on a CPU the fused kernel's backward is the slower one
    tokens = q_BHTK.shape[2]
    if tokens >= LONG:
        return blocked
    return sdpa if q_BHTK.is_cuda or tokens >= FUSED else eager


class Attention(nn.Module):
    """Multi-head self-attention. It owns the projections; the encoding owns everything positional."""

    def __init__(self, shape: ModelShape, implementation: str = "auto"):
        super().__init__()
        self.shape = shape
        self.implementation = implementation
        self.qkv = nn.Linear(shape.d_model, 3 * shape.d_model)
        self.output = nn.Linear(shape.d_model, shape.d_model)

    def forward(self, x_BTD: Tensor, encoding: PositionalEncoding, at: AttentionContext) -> Tensor:
        heads = (3, self.shape.num_heads, self.shape.head_dim)
        q_BHTK, k_BHTK, v_BHTK = self.qkv(x_BTD).unflatten(-1, heads).permute(2, 0, 3, 1, 4).unbind(0)
        route = choose_route(self.implementation, encoding, q_BHTK)
        y_BHTK = route(q_BHTK, k_BHTK, v_BHTK, encoding, at)
        return self.output(y_BHTK.transpose(1, 2).flatten(-2))
