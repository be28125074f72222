"""Broken rotations and scales of queries and keys."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from pe_experiments.checking.mutants.registry import mutant
from pe_experiments.encodings.base import AttentionContext
from pe_experiments.encodings.pope import Pope
from pe_experiments.encodings.rope import Rope, Rotations, cos_and_sin, frequencies
from pe_experiments.encodings.rope_extension import RopeDynamicNtk, RopeLinear, RopeNtk, RopeYarn
from pe_experiments.encodings.scaled_logits import LogN, ScalableSoftmax, log_keys
from pe_experiments.encodings.xpos import XPos


@mutant("rope: half-split angles on interleaved channels")
class RopeMixedLayouts(Rope):
    def rotate(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> tuple[Tensor, Tensor]:
        (cos, sin), _ = at.once(self._rotations)
        cos, sin = torch.cat([cos, cos], -1), torch.cat([sin, sin], -1)

        def rotated(x: Tensor) -> Tensor:
            x, rest = x.split([2 * self.pairs, x.shape[-1] - 2 * self.pairs], dim=-1)
            pairs = x.unflatten(-1, (-1, 2))
            x = x * cos + torch.stack([-pairs[..., 1], pairs[..., 0]], -1).flatten(-2) * sin
            return torch.cat([x, rest], dim=-1)

        return rotated(q_BHTK), rotated(k_BHSK)


@mutant("rope: keys rotate the other way")
class RopeOtherWay(Rope):
    def _rotations(self, at: AttentionContext) -> Rotations:
        queries, (cos, sin) = super()._rotations(at)
        return queries, (cos, -sin)


@mutant("rope: only queries rotate")
class RopeQueriesOnly(Rope):
    def rotate(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> tuple[Tensor, Tensor]:
        return super().rotate(q_BHTK, k_BHSK, at)[0], k_BHSK


@mutant("rope: keys are one position ahead")
class RopeOffByOne(Rope):
    def _rotations(self, at: AttentionContext) -> Rotations:
        return super()._rotations(at)[0], cos_and_sin(at.k_positions_BS + 1, self.frequencies_BR(at))


@mutant("rope: the exponent lacks its factor 2")
class RopeSlowFall(Rope):
    def frequencies_BR(self, at: AttentionContext) -> Tensor:
        return frequencies(self.base**0.5, self.pairs)[None]


@mutant("rope: exponents from 1 instead of 0")
class RopeExponentFromOne(Rope):
    def frequencies_BR(self, at: AttentionContext) -> Tensor:
        return super().frequencies_BR(at) * self.base ** (-1 / self.pairs)


@mutant("rope: base 1,000")
class RopeBase(Rope):
    def frequencies_BR(self, at: AttentionContext) -> Tensor:
        return frequencies(self.base / 10, self.pairs)[None]


@mutant("rope: half of the channels rotate")
class RopeHalf(Rope):
    def frequencies_BR(self, at: AttentionContext) -> Tensor:
        return frequencies(self.base, max(1, self.pairs // 2))[None]


@mutant("rope: positions in bfloat16")
class RopeRoundedPositions(Rope):
    def _rotations(self, at: AttentionContext) -> Rotations:
        both = cos_and_sin(at.q_positions_BT.bfloat16(), self.frequencies_BR(at))
        return both, both


@mutant("rope_partial: frequencies of the whole head")
class PartialWholeHead(Rope):
    def frequencies_BR(self, at: AttentionContext) -> Tensor:
        return frequencies(self.base, self.shape.head_dim // 2)[None, : self.pairs]


@mutant("p_rope: the fastest frequencies are set to 0")
class PRopeSlowest(Rope):
    def frequencies_BR(self, at: AttentionContext) -> Tensor:
        kept = frequencies(self.base, self.pairs)
        kept[: self.pairs - self.rotated_pairs] = 0
        return kept[None]


@mutant("p_rope: frequencies spread over the pairs that rotate")
class PRopeSpread(Rope):
    def frequencies_BR(self, at: AttentionContext) -> Tensor:
        return F.pad(frequencies(self.base, self.rotated_pairs), (0, self.pairs - self.rotated_pairs))[None]


@mutant("rope_linear: positions multiplied by the factor")
class LinearMultiplied(RopeLinear):
    def frequencies_BR(self, at: AttentionContext) -> Tensor:
        return Rope.frequencies_BR(self, at) * self.stretch_B(at)[:, None]


@mutant("rope_ntk: the base is multiplied by the factor itself")
class NtkNoExponent(RopeNtk):
    def frequencies_BR(self, at: AttentionContext) -> Tensor:
        return frequencies(self.base * float(self.stretch_B(at)), self.pairs)[None]


@mutant("rope_dynamic_ntk: the factor is not taken back at the training length")
class DynamicJump(RopeDynamicNtk):
    def stretch_B(self, at: AttentionContext) -> Tensor:
        return (self.factor or 1.0) * self.times_longer_B(at)


@mutant("rope_yarn: the ramp is upside down")
class YarnUpsideDown(RopeYarn):
    def interpolated_share(self, device: torch.device) -> Tensor:
        return 1 - super().interpolated_share(device)


@mutant("rope_yarn: cos and sin are not scaled")
class YarnUnscaled(RopeYarn):
    def _rotations(self, at: AttentionContext) -> Rotations:
        return Rope._rotations(self, at)


@mutant("rope_yarn: the current length in place of the original one")
class YarnCurrentLength(RopeYarn):
    def _pair_with(self, rotations: float) -> float:
        times = 24 / self.shape.train_length
        return super()._pair_with(rotations) + self.pairs * math.log(times) / math.log(self.base)


@mutant("xpos: keys grow with their position as queries do")
class XPosSameSign(XPos):
    def _rotations(self, at: AttentionContext) -> Rotations:
        queries, _ = super()._rotations(at)
        return queries, queries


@mutant("xpos: logits grow with distance")
class XPosGrows(XPos):
    def _scales(self, offsets_BT: Tensor) -> Tensor:
        return 1 / super()._scales(offsets_BT)


@mutant("xpos: queries and keys have centres of their own")
class XPosCentres(XPos):
    def _rotations(self, at: AttentionContext) -> Rotations:
        queries, _ = super()._rotations(at)
        _, (cos, sin) = Rope._rotations(self, at)
        scale = self._scales(-at.k_positions_BS)
        return queries, (cos * scale, sin * scale)


@mutant("pope: the sign of delta")
class PopeDelta(Pope):
    def rotate(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> tuple[Tensor, Tensor]:
        # cos(a - d) with the roles of q and k exchanged is cos(a + d) in the other direction.
        k_BHSK, q_BHTK = super().rotate(k_BHSK, q_BHTK, at)
        return q_BHTK, k_BHSK


@mutant("pope: RoPE's frequencies, each twice")
class PopePairs(Pope):
    def _frequencies(self, at: AttentionContext) -> Tensor:
        return frequencies(self.base, (self.shape.head_dim + 1) // 2).repeat(2)[None, : self.shape.head_dim]


@mutant("pope: magnitudes without softplus")
class PopeRaw(Pope):
    def rotate(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> tuple[Tensor, Tensor]:
        sizes = torch.cat([F.softplus(q_BHTK)] * 2, -1), torch.cat([F.softplus(k_BHSK)] * 2, -1)
        rotated = super().rotate(q_BHTK, k_BHSK, at)
        raw = torch.cat([q_BHTK] * 2, -1), torch.cat([k_BHSK] * 2, -1)
        return rotated[0] / sizes[0] * raw[0], rotated[1] / sizes[1] * raw[1]


@mutant("logn: subtracted instead of multiplied")
class LogNSubtracted(LogN):
    def rotate(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> tuple[Tensor, Tensor]:
        return q_BHTK, k_BHSK

    def bias(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor:
        return -log_keys(at)  # the same for all keys: softmax does not see it


@mutant("logn: the position id in place of the number of keys")
class LogNPosition(LogN):
    def rotate(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> tuple[Tensor, Tensor]:
        ids = (at.q_positions_BT + 1).float().log()[:, None, :, None]
        return q_BHTK * ids / math.log(self.shape.train_length), k_BHSK


@mutant("ssmax: the query itself is not counted")
class SsmaxOffByOne(ScalableSoftmax):
    def rotate(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> tuple[Tensor, Tensor]:
        keys = (log_keys(at).exp() - 1).clamp(min=1)
        return q_BHTK * self.scale_H[:, None, None] * keys.log(), k_BHSK


@mutant("ssmax: the scale is learned, the length left out")
class SsmaxNoLength(ScalableSoftmax):
    def rotate(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> tuple[Tensor, Tensor]:
        return q_BHTK * self.scale_H[:, None, None], k_BHSK
