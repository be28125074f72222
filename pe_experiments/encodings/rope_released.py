"""Extensions of RoPE in released models: Llama 3.1 and LongRoPE (Phi-3, Phi-4-mini)."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pe_experiments.encodings import AttentionContext, ModelShape
from pe_experiments.encodings.rope_extension import ExtendedRope, ScaledRope
from pe_experiments.terminal.errors import above


class RopeLlama3(ExtendedRope):
    """Llama 3.1's scaling: slow pairs are interpolated by s, fast pairs kept, pairs between blended.

    Pair m makes L0 theta_m / 2 pi rotations over the original length L0. Its frequency is divided by s below
    ``low_freq_factor`` rotations, kept from ``high_freq_factor`` on, and blended in between in proportion to
    the rotations (YaRN blends in proportion to the index of the pair and also scales the logits).

    Source: the code of Llama 3.1 (Grattafiori et al. 2024, arXiv:2407.21783), as in transformers
    (``rope_type: llama3``). Parameters: none. Beyond training: fast pairs rotate as in training, slow ones
    are interpolated. In decoders and encoders.

    Args:
        base, rotary_fraction, kept_frequencies, factor, original_length: see `ExtendedRope`; in Llama 3.1
            base 500,000, factor 8, original length 8,192.
        low_freq_factor, high_freq_factor: in rotations, as above, 1 and 4 in Llama 3.1.
            high_freq_factor >= low_freq_factor > 0.
    """

    def __init__(
        self,
        shape: ModelShape,
        *,
        base: float = 10_000.0,
        rotary_fraction: float = 1.0,
        kept_frequencies: float = 1.0,
        factor: float | None = None,
        low_freq_factor: float = 1.0,
        high_freq_factor: float = 4.0,
        original_length: int | None = None,
    ):
        super().__init__(
            shape,
            base=base,
            rotary_fraction=rotary_fraction,
            kept_frequencies=kept_frequencies,
            factor=factor,
            original_length=original_length,
        )
        if not 0 < low_freq_factor <= high_freq_factor < math.inf:
            raise ValueError(
                f"low_freq_factor={low_freq_factor} must be above 0 and at most "
                f"high_freq_factor={high_freq_factor}"
            )
        self.low_freq_factor = low_freq_factor
        self.high_freq_factor = high_freq_factor

    def frequencies_BR(self, at: AttentionContext) -> Tensor:
        frequencies_BR = super().frequencies_BR(at)
        rotations_BR = self.original_length * frequencies_BR / (2 * math.pi)
        kept_share_BR = (rotations_BR >= self.high_freq_factor).double()
        if self.high_freq_factor > self.low_freq_factor:
            blend_width = self.high_freq_factor - self.low_freq_factor
            kept_share_BR = ((rotations_BR - self.low_freq_factor) / blend_width).clamp(0, 1)
        interpolated_BR = frequencies_BR / self.stretch_B(at)[:, None]
        return frequencies_BR * kept_share_BR + interpolated_BR * (1 - kept_share_BR)


class RopeLongRope(ScaledRope):
    """LongRoPE: each pair's frequency is divided by a factor per pair; logits grow with ln s.

    There are two lists of factors, for sequences up to the original length L0 and for longer ones. cos and
    sin are multiplied by sqrt(1 + ln s / ln L0).

    Source: Ding et al. 2024, arXiv:2402.13753, as in transformers (``rope_type: longrope``). Parameters:
    none. Beyond training: depends on the factors, which the authors search for each model. In decoders and
    encoders.

    Args:
        base, rotary_fraction, kept_frequencies, original_length: see `ExtendedRope`.
        factor: s, see `ExtendedRope`; it sets the default ``long_factor`` and the factor of cos and sin.
        short_factor: a number above 0 for each pair that rotates, at up to L0 tokens; None means 1.
        long_factor: the same for longer sequences; None means s^(m/(R - 1)) for pair m of R, as in `RopeNtk`.
        attention_factor: factor of cos and sin, above 0, in place of sqrt(1 + ln s / ln L0).
    """

    def __init__(
        self,
        shape: ModelShape,
        *,
        base: float = 10_000.0,
        rotary_fraction: float = 1.0,
        kept_frequencies: float = 1.0,
        factor: float | None = None,
        short_factor: Sequence[float] | None = None,
        long_factor: Sequence[float] | None = None,
        attention_factor: float | None = None,
        original_length: int | None = None,
    ):
        super().__init__(
            shape,
            base=base,
            rotary_fraction=rotary_fraction,
            kept_frequencies=kept_frequencies,
            factor=factor,
            original_length=original_length,
        )
        self.short_factor = self._validated("short_factor", short_factor)
        self.long_factor = self._validated("long_factor", long_factor)
        if attention_factor is not None:
            above(0, "attention_factor", attention_factor)
        self.attention_factor = attention_factor

    def _validated(self, name: str, factors: Sequence[float] | None) -> tuple[float, ...] | None:
        """Return the factors, one per pair and each above 0; raise a ValueError for any others."""
        if factors is None:
            return None
        if len(factors) != self.pairs:
            raise ValueError(
                f"{name} has {len(factors)} numbers, but {self.pairs} pairs of channels rotate "
                f"(head_dim={self.shape.head_dim})"
            )
        return tuple(above(0, f"{name}[{m}]", float(factor)) for m, factor in enumerate(factors))

    def frequencies_BR(self, at: AttentionContext) -> Tensor:
        frequencies_BR = super().frequencies_BR(at)
        short_R = torch.ones_like(frequencies_BR[0])
        if self.short_factor is not None:
            short_R = torch.tensor(self.short_factor, dtype=torch.float64, device=frequencies_BR.device)
        if self.long_factor is None:
            pairs_R = torch.arange(self.pairs, dtype=torch.float64, device=frequencies_BR.device)
            long_BR = self.stretch_B(at)[:, None] ** (pairs_R / max(1, self.pairs - 1))
        else:
            long_BR = torch.tensor([self.long_factor], dtype=torch.float64, device=frequencies_BR.device)
        longer_B1 = (at.tokens_B[:, None] > self.original_length).to(frequencies_BR.device)
        return frequencies_BR / torch.where(longer_B1, long_BR, short_R)

    def attention_factor_B(self, at: AttentionContext) -> Tensor:
        log_B = self.stretch_B(at).log()
        if self.attention_factor is not None:
            return torch.full_like(log_B, self.attention_factor)
        return (1 + log_B / math.log(max(2, self.original_length))).sqrt()
