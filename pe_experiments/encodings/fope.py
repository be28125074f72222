"""Fourier position embedding (Hua et al. 2024): every pair of RoPE rotates by a sum of waves."""

import math

import torch
from torch import Tensor, nn

from pe_experiments.encodings import AttentionContext, ModelShape, PositionalEncoding
from pe_experiments.encodings.rope import (
    Rotations,
    apply_rotary,
    cos_and_sin,
    frequencies,
    half_split_tables,
    pairs_of,
)
from pe_experiments.terminal.errors import above, at_least


class Fope(PositionalEncoding):
    """RoPE with sum_n C_nm cos(p theta_n) for cos(p theta_m), and sum_n S_nm sin(p theta_n) for its sine.

    The sums run over the frequencies theta_n >= 2 pi / L of RoPE, those that complete a turn in training; the
    other pairs do not rotate. C and S are the identity plus noise, drawn once per head and never trained.
    Logits do not depend on distances alone.

    Source: Hua et al. 2024, arXiv:2412.17739, section 4, with the noise of its released code, PyTorch's
    ``xavier_normal_`` of the coefficients of all heads. Parameters: ``2 * num_heads * waves * waves`` per
    layer, not trained; ``waves`` is the number of such frequencies. Beyond training: every wave has been
    trained over a whole turn. In decoders and encoders.

    Args:
        base: greater than 1; 10,000 in the paper.
        gain: gain of the noise, at least 0.
        original_length: L, in tokens, at least 1; None means the ``original_length`` of the shape.
    """

    per_layer = True
    invariant_to = "nothing"

    def __init__(
        self,
        shape: ModelShape,
        *,
        base: float = 10_000.0,
        gain: float = 0.3,
        original_length: int | None = None,
    ):
        super().__init__(shape)
        self.base = above(1, "base", base)
        self.gain = at_least(0, "gain", gain)
        length = shape.original_length if original_length is None else original_length
        self.original_length = at_least(1, "original_length", length)
        self.pairs = pairs_of(shape)
        self.waves = int((frequencies(base, self.pairs) >= 2 * math.pi / length).sum())
        if self.waves == 0:
            self.remark = f"no pair completes a turn in {length} tokens, so none rotates (pe.original_length)"
        self.cosines_HNM, self.sines_HNM = (self._coefficients() for _ in range(2))

    def _coefficients(self) -> nn.Parameter:
        """Return the identity plus noise, [H, waves, waves]."""
        noise_HNM = torch.zeros(self.shape.num_heads, self.waves, self.waves)
        if self.waves:
            nn.init.xavier_normal_(noise_HNM, self.gain)
        return nn.Parameter(torch.eye(self.waves) + noise_HNM, requires_grad=False)

    def rotate(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> tuple[Tensor, Tensor]:
        query_tables, key_tables = at.once(self._tables)
        return apply_rotary(q_BHTK, *query_tables), apply_rotary(k_BHSK, *key_tables)

    def _tables(self, at: AttentionContext) -> Rotations:
        """Return the arguments of `apply_rotary` for queries and keys, which differ between heads."""
        query_tables = self._tables_of(at.q_positions_BT)
        if at.k_positions_BS is at.q_positions_BT:
            return query_tables, query_tables
        return query_tables, self._tables_of(at.k_positions_BS)

    def _tables_of(self, positions_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Return the cosines and signed sines of these positions, [B, H, T, 2 * pairs]."""
        waves_N = frequencies(self.base, self.pairs, positions_BT.device)[: self.waves]
        cos_B1TN, sin_B1TN = cos_and_sin(positions_BT, waves_N[None])
        with torch.autocast(positions_BT.device.type, enabled=False):
            cos_BHTM = cos_B1TN @ self.cosines_HNM.to(cos_B1TN.dtype)
            sin_BHTM = sin_B1TN @ self.sines_HNM.to(sin_B1TN.dtype)
        unrotated = (0, self.pairs - self.waves)  # the other pairs have the angle 0
        return half_split_tables(
            nn.functional.pad(cos_BHTM, unrotated, value=1.0), nn.functional.pad(sin_BHTM, unrotated)
        )
