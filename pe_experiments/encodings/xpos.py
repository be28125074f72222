"""xPos (Sun et al. 2022): RoPE whose channels also decay with distance."""

import torch
from torch import Tensor

from pe_experiments.encodings import AttentionContext, ModelShape
from pe_experiments.encodings.rope import Rope, Rotations
from pe_experiments.encodings.tensors import in_float64
from pe_experiments.terminal.errors import above

LARGEST_EXPONENT = 85.0  # e^85, the largest product of two factors, is below float32's largest number


class XPos(Rope):
    """RoPE with pair m of q times z_m^(i/scale_base) and of k times z_m^(-j/scale_base).

    z_m = (2m/d_r + 0.4) / 1.4, so the pair's part of the logit decays by z_m^((i - j)/scale_base): most for
    the fastest pairs.

    Source: Sun et al. 2022, arXiv:2212.10554, section 2.2. Parameters: none. Beyond training: defined
    everywhere, and designed for it. Causal only: the logit of a later key would grow. In both exponents
    positions count from the middle of the row's keys; this cancels in the logit and keeps the factors in
    float32's range.

    Args:
        base, rotary_fraction, kept_frequencies: see `Rope`.
        scale_base: distance, above 0, over which pair m decays by z_m; 512 in the paper (for 1,024 tokens).
            Smaller is more local; at 40 tokens 512 is close to RoPE itself.

    Raises:
        ValueError: when applied to positions so far apart that factors overflow float32.
    """

    causal_only = True

    def __init__(
        self,
        shape: ModelShape,
        *,
        base: float = 10_000.0,
        rotary_fraction: float = 1.0,
        kept_frequencies: float = 1.0,
        scale_base: float = 512.0,
    ):
        super().__init__(shape, base=base, rotary_fraction=rotary_fraction, kept_frequencies=kept_frequencies)
        self.scale_base = above(0, "scale_base", scale_base)

    def _rotations(self, at: AttentionContext) -> Rotations:
        (cos_q, sin_q), (cos_k, sin_k) = super()._rotations(at)
        low_B1, high_B1 = at.k_positions_BS.aminmax(dim=-1, keepdim=True)
        middle_B1 = (low_B1 + high_B1) / 2
        scale_q = self._scales(at.q_positions_BT - middle_B1)
        scale_k = self._scales(middle_B1 - at.k_positions_BS)
        return (cos_q * scale_q, sin_q * scale_q), (cos_k * scale_k, sin_k * scale_k)

    def _scales(self, offsets_BT: Tensor) -> Tensor:
        """Return z_m^(offset / scale_base), [B, 1, T, R]."""
        offsets64_BT = in_float64(offsets_BT)
        pairs_R = torch.arange(self.pairs, dtype=torch.float64, device=offsets64_BT.device)
        logs_R = ((pairs_R / self.pairs + 0.4) / 1.4).log()
        exponents_B1TR = offsets64_BT[:, None, :, None] / self.scale_base * logs_R
        # The farthest logit multiplies two such factors; a masked later key must not become nan.
        if 2 * float(exponents_B1TR.abs().max()) > LARGEST_EXPONENT:
            raise ValueError(
                f"positions {2 * float(offsets_BT.abs().max()):.0f} apart are too far for "
                f"scale_base={self.scale_base}: factors overflow float32; use a larger scale_base"
            )
        return exponents_B1TR.exp().float().to(offsets_BT.device)
