"""BAM (Bianchessi et al. 2025): a learned power of the scaled distance to a learned location."""

import torch
from torch import Tensor, nn

from pe_experiments.encodings import AttentionContext, ModelShape, PositionBias
from pe_experiments.encodings.alibi import alibi_slopes

EPSILON = 1e-5  # keeps the power differentiable at the location, as in the authors' code


class Bam(PositionBias):
    """Bias -(|j - i - mu_h| e^a_h + 1e-5)^beta_h on the logit of query i and key j, mu = e^l - e^-l.

    It is the logarithm of a generalised Gaussian prior on the position of the key, with location mu, scale
    e^-a and shape beta, each a number per head for all layers, learned or fixed. e^a starts at the slopes of
    ALiBi.

    Source: Bianchessi et al. 2025, arXiv:2505.22842, and its released code, whose beta is unconstrained.
    Parameters: ``num_heads * (learn_shape + learn_scale + learn_location)``. Beyond training: the bias falls
    with the learned power of the distance. In decoders and encoders.

    Args:
        initial_shape: beta before training; 1 is a Laplace prior (ALiBi), 2 a Gaussian.
        initial_location: l before training; mu is 0 for 0.
        learn_shape, learn_scale, learn_location: which of beta, a and l are learned; in the source the first
            two.
    """

    invariant_to = "shift"
    shape_H: Tensor
    log_scale_H: Tensor
    location_H: Tensor

    def __init__(
        self,
        shape: ModelShape,
        *,
        initial_shape: float = 1.0,
        initial_location: float = 0.0,
        learn_shape: bool = True,
        learn_scale: bool = True,
        learn_location: bool = False,
    ):
        super().__init__(shape)
        self.learn_shape = learn_shape
        self.learn_scale = learn_scale
        self.learn_location = learn_location
        heads = shape.num_heads
        self._add("shape_H", torch.full((heads,), float(initial_shape)), learn_shape)
        self._add("log_scale_H", alibi_slopes(heads).log().to(torch.get_default_dtype()), learn_scale)
        self._add("location_H", torch.full((heads,), float(initial_location)), learn_location)

    def _add(self, name: str, value_H: Tensor, is_learned: bool) -> None:
        """Add a parameter, or a buffer that checkpoints do not need."""
        if is_learned:
            self.register_parameter(name, nn.Parameter(value_H))
        else:
            self.register_buffer(name, value_H, persistent=False)

    def _bias(self, at: AttentionContext) -> Tensor:
        dtype = torch.promote_types(self.shape_H.dtype, torch.float32)
        shape_H11, log_scale_H11, location_H11 = (
            x_H.to(dtype)[:, None, None] for x_H in (self.shape_H, self.log_scale_H, self.location_H)
        )
        offset_H11 = location_H11.exp() - (-location_H11).exp()
        ahead_B1TS = at.relative_positions_BTS.to(dtype)[:, None]
        return -(((ahead_B1TS - offset_H11).abs() * log_scale_H11.exp() + EPSILON) ** shape_H11)
