"""NAPE and ASEntmax (Vasylenko et al. 2025): heads with and without a bias, and sparse weights that stay so.

The bias is ALiBi's with other slopes; alpha-entmax gives far keys a weight of exactly 0.
"""

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from pe_experiments.encodings import AttentionContext, ModelShape, PositionalEncoding
from pe_experiments.encodings.alibi import Alibi
from pe_experiments.encodings.scaled_logits import log_keys
from pe_experiments.encodings.softmax import MASKED, Softmax
from pe_experiments.terminal.errors import one_of

Slopes = Literal["linear", "exponential"]
Scale = Literal["adaptive", "learned", "none"]


class Nape(Alibi):
    """NAPE: the first heads have ALiBi's bias -m_h (i - j) with slopes 1, 1/2, 1/3, ...; the others none.

    Source: Vasylenko, Pitorro, Martins and Treviso 2025, arXiv:2506.16640, and its released code
    (deep-spin/asentmax), which uses it with sparse weights, see `AdaptiveEntmax`. Parameters: none. Beyond
    training: the bias falls linearly at any length; the other heads have no positions. In decoders and, with
    -m |i - j|, in encoders.

    Args:
        alibi_heads: number of heads with a bias; None means half of them, rounded down.
        slopes: ``linear`` for 1/h, ``exponential`` for 2^(1-h), h = 1, 2, ...
    """

    def __init__(self, shape: ModelShape, *, alibi_heads: int | None = None, slopes: Slopes = "linear"):
        super().__init__(shape)
        self.alibi_heads = shape.num_heads // 2 if alibi_heads is None else alibi_heads
        if not 0 <= self.alibi_heads <= shape.num_heads:
            raise ValueError(f"alibi_heads={alibi_heads} must be between 0 and num_heads={shape.num_heads}")
        self.slopes = one_of(Slopes, "slopes", slopes)

    def slopes_H(self) -> Tensor:
        slopes_H = torch.zeros(self.shape.num_heads, dtype=torch.float64)
        heads = torch.arange(1, self.alibi_heads + 1, dtype=torch.float64)
        slopes_H[: self.alibi_heads] = 1 / heads if self.slopes == "linear" else 2 ** (1 - heads)
        return slopes_H


