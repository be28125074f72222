"""KERPLE (Chi et al. 2022): learned slopes per head on a logarithm or a power of the distance."""

import torch
from torch import Tensor, nn

from pe_experiments.encodings import AttentionContext, ModelShape, PositionBias
from pe_experiments.encodings.tensors import clamped

SMALLEST = 0.01  # lower bound of both parameters, which must be positive, as in the authors' code


class KerpleLog(PositionBias):
    """Bias -p_h ln(1 + a_h |i - j|) on the logit of query i and key j, p and a learned per head.

    Source: Chi et al. 2022, arXiv:2205.09921, section 4, and its released code: one pair per head for all
    layers, p drawn from U(0, 2), a from U(0, 1), both at least 0.01 in use (the released code clips the
    stored parameters). Parameters: ``2 * num_heads``. Beyond training: the bias falls ever more slowly with
    distance. In decoders and encoders (where it cannot tell left from right).
    """

    invariant_to = "shift"

    def __init__(self, shape: ModelShape):
        super().__init__(shape)
        self.p_H = nn.Parameter(_uniform(shape.num_heads, up_to=2.0))
        self.a_H = nn.Parameter(_uniform(shape.num_heads, up_to=1.0))

    def _bias(self, at: AttentionContext) -> Tensor:
        p_H11, a_H11 = (clamped(x_H, SMALLEST)[:, None, None] for x_H in (self.p_H, self.a_H))
        return -p_H11 * torch.log1p(a_H11 * _distance(at, self.p_H))


class KerplePower(PositionBias):
    """Bias -a_h |i - j|^p_h on the logit of query i and key j, a and p <= 2 learned per head.

    Source: Chi et al. 2022, arXiv:2205.09921, section 4, and its released code: one pair per head for all
    layers, a drawn from U(0, 1), p from U(0, 2), both at least 0.01 in use (the released code clips the
    stored parameters). Parameters: ``2 * num_heads``. Beyond training: the bias falls with the learned power
    of the distance. In decoders and encoders (where it cannot tell left from right).
    """

    invariant_to = "shift"

    def __init__(self, shape: ModelShape):
        super().__init__(shape)
        self.a_H = nn.Parameter(_uniform(shape.num_heads, up_to=1.0))
        self.p_H = nn.Parameter(_uniform(shape.num_heads, up_to=2.0))

    def _bias(self, at: AttentionContext) -> Tensor:
        a_H11 = clamped(self.a_H, SMALLEST)[:, None, None]
        p_H11 = clamped(self.p_H, SMALLEST, 2.0)[:, None, None]
        distance_B1TS = _distance(at, self.a_H)
        # Replace distance 0 before taking the power, because the derivative of 0^p in p is nan.
        power_BHTS = distance_B1TS.where(distance_B1TS > 0, 1.0) ** p_H11
        return -a_H11 * power_BHTS.where(distance_B1TS > 0, 0.0)


def _uniform(heads: int, up_to: float) -> Tensor:
    return (torch.rand(heads) * up_to).clamp(min=SMALLEST)


def _distance(at: AttentionContext, like: Tensor) -> Tensor:
    """Return |i - j|, [B, 1, T, S], in the dtype of ``like`` but at least float32."""
    return at.relative_positions_BTS.abs().to(torch.promote_types(like.dtype, torch.float32))[:, None]
