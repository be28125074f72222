"""Extensions of RoPE to sequences longer than in training (interpolation, NTK, YaRN); in training, RoPE."""

import math
from typing import Literal

import torch
from torch import Tensor

from pe_experiments.encodings import AttentionContext, ModelShape
from pe_experiments.encodings.rope import Rope, Rotations
from pe_experiments.encodings.tensors import float64_device, in_float64
from pe_experiments.terminal.errors import above, at_least, one_of

Ramp = Literal["linear", "radix"]


class ExtendedRope(Rope):
    """Base class of the extensions. The factor s says how much longer a sequence is than in training.

    Args:
        shape: sizes of the model.
        base, rotary_fraction, kept_frequencies: see `Rope`; the values of the trained model.
        factor: s, at least 1. None means the declared tokens of the row / L0, at least 1, which is known
            before the answer is decoded. In a run that continues another (``init_from``), None means at least
            ``train_length`` / L0, so that all rows in training have the same factor.
        original_length: L0, in tokens, at least 1: the length on which the model was first trained. None
            means the ``original_length`` of the shape.
    """

    smallest_pairs = 1

    def __init__(
        self,
        shape: ModelShape,
        *,
        base: float = 10_000.0,
        rotary_fraction: float = 1.0,
        kept_frequencies: float = 1.0,
        factor: float | None = None,
        original_length: int | None = None,
    ):
        super().__init__(shape, base=base, rotary_fraction=rotary_fraction, kept_frequencies=kept_frequencies)
        self.factor = None if factor is None else at_least(1, "factor", factor)
        length = shape.original_length if original_length is None else original_length
        self.original_length = at_least(1, "original_length", length)
        if self.pairs < self.smallest_pairs:
            raise ValueError(
                f"{type(self).__name__} needs at least {2 * self.smallest_pairs} rotated channels; "
                f"rotary_fraction={rotary_fraction} of head_dim={shape.head_dim} leaves {2 * self.pairs}"
            )

    def stretch_B(self, at: AttentionContext) -> Tensor:
        """Return the factor s of each row, in float64 (B is 1 if all rows share it)."""
        if self.factor is None:
            times_longer_B = self.times_longer_B(at)
            if self.shape.parent_length is None:
                return times_longer_B
            return times_longer_B.clamp(min=self.shape.train_length / self.original_length)
        device = float64_device(at.q_positions_BT.device)
        return torch.tensor([self.factor], dtype=torch.float64, device=device)

    def times_longer_B(self, at: AttentionContext) -> Tensor:
        """Return the declared tokens of each row divided by L0, at least 1."""
        return (in_float64(at.tokens_B) / self.original_length).clamp(min=1)


class RopeLinear(ExtendedRope):
    """Linear position interpolation: every angle is divided by s and stays in the range of training.

    Source: Chen et al. 2023, arXiv:2306.15595, section 3. Parameters: none. Beyond training:
    neighbours are 1/s apart, a distance that does not occur in training. In decoders and encoders.
    """

    def frequencies_BR(self, at: AttentionContext) -> Tensor:
        return super().frequencies_BR(at) / self.stretch_B(at)[:, None]


class RopeNtk(ExtendedRope):
    """NTK-aware scaling: RoPE with the base b s^(d_r/(d_r - 2)).

    The fastest pair keeps its frequency, the slowest is divided by s.

    Source: bloc97 2023, as given by Peng et al. 2023, arXiv:2309.00071, section 3.1. Parameters: none. Beyond
    training: fast pairs rotate as in training, slow ones are interpolated. In decoders and encoders.

    Args:
        base, rotary_fraction, kept_frequencies, factor, original_length: see `ExtendedRope`. At least two
            pairs: the exponent divides by d_r - 2.
    """

    smallest_pairs = 2

    def frequencies_BR(self, at: AttentionContext) -> Tensor:
        frequencies_BR = super().frequencies_BR(at)
        pairs_R = torch.arange(self.pairs, dtype=torch.float64, device=frequencies_BR.device)
        return frequencies_BR * self.stretch_B(at)[:, None] ** (-pairs_R / (self.pairs - 1))


class RopeDynamicNtk(RopeNtk):
    """Dynamic NTK: `RopeNtk` with s = factor * n/L0 - (factor - 1) at n > L0 tokens; RoPE itself up to L0.

    Source: emozilla 2023, as given by Peng et al. 2023, arXiv:2309.00071, section 3.3, and by transformers
    (``rope_type: dynamic``). Parameters: none. Beyond training: as `RopeNtk`, with a larger s. In decoders
    and encoders.

    Args:
        base, rotary_fraction, kept_frequencies, original_length: see `ExtendedRope`.
        factor: how fast s grows with the length; None means 1, which is `RopeNtk` with its factor null.
    """

    def stretch_B(self, at: AttentionContext) -> Tensor:
        growth = 1.0 if self.factor is None else self.factor
        return growth * self.times_longer_B(at) - (growth - 1)


class ScaledRope(ExtendedRope):
    """Base class of the extensions that also multiply cos and sin, and hence logits by the square."""

    def attention_factor_B(self, at: AttentionContext) -> Tensor:
        """Return the factor of cos and sin, in float64 (B is 1 if all rows share it)."""
        raise NotImplementedError

    def _rotations(self, at: AttentionContext) -> Rotations:
        (cos_q, sin_q), (cos_k, sin_k) = super()._rotations(at)
        scale_B111 = self.attention_factor_B(at).float().to(cos_q.device)[:, None, None, None]
        return (cos_q * scale_B111, sin_q * scale_B111), (cos_k * scale_B111, sin_k * scale_B111)


