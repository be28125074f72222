"""Sandwich (Chi et al. 2023): the inner product of two sinusoidal encodings as a bias."""

import torch
from torch import Tensor

from pe_experiments.encodings import AttentionContext, ModelShape, PositionBias
from pe_experiments.encodings.sinusoidal import sinusoid_vectors
from pe_experiments.encodings.tensors import in_float64

BASE = 10_000.0


class Sandwich(PositionBias):
    """Bias H/(8h) (sum_m cos((i - j) / 10000^(2m/width)) - width/2) for head h = 1 .. H, m = 1 .. width/2.

    The sum is the inner product of two sinusoidal encodings, which falls about logarithmically with distance,
    and not monotonically. The constant width/2 makes the bias 0 at distance 0; a softmax ignores it.

    Source: Chi et al. 2023, arXiv:2212.10356, section 5, and its implementation in NVIDIA NeMo, where m
    counts from 1. Parameters: none. Beyond training: defined at every distance. In decoders and encoders
    (where it cannot tell left from right).

    Args:
        width: even, at least 2; 128 in the paper, independent of the model's width.
    """

    invariant_to = "shift"

    def __init__(self, shape: ModelShape, *, width: int = 128):
        super().__init__(shape)
        if width < 2 or width % 2:
            raise ValueError(f"width={width} must be an even number of at least 2")
        self.width = width

    def _bias(self, at: AttentionContext) -> Tensor:
        products_BTS = self._vectors(at.q_positions_BT) @ self._vectors(at.k_positions_BS).mT
        head_H = torch.arange(1, self.shape.num_heads + 1, dtype=torch.float64, device=products_BTS.device)
        scale_H11 = (self.shape.num_heads / (8 * head_H))[:, None, None]
        bias_BHTS = scale_H11 * (products_BTS - self.width / 2)[:, None]
        return bias_BHTS.float().to(at.q_positions_BT.device)

    def _vectors(self, positions: Tensor) -> Tensor:
        """Return the sinusoidal vectors of the positions, [B, T, width] in float64."""
        # Exponents start at m = 1 here and at 0 in `sinusoid_vectors`, so shift them by one.
        return sinusoid_vectors(in_float64(positions) * BASE ** (-2 / self.width), self.width, BASE)
