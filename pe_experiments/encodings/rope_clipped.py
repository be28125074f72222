"""Clipped RoPE (Li et al. 2026): the slowest pairs of RoPE are faded out."""

import math

import torch
from torch import Tensor

from pe_experiments.encodings import AttentionContext, ModelShape
from pe_experiments.encodings.rope import Rope, frequencies
from pe_experiments.terminal.errors import at_least


class RopeClipped(Rope):
    """RoPE whose slowest pairs have their frequencies multiplied by (1 + cos t) / 2, t from 0 to pi.

    t grows in equal steps over the ``clipped`` slowest pairs: the fastest of them keeps its frequency, and
    the slowest does not rotate. The source calls this encoding CoPE, which is also the name of `Cope`.

    Source: Li et al. 2026, arXiv:2602.05258, and its released code. Parameters: none. Beyond training:
    defined everywhere; most pairs that would reach untrained angles rotate more slowly or not at all. In
    decoders and encoders.

    Args:
        base, rotary_fraction, kept_frequencies: see `Rope`.
        clipped: number of pairs, at least 0; a larger number than there are means all. None means the pairs
            that complete no turn in ``original_length`` tokens. (The source clips 20 of Llama 3's 64; 18 of
            them complete no turn in the 65,536 tokens that it trains on.)
    """

    def __init__(
        self,
        shape: ModelShape,
        *,
        base: float = 10_000.0,
        rotary_fraction: float = 1.0,
        kept_frequencies: float = 1.0,
        clipped: int | None = None,
    ):
        super().__init__(shape, base=base, rotary_fraction=rotary_fraction, kept_frequencies=kept_frequencies)
        if clipped is None:
            clipped = int((frequencies(base, self.pairs) < 2 * math.pi / shape.original_length).sum())
        self.clipped = min(at_least(0, "clipped", clipped), self.pairs)

    def frequencies_BR(self, at: AttentionContext) -> Tensor:
        frequencies_BR = super().frequencies_BR(at)
        angle_C = torch.linspace(0, math.pi, self.clipped, dtype=torch.float64, device=frequencies_BR.device)
        scale_R = torch.ones_like(frequencies_BR[0])
        scale_R[self.pairs - self.clipped :] = (1 + angle_C.cos()) / 2
        return frequencies_BR * scale_R
