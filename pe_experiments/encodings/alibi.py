"""Attention with linear biases (Press et al. 2022): the farther a key, the lower its logit."""

from typing import Literal

import torch
from torch import Tensor

from pe_experiments.encodings import AttentionContext, ModelShape, PositionBias
from pe_experiments.encodings.tensors import in_float64
from pe_experiments.terminal.errors import one_of

Symmetry = Literal["symmetric", "asymmetric"]


def alibi_slopes(num_heads: int) -> Tensor:
    """Return one slope per head, [H] in float64: 2^(-8h/H) for h = 1 .. H when H is a power of two.

    Any other H takes the slopes of the next smaller power of two, then every second slope of the next larger
    one, as in the authors' code.
    """
    power = 1 << (num_heads.bit_length() - 1)  # the largest power of two that is at most H
    slopes = [2 ** (-8 * h / power) for h in range(1, power + 1)]
    slopes += [2 ** (-8 * h / (2 * power)) for h in range(1, 2 * power + 1, 2)]
    return torch.tensor(slopes[:num_heads], dtype=torch.float64)


class Alibi(PositionBias):
    """ALiBi: bias -m_h (i - j) on the logit of query i and key j, with a fixed slope m_h per head.

    Source: Press, Smith and Lewis 2022, arXiv:2108.12409. Parameters: none. Beyond training: defined at
    every distance; the bias falls linearly at any length, which it was designed for.

    In an encoder, where keys are on both sides of the query:
        ``symmetric``    -m |i - j|; cannot tell a sequence from its mirror image.
        ``asymmetric``   -m (|i - j| - 1/2 [j < i]): keys to the left are half a step nearer.

    In a decoder, where all keys are to the left, both are the paper's bias.

    Args:
        symmetry: one of the above; no effect in a decoder. ``asymmetric`` is as in the released code of Ruoss
            et al. 2023, arXiv:2305.16843.
    """

    invariant_to = "shift"

    def __init__(self, shape: ModelShape, *, symmetry: Symmetry = "symmetric"):
        super().__init__(shape)
        self.symmetry = one_of(Symmetry, "symmetry", symmetry)

    def slopes_H(self) -> Tensor:
        """Return the slope of each head in float64."""
        return alibi_slopes(self.shape.num_heads)

    def _bias(self, at: AttentionContext) -> Tensor:
        relative_BTS = in_float64(at.relative_positions_BTS)
        distance_BTS = relative_BTS.abs()
        if self.symmetry == "asymmetric" and not self.shape.causal:
            distance_BTS = distance_BTS - 0.5 * (relative_BTS < 0)
        slopes_H = self.slopes_H().to(distance_BTS.device)
        bias_BHTS = -slopes_H[:, None, None] * distance_BTS[:, None]
        return bias_BHTS.float().to(at.q_positions_BT.device)
