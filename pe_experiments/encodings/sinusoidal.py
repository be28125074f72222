"""Fixed sinusoids added to the embedding (Vaswani et al. 2017)."""

import torch
from torch import Tensor, nn

from pe_experiments.encodings import ModelShape
from pe_experiments.encodings.absolute import AbsoluteEncoding, Combine
from pe_experiments.encodings.tensors import in_float64
from pe_experiments.terminal.errors import above


def sinusoid_vectors(positions: Tensor, width: int, base: float) -> Tensor:
    """Return interleaved sines and cosines of ids of any shape, [*positions.shape, width] in float64.

    Column 2i holds sin(p / base^(2i/width)) and column 2i+1 the cosine of the same angle. At odd widths the
    last column is a sine without its cosine. The longest wavelength is just below ``2 pi base``.
    """
    positions = in_float64(positions)
    even = torch.arange(0, width, 2, dtype=torch.float64, device=positions.device)
    angles = positions[..., None] * base ** (-even / width)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)[..., :width]


class Sinusoidal(AbsoluteEncoding):
    """Sinusoidal encoding: PE(p, 2i) = sin(p / base^(2i/d)), PE(p, 2i+1) = cos(p / base^(2i/d)).

    Every vector has norm sqrt(d/2); compare it with the norm of the token embeddings it is added to.

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.5. Parameters: none, the frequencies are fixed.
    Beyond training: defined everywhere; the model has not been trained on these vectors.

    Args:
        base: greater than 1; 10,000 in the paper.
        combine, width: see `AbsoluteEncoding`.
    """

    def __init__(
        self, shape: ModelShape, *, base: float = 10_000.0, combine: Combine = "add", width: int | None = None
    ):
        super().__init__(shape, combine=combine, width=width)
        self.base = above(1, "base", base)

    def vectors(self, positions_BT: Tensor) -> Tensor:
        if positions_BT.shape[0] == 1:
            return sinusoid_vectors(positions_BT, self.width, self.base).float().to(positions_BT.device)
        # A batch repeats few distinct ids, and float64 sines are expensive.
        ids, index_BT = positions_BT.unique(return_inverse=True)
        return sinusoid_vectors(ids, self.width, self.base).float().to(ids.device)[index_BT]


class ScaledSinusoidal(Sinusoidal):
    """Sinusoidal encoding times a learned scalar: alpha * PE(p), alpha starting at d^(-1/2).

    Every vector starts with norm sqrt(1/2), and training sets the scale of positions relative to tokens.

    Source: ``ScaledSinusoidalEmbedding`` of x-transformers; PE itself Vaswani et al. 2017, arXiv:1706.03762,
    section 3.5. Parameters: ``1``. Beyond training: as `Sinusoidal`.
    """

    def __init__(
        self, shape: ModelShape, *, base: float = 10_000.0, combine: Combine = "add", width: int | None = None
    ):
        super().__init__(shape, base=base, combine=combine, width=width)
        self.alpha = nn.Parameter(torch.tensor(self.width**-0.5))

    def vectors(self, positions_BT: Tensor) -> Tensor:
        return self.alpha * super().vectors(positions_BT)