class RopeYarn(ScaledRope):
    """YaRN: slow pairs are interpolated by s, fast pairs kept, pairs between blended; logits grow with ln s.

    Pair m makes L0 theta_m / 2 pi rotations over the original length. Its frequency is kept if it makes more
    than ``beta_fast`` rotations, divided by s if fewer than ``beta_slow``, and blended in between by a linear
    ramp over pair indices; if no pair makes ``beta_slow`` rotations, all are divided. cos and sin are
    multiplied by 0.1 ln s + 1, hence the logits of the rotated channels by its square.

    Source: Peng et al. 2023, arXiv:2309.00071, section 3.4; rounding as in its code and in transformers.
    Parameters: none. Beyond training: fast pairs rotate as in training, slow ones are interpolated. In
    decoders and encoders.

    Args:
        base, rotary_fraction, kept_frequencies, factor, original_length: see `ExtendedRope`.
        beta_fast, beta_slow: rotations over the original length, as above; 32 and 1 in the paper.
            beta_fast >= beta_slow > 0.
        ramp: ``linear``, or ``radix``: pair m between the ends lo and hi of the ramp is divided by s^r, with
            r = (m - lo)(m - lo + 1) / ((hi - lo)(hi - lo + 1)) (``yarn_radix3`` of MrRoPE's released code).
        truncate: whether the ends of the ramp are rounded to whole pairs (gpt-oss does not round).
        attention_factor: factor of cos and sin, above 0, in place of 0.1 ln s + 1 (Olmo 3).
        mscale, mscale_all_dim: if both are given, cos and sin are multiplied by the ratio of
            0.1 mscale ln s + 1 to 0.1 mscale_all_dim ln s + 1 (DeepSeek-V3, which also multiplies all logits
            by the square of the latter). At least 0; 0 and None mean not given.
    """

    def __init__(
        self,
        shape: ModelShape,
        *,
        base: float = 10_000.0,
        rotary_fraction: float = 1.0,
        kept_frequencies: float = 1.0,
        factor: float | None = None,
        beta_fast: float = 32.0,
        beta_slow: float = 1.0,
        original_length: int | None = None,
        ramp: Ramp = "linear",
        truncate: bool = True,
        attention_factor: float | None = None,
        mscale: float | None = None,
        mscale_all_dim: float | None = None,
    ):
        super().__init__(
            shape,
            base=base,
            rotary_fraction=rotary_fraction,
            kept_frequencies=kept_frequencies,
            factor=factor,
            original_length=original_length,
        )
        if not 0 < beta_slow <= beta_fast < math.inf:
            raise ValueError(
                f"beta_fast={beta_fast} must be at least beta_slow={beta_slow}, and both above 0"
            )
        self.beta_fast = beta_fast
        self.beta_slow = beta_slow
        self.ramp = one_of(Ramp, "ramp", ramp)
        self.truncate = truncate
        if attention_factor is not None:
            above(0, "attention_factor", attention_factor)
        for name, value in (("mscale", mscale), ("mscale_all_dim", mscale_all_dim)):
            if value is not None:
                at_least(0, name, value)
        self.attention_factor = attention_factor
        self.mscale = mscale
        self.mscale_all_dim = mscale_all_dim

    def frequencies_BR(self, at: AttentionContext) -> Tensor:
        frequencies_BR = super().frequencies_BR(at)
        share_R = self.interpolated_share(frequencies_BR.device)
        stretch_B1 = self.stretch_B(at)[:, None]
        if self.ramp == "radix":
            return frequencies_BR / stretch_B1**share_R
        return frequencies_BR * (1 - share_R) + frequencies_BR / stretch_B1 * share_R

    def interpolated_share(self, device: torch.device) -> Tensor:
        """Return 0 for an unchanged pair and 1 for an interpolated pair, [R] in float64."""
        first = self._pair_with(self.beta_fast)
        last = self._pair_with(self.beta_slow)
        if self.truncate:
            first = math.floor(first)
            last = math.ceil(last)
        first = max(first, 0)
        last = min(last, 2 * self.pairs - 1)
        pairs_R = torch.arange(self.pairs, dtype=torch.float64, device=device)
        if last < first:  # even the fastest pair makes fewer than beta_slow rotations
            return torch.ones_like(pairs_R)
        width = max(last - first, 0.001)
        share_R = ((pairs_R - first) / width).clamp(0, 1)
        return share_R * (share_R * width + 1) / (width + 1) if self.ramp == "radix" else share_R

    def _pair_with(self, rotations: float) -> float:
        """Return the (fractional) index of the pair with this many rotations over the original length."""
        inverse_frequency = self.original_length / (2 * math.pi * rotations)
        return self.pairs * math.log(inverse_frequency) / math.log(self.base)

    def attention_factor_B(self, at: AttentionContext) -> Tensor:
        log_B = self.stretch_B(at).log()
        if self.attention_factor is not None:
            return torch.full_like(log_B, self.attention_factor)
        if self.mscale and self.mscale_all_dim:
            return (0.1 * self.mscale * log_B + 1) / (0.1 * self.mscale_all_dim * log_B + 1)
        return 0.1 * log_B + 1
