"""Partial key offset (modded-nanogpt): some channels of a key are those of the token before."""

import torch
from torch import Tensor

from pe_experiments.encodings import AttentionContext, ModelShape
from pe_experiments.encodings.rope import Rope


class PartialKeyOffset(Rope):
    """RoPE on some channels; the others, which do not rotate, take the key of the token before.

    The logit of query i and key j is a rotated product of q_i and k_j, plus a plain product of q_i and
    k_(j-1) on the other channels; the first token keeps its own key. A single layer can then find the symbol
    that follows an earlier occurrence of the present one (induction), which otherwise needs two. "Before"
    means the order in memory, also across documents or padding, as in the source.

    Source: record 49 of modded-nanogpt (KellerJordan/modded-nanogpt, pull request 169, 2025), which offsets
    half of the channels in its layers with a long window and none in the others. It normalises q and k, pairs
    neighbouring channels, and uses frequencies 1024^(-m/(R-1)), m = 0 .. R-1, which ``base`` =
    1024^(R/(R-1)) gives here. RoPE: Su et al. 2021, arXiv:2104.09864. Parameters: none. Beyond training: as
    RoPE; the channels without rotation do not depend on the distance. Causal only.

    Args:
        base: as in `Rope`.
        rotary_fraction: share of the head's channels that rotate, above 0 and below 1.
    """

    causal_only = True
    reads_row = True

    def __init__(self, shape: ModelShape, *, base: float = 10_000.0, rotary_fraction: float = 0.5):
        super().__init__(shape, base=base, rotary_fraction=rotary_fraction)
        if 2 * self.pairs == shape.head_dim:
            raise ValueError(
                f"rotary_fraction={rotary_fraction} of head_dim={shape.head_dim} leaves no channel to offset"
            )

    def rotate(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> tuple[Tensor, Tensor]:
        q_BHTK, k_BHSK = super().rotate(q_BHTK, k_BHSK, at)
        rotated_BHSC, still_BHSC = k_BHSK.split([2 * self.pairs, k_BHSK.shape[-1] - 2 * self.pairs], dim=-1)
        offset_BHSC = torch.cat([still_BHSC[:, :, :1], still_BHSC[:, :, :-1]], dim=2)
        return q_BHTK, torch.cat([rotated_BHSC, offset_BHSC], dim=-1)
