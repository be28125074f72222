"""Selective RoPE (Movahedi et al. 2025): rotations whose angles depend on the tokens."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pe_experiments.encodings import AttentionContext, ModelShape, PositionalEncoding
from pe_experiments.encodings.rope import frequencies, pairs_of, rotate_by_angles
from pe_experiments.encodings.tensors import in_float64
from pe_experiments.terminal.errors import above, at_least

KERNEL_SIZE = 4  # of the convolution, in tokens


class SelectiveRope(PositionalEncoding):
    """At token t, pair m of q and k rotates by theta_m sum_{s<=t} phi_sm, phi read from the hidden states.

    phi is the hidden state (each head's slice scaled to length 1) after a low-rank map and a causal
    convolution over four tokens; theta_m = base^(-m/pairs), fixed. RoPE has phi = 1. Position ids are not
    read. The released code's options (a gate and a bias of phi, learned theta, a full-rank map, an activation
    after the convolution) are left out. Its weights start smaller, from N(0, 0.02^2), so that at first it
    hardly rotates.

    Source: Movahedi et al. 2025, arXiv:2511.17388, and its released code. Parameters:
    ``rank * d_model + (rank + 4) * num_heads * pairs`` per layer. Beyond training: angles accumulate with
    every token. Causal only.

    Args:
        base: greater than 1; 500,000 in the released code.
        rank: rank of the map from x to phi, at least 1; 16 in the released code.
    """

    causal_only = True
    per_layer = True
    reads_row = True
    invariant_to = "ids"

    def __init__(self, shape: ModelShape, *, base: float = 500_000.0, rank: int = 16):
        super().__init__(shape)
        self.base = above(1, "base", base)
        self.rank = at_least(1, "rank", rank)
        self.pairs = pairs_of(shape)
        width = shape.num_heads * self.pairs
        self.angle = nn.Sequential(
            nn.Linear(shape.d_model, rank, bias=False), nn.Linear(rank, width, bias=False)
        )
        self.convolution = nn.Conv1d(width, width, KERNEL_SIZE, groups=width, bias=False)

    def rotate(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> tuple[Tensor, Tensor]:
        with torch.autocast(q_BHTK.device.type, enabled=False):
            x_BSHK = at.x_BSD.to(self.convolution.weight.dtype).unflatten(-1, (self.shape.num_heads, -1))
            normalised_BSD = F.normalize(x_BSHK, dim=-1).flatten(-2)
            phi_BWS = self.convolution(F.pad(self.angle(normalised_BSD).mT, (KERNEL_SIZE - 1, 0)))
        sums_BHRS = in_float64(phi_BWS).cumsum(-1).unflatten(1, (self.shape.num_heads, self.pairs))
        angles_BHSR = sums_BHRS.mT * frequencies(self.base, self.pairs, q_BHTK.device)
        return rotate_by_angles(angles_BHSR, q_BHTK, k_BHSK, at)