class AdaptiveEntmax(PositionalEncoding):
    """ASEntmax: alpha-entmax in place of softmax, with NAPE's bias and logits that grow with the length.

    The logits z are the scaled ones plus `Nape`'s bias. The weight of key j for query i is
    [(alpha - 1) z_ij - tau_i]_+^(1 / (alpha - 1)), where the threshold tau_i makes the sum over keys 1. In
    the heads without a bias, queries that see n keys are first multiplied by 1 + beta (ln (n + 1))^gamma:
        ``adaptive``  beta = softplus(w_beta . x), gamma = 2 tanh(w_gamma . x), x the query's hidden state.
        ``learned``   beta and gamma are parameters, one of each per head.
        ``none``      no factor.

    Source: Vasylenko, Pitorro, Martins and Treviso 2025, arXiv:2506.16640, and its released code
    (deep-spin/asentmax); entmax: Peters et al. 2019, arXiv:1905.05702. Parameters: ``parameters_per_head *
    (num_heads - alibi_heads)`` per layer. Beyond training: weights may stay concentrated on few keys at any
    length. In decoders and encoders.

    Args:
        alpha: above 1 and at most 2; 1.5 in the source. Towards 1 it becomes softmax, 2 is sparsemax.
        scale: one of the above. The vectors w start from N(0, 0.02^2), beta of ``learned`` from 0.1 to 1,
            gamma from N(0, 0.1^2).
        alibi_heads: as in `Nape`; 0 means no bias and a factor in every head.
        slopes: as in `Nape`.
    """

    per_layer = True

    def __init__(
        self,
        shape: ModelShape,
        *,
        alpha: float = 1.5,
        scale: Scale = "adaptive",
        alibi_heads: int | None = None,
        slopes: Slopes = "linear",
    ):
        super().__init__(shape)
        if not 1 < alpha <= 2:
            raise ValueError(f"alpha={alpha} must be above 1 and at most 2")
        self.alpha = alpha
        self.scale = one_of(Scale, "scale", scale)
        self.nape = Nape(shape, alibi_heads=alibi_heads, slopes=slopes)
        self.alibi_heads = self.nape.alibi_heads
        self.invariant_to = "shift" if self.alibi_heads else "ids"
        heads = shape.num_heads - self.alibi_heads
        self.parameters_per_head = {"adaptive": 2 * shape.d_model, "learned": 2, "none": 0}[scale]
        if scale == "adaptive":
            self.strength = nn.Linear(shape.d_model, heads, bias=False)
            self.exponent = nn.Linear(shape.d_model, heads, bias=False)
            for layer in (self.strength, self.exponent):
                nn.init.normal_(layer.weight, std=0.02)
        elif scale == "learned":
            self.beta_h = nn.Parameter(torch.empty(heads).uniform_(0.1, 1.0))
            self.gamma_h = nn.Parameter(torch.empty(heads).normal_(0.0, 0.1))

    def weights(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor:
        return entmax(self.logits(q_BHTK, k_BHSK, at), self.alpha)

    def logits(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor:
        """Return the scaled logits with the bias, BHTS; keys that a query does not see have `MASKED`."""
        logits_BHTS = self.scaled_logits(q_BHTK, k_BHSK)
        if self.scale != "none" and self.alibi_heads < self.shape.num_heads:
            factors_BhT1 = self._factors(at)
            biased, unbiased = logits_BHTS.tensor_split([self.alibi_heads], dim=1)
            logits_BHTS = torch.cat([biased, unbiased * factors_BhT1], dim=1)
        logits_BHTS = logits_BHTS + self.nape.bias(q_BHTK, k_BHSK, at)
        return logits_BHTS.masked_fill(~at.visible_BTS[:, None], MASKED)

    def _factors(self, at: AttentionContext) -> Tensor:
        """Return the factor of each query in the heads without a bias, [B, h, T, 1] in float32 or better."""
        log_BhT1 = log_keys(at, added=1)
        if self.scale == "learned":
            beta_Bh = self.beta_h[:, None, None]
            gamma_Bh = self.gamma_h[:, None, None]
        else:
            with torch.autocast(at.x_BSD.device.type, enabled=False):
                x_BTD = at.x_BSD[:, at.queries].to(self.strength.weight.dtype)
                beta_Bh = F.softplus(self.strength(x_BTD)).mT[..., None]
                gamma_Bh = 2 * torch.tanh(self.exponent(x_BTD)).mT[..., None]
        return 1 + beta_Bh * log_BhT1**gamma_Bh


class _Entmax(torch.autograd.Function):
    """alpha-entmax over the last dimension: the threshold by bisection, the gradient in closed form."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, alpha: float) -> Tensor:
        z = (alpha - 1) * (logits - logits.amax(dim=-1, keepdim=True))
        low = torch.full_like(z[..., :1], -1)  # the sum is at least 1 here
        width = 1 - z.shape[-1] ** (1 - alpha)  # and at most 1 this much further
        for _ in range(30 if z.dtype == torch.float32 else 60):
            width = width / 2
            middle = low + width
            sum_is_above = _powers(z - middle, alpha).sum(dim=-1, keepdim=True) >= 1
            low = middle.where(sum_is_above, low)
        weights = _powers(z - low, alpha)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        ctx.save_for_backward(weights)
        ctx.alpha = alpha
        return weights

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (weights,) = ctx.saved_tensors
        sensitivity = torch.where(weights > 0, weights ** (2 - ctx.alpha), 0)
        mean = (sensitivity * gradient).sum(-1, keepdim=True) / sensitivity.sum(-1, keepdim=True)
        return sensitivity * (gradient - mean), None


def _powers(x: Tensor, alpha: float) -> Tensor:
    """Return max(x, 0)^(1 / (alpha - 1))."""
    return x.clamp(min=0) ** (1 / (alpha - 1))


def entmax(logits: Tensor, alpha: float) -> Tensor:
    """Return the alpha-entmax of logits over the last dimension, 1 < alpha <= 2.

    Source: Peters, Niculae and Martins 2019, arXiv:1905.05702, and its released package (deep-spin/entmax).
    """
    return _Entmax.apply(logits, alpha)


class Entmax(Softmax):
    """alpha-entmax in place of softmax, for any encoding (``model.attention``).

    Source: Peters, Niculae and Martins 2019, arXiv:1905.05702. Parameters: none. Far keys get a weight of
    exactly 0.

    Args:
        alpha: above 1 and at most 2. Towards 1 it becomes softmax, 2 is sparsemax.
    """

    def __init__(self, shape: ModelShape, *, alpha: float = 1.5):
        super().__init__(shape)
        if not 1 < alpha <= 2:
            raise ValueError(f"alpha={alpha} must be above 1 and at most 2")
        self.alpha = alpha

    def forward(self, logits_BHTS: Tensor) -> Tensor:
        return entmax(logits_BHTS, self.alpha)
