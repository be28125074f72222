"""Broken biases."""

from __future__ import annotations

import torch
from torch import Tensor

from pe_experiments.checking.mutants.registry import mutant
from pe_experiments.encodings.alibi import Alibi, alibi_slopes
from pe_experiments.encodings.base import AttentionContext
from pe_experiments.encodings.deberta import Deberta
from pe_experiments.encodings.fire import EPSILON, Fire
from pe_experiments.encodings.kerple import KerpleLog, KerplePower
from pe_experiments.encodings.shaw import Shaw
from pe_experiments.encodings.t5 import T5Bias, distance_bucket
from pe_experiments.encodings.transformer_xl import TransformerXL
from pe_experiments.encodings.windows import HardAlibi, SlidingWindow, window_mask


class WithSlopes(Alibi):
    """ALiBi with other slopes."""

    def slopes(self) -> Tensor:
        raise NotImplementedError

    def _bias(self, at: AttentionContext) -> Tensor:
        right_H = alibi_slopes(self.shape.num_heads)
        return (super()._bias(at) * (self.slopes() / right_H)[:, None, None]).float()


@mutant("alibi: slopes for the wrong number of heads")
class AlibiWrongHeads(WithSlopes):
    def slopes(self) -> Tensor:
        return alibi_slopes(2 * self.shape.num_heads)[: self.shape.num_heads]


@mutant("alibi: heads counted from 0")
class AlibiFromZero(WithSlopes):
    def slopes(self) -> Tensor:
        heads = self.shape.num_heads
        return 2.0 ** (-8 * torch.arange(heads, dtype=torch.float64) / heads)


@mutant("alibi: no interleaving where the number of heads is no power of two")
class AlibiPlainSlopes(WithSlopes):
    def slopes(self) -> Tensor:
        heads = self.shape.num_heads
        return 2.0 ** (-8 * torch.arange(1, heads + 1, dtype=torch.float64) / heads)


@mutant("alibi: heads in reverse order")
class AlibiReversed(WithSlopes):
    def slopes(self) -> Tensor:
        return alibi_slopes(self.shape.num_heads).flip(0)


@mutant("alibi: one slope for all heads")
class AlibiOneSlope(WithSlopes):
    def slopes(self) -> Tensor:
        return alibi_slopes(self.shape.num_heads)[:1].expand(self.shape.num_heads)


@mutant("alibi: far keys are favoured (sign)")
class AlibiSign(Alibi):
    def _bias(self, at: AttentionContext) -> Tensor:
        return -super()._bias(at)


@mutant("alibi: added before the scale")
class AlibiScaled(Alibi):
    def _bias(self, at: AttentionContext) -> Tensor:
        return super()._bias(at) * self.shape.head_dim**-0.5


@mutant("alibi_asymmetric: keys to the right are the nearer ones")
class AlibiOtherSide(Alibi):
    def _bias(self, at: AttentionContext) -> Tensor:
        return super()._bias(at).mT


@mutant("t5: distance sign")
class T5Sign(T5Bias):
    def _bias(self, at: AttentionContext) -> Tensor:
        return self._of(-at.relative_positions_BTS, self.max_distance, self.shape.causal)

    def _of(self, relative_positions_BTS: Tensor, max_distance: int, causal: bool) -> Tensor:
        bucket = distance_bucket(relative_positions_BTS, self.num_buckets, max_distance, causal)
        return self.table[bucket].permute(0, 3, 1, 2)


@mutant("t5: two-sided buckets in a decoder, one-sided ones in an encoder")
class T5Sides(T5Sign):
    def _bias(self, at: AttentionContext) -> Tensor:
        return self._of(
            at.relative_positions_BTS, max(self.max_distance, self.num_buckets), not self.shape.causal
        )


@mutant("t5: max_distance of the paper, 128")
class T5Far(T5Sign):
    def _bias(self, at: AttentionContext) -> Tensor:
        return self._of(at.relative_positions_BTS, 128, self.shape.causal)


@mutant("t5: distances off by one")
class T5OffByOne(T5Sign):
    def _bias(self, at: AttentionContext) -> Tensor:
        return self._of(at.relative_positions_BTS - 1, self.max_distance, self.shape.causal)


@mutant("t5: added before the scale")
class T5Scaled(T5Bias):
    def _bias(self, at: AttentionContext) -> Tensor:
        return super()._bias(at) * self.shape.head_dim**-0.5


@mutant("kerple_log: far keys are favoured (sign)")
class KerpleLogSign(KerpleLog):
    def _bias(self, at: AttentionContext) -> Tensor:
        return -super()._bias(at)


@mutant("kerple_log: p and a exchanged")
class KerpleLogExchanged(KerpleLog):
    def _bias(self, at: AttentionContext) -> Tensor:
        p, a = self.p_H.clamp(min=0.01)[:, None, None], self.a_H.clamp(min=0.01)[:, None, None]
        return -a * torch.log1p(p * at.relative_positions_BTS.abs()[:, None])


