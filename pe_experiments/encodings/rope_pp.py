"""RoPE++ (Liu et al. 2025): heads that use the imaginary part of RoPE's complex logit."""

import torch
from torch import Tensor

from pe_experiments.encodings import AttentionContext
from pe_experiments.encodings.rope import Rope


class RopePlusPlus(Rope):
    """RoPE; every second head takes q and k of the head before it, with q rotated by a further -pi/2.

    With the two channels of a pair as a complex number, the logit of RoPE is the real part of
    sum_m q_m conj(k_m) exp(i (i - j) theta_m). The logit of every second head is the imaginary part of this
    sum. Queries and keys of these heads are projected but not used. A last head without a partner uses RoPE.

    Source: Liu et al. 2025, arXiv:2512.07525, and its released code, in the form with an equal number of
    heads (EH); there the two heads also share their values, and projections and cache are halved. Here the
    projections are those of RoPE. Parameters: none. Beyond training: as `Rope`; every angle occurs as a
    cosine and as a sine. In decoders and encoders.
    """

    def rotate(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> tuple[Tensor, Tensor]:
        q_BHTK, k_BHSK = super().rotate(q_BHTK, k_BHSK, at)
        paired_heads = self.shape.num_heads // 2 * 2
        real_BGTK, key_BGSK = q_BHTK[:, :paired_heads:2], k_BHSK[:, :paired_heads:2]
        first, second, unrotated_BGTC = real_BGTK.split(
            [self.pairs, self.pairs, self.shape.head_dim - 2 * self.pairs], dim=-1
        )
        imaginary_BGTK = torch.cat([second, -first, unrotated_BGTC], dim=-1)  # (x + iy) times -i is y - ix
        queries_BHTK = torch.stack([real_BGTK, imaginary_BGTK], dim=2).flatten(1, 2)
        keys_BHSK = key_BGSK.repeat_interleave(2, dim=1)
        return (
            torch.cat([queries_BHTK, q_BHTK[:, paired_heads:]], dim=1),
            torch.cat([keys_BHSK, k_BHSK[:, paired_heads:]], dim=1),
        )
