"""PaTH-FoX (Yang et al. 2025): PaTH's reflections with FoX's forget gate."""

from torch import Tensor

from pe_experiments.encodings import AttentionContext, ModelShape
from pe_experiments.encodings.forgetting import Forgetting
from pe_experiments.encodings.path_attention import Path


class PathFox(Path):
    """PaTH's logit plus sum_{s=j+1..i} ln f_s over sqrt(head_dim), f_s the gate of `Forgetting`.

    The released kernels scale the sum of gates with the logit; FoX by itself does not scale it.

    Source: Yang et al. 2025, arXiv:2505.16381, section 2, and flash-linear-attention. Parameters: ``rank *
    d_model + rank * num_heads * head_dim + 3 * num_heads * head_dim + 2 * (d_model * num_heads +
    num_heads)`` per layer. Beyond training: more reflections, and every token lowers the keys before it.
    Causal only.

    Args:
        rank: see `Path`.
    """

    def __init__(self, shape: ModelShape, *, rank: int = 32):
        super().__init__(shape, rank=rank)
        self.forgetting = Forgetting(shape)

    def bias(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor:
        gate_bias_BHTS = self.forgetting.bias(q_BHTK, k_BHSK, at)
        return super().bias(q_BHTK, k_BHSK, at) + gate_bias_BHTS * self.shape.head_dim**-0.5
