"""Fixed sinusoids added to the embedding (Vaswani et al. 2017)."""

import math

import torch
from torch import Tensor, nn

from pe_experiments.encodings.absolute import AbsoluteEncoding, Combine
from pe_experiments.encodings.base import ModelShape


def sinusoid_vectors(positions: Tensor, width: int, base: float) -> Tensor:
    """Sines and cosines of the ids, interleaved, in float64.

    Column 2i holds sin(p / base^(2i/width)) and column 2i+1 the cosine of the same angle. At odd widths the
    last column is a sine without its cosine.

    Args:
        positions: ids of any shape and dtype, also with gaps or fractions.
        width: columns.
        base: the longest wavelength is just below ``2 pi base``.

    Returns:
        Float64 tensor of shape ``[*positions.shape, width]``.
    """
    even = torch.arange(0, width, 2, dtype=torch.float64, device=positions.device)
    angles = positions.to(torch.float64)[..., None] * base ** (-even / width)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)[..., :width]


class Sinusoidal(AbsoluteEncoding):
    """Sinusoidal encoding: PE(p, 2i) = sin(p / base^(2i/d)), PE(p, 2i+1) = cos(p / base^(2i/d)).

    Every vector has norm sqrt(d/2); compare it with the norm of the token embeddings it is added to.

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.5. Parameters: none, the frequencies are fixed.
    Beyond training: defined everywhere; the model has not been trained on these vectors.

    Args:
        shape: the model it serves.
        base: greater than 1; 10,000 in the paper.
        combine, width: see `AbsoluteEncoding`.
    """

    cites = {"": "1706.03762"}

    def __init__(
        self,
        shape: ModelShape,
        *,
        base: float = 10_000.0,
        combine: Combine = "add",
        width: int | None = None,
    ):
        super().__init__(shape, combine=combine, width=width)
        if not 1 < base < math.inf:
            raise ValueError(f"base={base} must be a finite number greater than 1")
        self.base = base

    def vectors(self, positions_BT: Tensor) -> Tensor:
        if positions_BT.shape[0] == 1:
            return sinusoid_vectors(positions_BT, self.width, self.base).float()
        # A batch repeats few distinct ids many times, and float64 sines are the expensive part.
        ids, index_BT = positions_BT.unique(return_inverse=True)
        return sinusoid_vectors(ids, self.width, self.base).float()[index_BT]


class ScaledSinusoidal(Sinusoidal):
    """Sinusoidal encoding times a learned scalar: alpha * PE(p), alpha starting at d^(-1/2).

    Every vector starts with norm sqrt(1/2), and training sets the scale of positions relative to tokens.

    Source: ``ScaledSinusoidalEmbedding`` of x-transformers; PE itself Vaswani et al. 2017, arXiv:1706.03762,
    section 3.5. Parameters: ``1``. Beyond training: as `Sinusoidal`.

    Args:
        shape: the model it serves.
        base, combine, width: see `Sinusoidal`.
    """

    cites = {"": "1706.03762"}

    def __init__(
        self,
        shape: ModelShape,
        *,
        base: float = 10_000.0,
        combine: Combine = "add",
        width: int | None = None,
    ):
        super().__init__(shape, base=base, combine=combine, width=width)
        self.alpha = nn.Parameter(torch.tensor(self.width**-0.5))

    def vectors(self, positions_BT: Tensor) -> Tensor:
        return self.alpha * super().vectors(positions_BT)
