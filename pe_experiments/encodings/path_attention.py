"""PaTH (Yang et al. 2025): each token between key and query reflects the key along its own direction."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pe_experiments.encodings import AttentionContext, ModelShape, PositionalEncoding
from pe_experiments.encodings.tensors import at_least_float32
from pe_experiments.terminal.errors import at_least


class Path(PositionalEncoding):
    """Logit q_i^T H_i H_(i-1) .. H_(j+1) k_j over sqrt(head_dim), H_t = I - beta_t w_t w_t^T.

    beta_t = 2 sigmoid(u . x_t + b) per head. w_t is the hidden state x_t after a low-rank map, a causal
    convolution over three tokens and SiLU, scaled to length 1. Position ids are not read.

    The product of matrices is never formed: it changes q_i . k_j by the sum of -beta_t (q_i . w_t) u_tj over
    j < t <= i, where u solves one triangular system per head (the UT transform of the paper's section 3.2).
    Memory grows with the square of the length, and long sequences (2,048 tokens and more) are slow.

    Source: Yang et al. 2025, arXiv:2505.16381, section 2.2, and flash-linear-attention (where weights start
    from N(0, 0.02^2) and b from 0; here both start as in ``torch.nn``). Parameters:
    ``rank * d_model + rank * num_heads * head_dim + 3 * num_heads * head_dim + d_model * num_heads +
    num_heads`` per layer. Beyond training: more reflections, one for each token between key and
    query. Causal only.

    Args:
        rank: rank of the map from x to w, at least 1; 32 in the paper.
    """

    causal_only = True
    per_layer = True
    reads_row = True
    invariant_to = "ids"

    def __init__(self, shape: ModelShape, *, rank: int = 32):
        super().__init__(shape)
        self.rank = at_least(1, "rank", rank)
        width = shape.num_heads * shape.head_dim
        self.direction = nn.Sequential(
            nn.Linear(shape.d_model, rank, bias=False), nn.Linear(rank, width, bias=False)
        )
        self.convolution = nn.Conv1d(width, width, 3, groups=width, bias=False)
        self.strength = nn.Linear(shape.d_model, shape.num_heads)

    def bias(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor:
        """Return the change of the scaled q . k by the reflections, BHTS."""
        with torch.autocast(q_BHTK.device.type, enabled=False):
            q_BHTK, k_BHSK = at_least_float32(q_BHTK), at_least_float32(k_BHSK)
            w_BHSK, beta_BHS = self.reflections(at.x_BSD.to(self.strength.weight.dtype))
            w_BHSK, beta_BHS = w_BHSK.to(q_BHTK.dtype), beta_BHS.to(q_BHTK.dtype)
            between_SS = torch.ones(w_BHSK.shape[2], w_BHSK.shape[2], device=q_BHTK.device).tril(-1)
            system_BHSS = (w_BHSK @ w_BHSK.mT) * beta_BHS[:, :, None] * between_SS
            u_BHSS = torch.linalg.solve_triangular(
                system_BHSS, (w_BHSK @ k_BHSK.mT) * between_SS, upper=False, unitriangular=True
            )
            scores_BHTS = (q_BHTK @ w_BHSK.mT) * self.shape.head_dim**-0.5 * at.visible_BTS[:, None]
            return -(scores_BHTS * beta_BHS[:, :, None]) @ u_BHSS

    def reflections(self, x_BSD: Tensor) -> tuple[Tensor, Tensor]:
        """Return unit vectors w [B, H, S, K] and strengths beta [B, H, S]."""
        mixed_BWS = self.convolution(F.pad(self.direction(x_BSD).mT, (2, 0)))
        w_BSHK = F.silu(mixed_BWS).mT.unflatten(-1, (self.shape.num_heads, self.shape.head_dim))
        beta_BSH = 2 * torch.sigmoid(self.strength(x_BSD))
        return F.normalize(w_BSHK, dim=-1).transpose(1, 2), beta_BSH.transpose(1, 2)