@mutant("kerple_power: p and a exchanged")
class KerplePowerExchanged(KerplePower):
    def _bias(self, at: AttentionContext) -> Tensor:
        p, a = self.p_H.clamp(min=0.01)[:, None, None], self.a_H.clamp(min=0.01)[:, None, None]
        return -p * at.relative_positions_BTS.abs()[:, None].float() ** a


@mutant("kerple_power: far keys are favoured (sign)")
class KerplePowerSign(KerplePower):
    def _bias(self, at: AttentionContext) -> Tensor:
        return -super()._bias(at)


class FireOf(Fire):
    """FIRE with another share."""

    def share(self, distance_BTS: Tensor, query_BT1: Tensor, limit: Tensor) -> Tensor:
        raise NotImplementedError

    def bias(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor:
        query_BT1 = at.q_positions_BT[:, :, None].float()
        limit = (self.stretch * self.threshold).abs()
        share_BTS = self.share(at.relative_positions_BTS.abs().float(), query_BT1, limit)
        return self.mlp(share_BTS[..., None]).permute(0, 3, 1, 2)


@mutant("fire: min in place of max")
class FireMin(FireOf):
    def share(self, distance_BTS: Tensor, query_BT1: Tensor, limit: Tensor) -> Tensor:
        return self._psi(distance_BTS) / (self._psi(torch.minimum(query_BT1, limit)) + EPSILON)


@mutant("fire: the share is taken before the logarithm")
class FireLogOfShare(FireOf):
    def share(self, distance_BTS: Tensor, query_BT1: Tensor, limit: Tensor) -> Tensor:
        return self._psi(distance_BTS / torch.maximum(query_BT1, limit))


@mutant("fire: queries counted from 1")
class FireFromOne(FireOf):
    def share(self, distance_BTS: Tensor, query_BT1: Tensor, limit: Tensor) -> Tensor:
        return self._psi(distance_BTS) / (self._psi(torch.maximum(query_BT1 + 1, limit)) + EPSILON)


@mutant("sliding_window: one position too wide")
class WindowTooWide(SlidingWindow):
    def _bias(self, at: AttentionContext) -> Tensor:
        return window_mask(at, torch.tensor([self.window + 1.0]))


@mutant("hard_alibi: windows start at 2 tokens")
class HardAlibiWide(HardAlibi):
    def _bias(self, at: AttentionContext) -> Tensor:
        head_H = torch.arange(self.shape.num_heads)
        return window_mask(at, torch.where(head_H < self.windowed_heads, head_H + 2.0, torch.inf))


@mutant("hard_alibi: the last heads have the windows")
class HardAlibiLast(HardAlibi):
    def _bias(self, at: AttentionContext) -> Tensor:
        return super()._bias(at).flip(1)


@mutant("shaw: sign of the distance before clipping")
class ShawSign(Shaw):
    def bias(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor:
        row_BTS = (self.max_distance - at.relative_positions_BTS).clamp(0, self.rows - 1)
        scores = (q_BHTK * self.shape.head_dim**-0.5) @ self.table_RK.T
        return scores.gather(-1, row_BTS[:, None].expand(*scores.shape[:3], -1))


@mutant("shaw: not scaled")
class ShawUnscaled(Shaw):
    def bias(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor:
        return super().bias(q_BHTK, k_BHSK, at) * self.shape.head_dim**0.5


@mutant("transformer_xl: distance sign")
class XlSign(TransformerXL):
    def _distances(self, query_BHTD: Tensor, at: AttentionContext) -> Tensor:
        mirrored = AttentionContext(-at.q_positions_BT, -at.k_positions_BS, at.visible_BTS)
        return super()._distances(query_BHTD, mirrored)


@mutant("transformer_xl: the relative shift is off by one")
class XlOffByOne(TransformerXL):
    def _distances(self, query_BHTD: Tensor, at: AttentionContext) -> Tensor:
        moved = AttentionContext(at.q_positions_BT + 1, at.k_positions_BS, at.visible_BTS)
        return super()._distances(query_BHTD, moved)


@mutant("transformer_xl: u and v exchanged")
class XlExchanged(TransformerXL):
    def bias(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor:
        u, v = self.u_HK, self.v_HK
        swapped = TransformerXL(self.shape, base=self.base)
        swapped.distance, swapped.u_HK, swapped.v_HK = self.distance, v, u
        return swapped.bias(q_BHTK, k_BHSK, at)


@mutant("deberta: position to content uses d(i, j) instead of d(j, i)")
class DebertaIndex(Deberta):
    def _rows(self, at: AttentionContext) -> tuple[Tensor, Tensor]:
        from_query_BTS, _ = super()._rows(at)
        return from_query_BTS, from_query_BTS.mT


@mutant("deberta: distance sign")
class DebertaSign(Deberta):
    def _rows(self, at: AttentionContext) -> tuple[Tensor, Tensor]:
        from_query_BTS, from_key_BST = super()._rows(at)
        return from_key_BST.mT, from_query_BTS.mT


@mutant("deberta: scaled for one term instead of three")
class DebertaScale(Deberta):
    def rotate(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> tuple[Tensor, Tensor]:
        return q_BHTK, k_BHSK

    def bias(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor:
        return super().bias(q_BHTK, k_BHSK * 3**0.5, at)
