"""GRAPE (Zhang et al. 2025): positions as group actions; its rotations (M) and additive biases (A)."""

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pe_experiments.encodings import AttentionContext, ModelShape, PositionalEncoding
from pe_experiments.encodings.alibi import alibi_slopes
from pe_experiments.encodings.rope import Rope, frequencies
from pe_experiments.encodings.tensors import at_least_float32, in_float64
from pe_experiments.terminal.errors import one_of

Gate = Literal["key", "query", "both"]
LOG_SCALE = 16.0  # logarithms are stored times 16, so that a step of Adam changes them less


class GrapeM(Rope):
    """GRAPE-M with commuting planes: RoPE whose frequencies are learned, exp(s_m / 16) for pair m.

    s_m starts at 16 ln theta_m, theta_m as in RoPE: untrained, the encoding equals RoPE.

    Source: Zhang et al. 2025, arXiv:2512.07805, and its released code (frequencies shared by the heads).
    Parameters: ``pairs`` per layer. Beyond training: as `Rope`. In decoders and encoders.

    Args:
        base: base of the initial frequencies, greater than 1; 10,000 in the source.
    """

    per_layer = True

    def __init__(self, shape: ModelShape, *, base: float = 10_000.0):
        super().__init__(shape, base=base)
        self.log_frequencies_R = nn.Parameter((LOG_SCALE * frequencies(base, self.pairs).log()).float())

    def frequencies_BR(self, at: AttentionContext) -> Tensor:
        return (in_float64(self.log_frequencies_R) / LOG_SCALE).exp()[None]


class GrapeA(PositionalEncoding):
    """GRAPE-A: ALiBi whose slope depends on content, bias -(i - j) m_h softplus(omega_h) g.

    m_h is ALiBi's slope. g = softplus(u . k_j / sqrt(head_dim)) with ``gate=key``, softplus(v . q_i /
    sqrt(head_dim)) with ``query``, their sum with ``both``; u and v are learned unit vectors per head.

    Source: Zhang et al. 2025, arXiv:2512.07805, and its released code (key-gated, query-gated and
    query-key-gated variants; omega starts where softplus is 1; the code also normalises q and k). Parameters:
    ``num_heads * (1 + gates * head_dim)`` per layer (2 gates with ``both``, else 1). Beyond training: the
    bias falls linearly with distance. Causal only.

    Args:
        gate: ``key``, ``query`` or ``both``.
    """

    causal_only = True
    per_layer = True
    invariant_to = "shift"

    def __init__(self, shape: ModelShape, *, gate: Gate = "key"):
        super().__init__(shape)
        self.gate = one_of(Gate, "gate", gate)
        self.gates = 2 if gate == "both" else 1
        self.omega_H = nn.Parameter(torch.full((shape.num_heads,), math.log(math.expm1(1.0))))
        direction = (shape.num_heads, shape.head_dim)
        self.u_HK = nn.Parameter(torch.randn(direction) * shape.head_dim**-0.5) if gate != "query" else None
        self.v_HK = nn.Parameter(torch.randn(direction) * shape.head_dim**-0.5) if gate != "key" else None

    def bias(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor:
        gate = torch.zeros((), device=q_BHTK.device)
        if self.u_HK is not None:
            gate = gate + self._gate_value(k_BHSK, self.u_HK)[:, :, None]
        if self.v_HK is not None:
            gate = gate + self._gate_value(q_BHTK, self.v_HK)[..., None]
        slopes_H = alibi_slopes(self.shape.num_heads).to(self.omega_H) * F.softplus(self.omega_H)
        return at_least_float32(at.relative_positions_BTS)[:, None] * slopes_H[:, None, None] * gate

    def _gate_value(self, x_BHTK: Tensor, direction_HK: Tensor) -> Tensor:
        """Return softplus(x . direction / sqrt(head_dim)), [B, H, T]."""
        projection_BHT = (at_least_float32(x_BHTK) * F.normalize(direction_HK, dim=-1)[:, None]).sum(-1)
        return F.softplus(projection_BHT * self.shape.head_dim**-0.5)
