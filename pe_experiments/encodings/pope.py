"""PoPE (Gopalakrishnan et al. 2025): content in the magnitude, position in the angle."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pe_experiments.encodings import AttentionContext, ModelShape, PositionalEncoding
from pe_experiments.encodings.rope import Rotations, cos_and_sin, frequencies
from pe_experiments.encodings.tensors import at_least_float32, clamped
from pe_experiments.terminal.errors import above


class Pope(PositionalEncoding):
    """Logit sum_c softplus(q_c) softplus(k_c) cos((i - j) theta_c - delta_c), over sqrt(head_dim).

    Every channel has its own frequency, theta_c = base^(-c/head_dim), c < head_dim (RoPE has half as
    many). Content sets the magnitude and position the angle, independently. delta is learned per head and
    channel, starts at 0 and is clamped to -2 pi .. 0. Rotated queries and keys are twice as wide (a cosine
    and a sine part).

    Source: Gopalakrishnan et al. 2025, arXiv:2509.10534, section 3. Parameters: ``num_heads * head_dim``.
    Beyond training: defined everywhere; slow channels reach untrained angles. In decoders and encoders.

    Args:
        base: greater than 1; 10,000 in the paper.
    """

    invariant_to = "shift"

    def __init__(self, shape: ModelShape, *, base: float = 10_000.0):
        super().__init__(shape)
        self.base = above(1, "base", base)
        self.delta_HK = nn.Parameter(torch.zeros(shape.num_heads, shape.head_dim))

    def rotate(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> tuple[Tensor, Tensor]:
        (cos_q, sin_q), (cos_k, sin_k) = at.once(self._rotations)
        magnitude_q, magnitude_k = (F.softplus(at_least_float32(x)) for x in (q_BHTK, k_BHSK))
        delta_H1K = clamped(self.delta_HK, -2 * math.pi, 0.0)[:, None]
        # Keys rotate by a further delta: cos(a + d) = cos a cos d - sin a sin d.
        cos_d, sin_d = delta_H1K.cos(), delta_H1K.sin()
        rotated_q = torch.cat([magnitude_q * cos_q, magnitude_q * sin_q], dim=-1)
        rotated_k = torch.cat(
            [magnitude_k * (cos_k * cos_d - sin_k * sin_d), magnitude_k * (sin_k * cos_d + cos_k * sin_d)],
            dim=-1,
        )
        return rotated_q.to(q_BHTK.dtype), rotated_k.to(k_BHSK.dtype)

    def _rotations(self, at: AttentionContext) -> Rotations:
        theta_1K = frequencies(self.base, self.shape.head_dim, at.q_positions_BT.device)[None]
        return cos_and_sin(at.q_positions_BT, theta_1K), cos_and_sin(at.k_positions_BS, theta_1K)
