"""Public bugs of positional encodings, rewritten for the tests, each with a right implementation."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from pe_experiments.checking.wrapping import attention_weights
from pe_experiments.encodings import AttentionContext, ModelShape, PositionalEncoding

Pair = tuple[Tensor, Tensor]


# Rotations.


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate pairs of channels that are half a head apart."""
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


class RightRope(PositionalEncoding):
    """RoPE, angles in float32."""

    base = 10_000.0

    def inverse(self, at: AttentionContext) -> Tensor:
        channels = self.shape.head_dim
        return 1.0 / self.base ** (torch.arange(0, channels, 2).float() / channels)

    def ids(self, positions: Tensor) -> Tensor:
        return positions

    def rotated(self, x: Tensor, positions: Tensor, at: AttentionContext) -> Tensor:
        angles = self.ids(positions)[:, None, :, None].float() * self.inverse(at)
        return turned(x, angles.cos(), angles.sin())

    def rotate(self, q: Tensor, k: Tensor, at: AttentionContext) -> Pair:
        return self.rotated(q, at.q_positions_BT, at), self.rotated(k, at.k_positions_BS, at)


class FourthLayerUnrotated(RightRope):
    def rotate(self, q: Tensor, k: Tensor, at: AttentionContext) -> Pair:
        return (q, k) if at.layer % 4 == 3 else super().rotate(q, k, at)


class WrappedAt5000(RightRope):
    def ids(self, positions: Tensor) -> Tensor:
        return positions % 5000


class CacheOf32768(RightRope):
    """Ids beyond the cache use its last row."""

    def ids(self, positions: Tensor) -> Tensor:
        return positions.clamp(max=32_767)


class LinearFrequencies(RightRope):
    def inverse(self, at: AttentionContext) -> Tensor:
        pairs = self.shape.head_dim // 2
        return torch.linspace(1.0, 1e-4, pairs)


class UnrotatedWhenCached(RightRope):
    def rotate(self, q: Tensor, k: Tensor, at: AttentionContext) -> Pair:
        return (q, k) if q.shape[2] < k.shape[2] else super().rotate(q, k, at)


class StaleCache(RightRope):
    """Cosines and sines are cached from the longest call so far, at the ids of that call."""

    def __init__(self, shape: ModelShape):
        super().__init__(shape)
        self.cached_ids: Any = None

    def rotated(self, x: Tensor, positions: Tensor, at: AttentionContext) -> Tensor:
        if self.cached_ids is None or self.cached_ids.shape[1] < positions.shape[1]:
            self.cached_ids = positions
        return super().rotated(x, self.cached_ids[:1, : positions.shape[1]], at)


class RightYarn(PositionalEncoding):
    """YaRN of a released model: factor 4, trained on 4,096 tokens."""

    base, factor, original = 10_000.0, 4.0, 4096
    scaled = 1  # exponent of the scale of q and of k

    def last(self, pair: float, pairs: int) -> float:
        return min(pair, 2 * pairs - 1)

    def scale(self) -> float:
        return 0.1 * math.log(self.factor) + 1

    def inverse(self, pairs: int) -> Tensor:
        inverse = self.base ** (-torch.arange(pairs).double() / pairs)
        low, high = (
            pairs * math.log(self.original / (turns * 2 * math.pi)) / math.log(self.base) for turns in (32, 1)
        )
        low, high = max(math.floor(low), 0), self.last(math.ceil(high), pairs)
        ramp = ((torch.arange(pairs).double() - low) / max(high - low, 0.001)).clamp(0, 1)
        return inverse * (1 - ramp + ramp / self.factor)

    def rotated(self, x: Tensor, positions: Tensor) -> Tensor:
        angles = positions[:, None, :, None].double() * self.inverse(x.shape[-1] // 2)
        scale = self.scale() ** self.scaled
        return turned(x, (angles.cos() * scale).float(), (angles.sin() * scale).float()).to(x.dtype)

    def rotate(self, q: Tensor, k: Tensor, at: AttentionContext) -> Pair:
        return self.rotated(q, at.q_positions_BT), self.rotated(k, at.k_positions_BS)


class YarnScaleOnTheWholeLogit(RightYarn):
    """The scale multiplies q alone, and so the logit once instead of twice."""

    scaled = 0

    def rotate(self, q: Tensor, k: Tensor, at: AttentionContext) -> Pair:
        q, k = super().rotate(q, k, at)
        return q * self.scale(), k


# Whole attentions.


class RightGroups(RightRope):
    """Grouped queries: two heads of keys, each repeated for the queries of its group."""

    key_heads = 2
    interleaved = False
    rotates_values = False

    def weights(self, q: Tensor, k: Tensor, at: AttentionContext) -> Tensor:
        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            groups = q.shape[1] // k.shape[1]
            q, k = self.rotate(q, k, at)
            if self.rotates_values:
                v = self.rotated(v, at.k_positions_BS, at)
            if self.interleaved:
                k, v = (x.repeat(1, groups, 1, 1) for x in (k, v))
            else:
                k, v = (x.repeat_interleave(groups, dim=1) for x in (k, v))
            logits = q @ k.mT * self.shape.head_dim**-0.5
            return logits.masked_fill(~at.visible_BTS[:, None], -torch.inf).softmax(-1) @ v

        heads = self.key_heads if self.shape.num_heads % self.key_heads == 0 else self.shape.num_heads
        return attention_weights(attend, q, k, heads)


class KeysOfOtherGroups(RightGroups):
    interleaved = True


class RotatedValues(RightGroups):
    rotates_values = True


# Embeddings.


class RightSinusoidal(PositionalEncoding):
    """Sinusoids, also at odd widths."""

    rows = 5000

    def __init__(self, shape: ModelShape):
        super().__init__(shape)
        self.register_buffer("table", self.make(shape.d_model), persistent=False)

    def make(self, width: int) -> Tensor:
        angles = torch.arange(self.rows)[:, None] * 10_000.0 ** (-torch.arange(0, width, 2) / width).double()
        table = torch.zeros(self.rows, width)
        table[:, 0::2] = angles.sin().float()
        table[:, 1::2] = angles.cos().float()[:, : width // 2]
        return table

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + self.table[positions]


class OddWidthsCrash(RightSinusoidal):
    def make(self, width: int) -> Tensor:
        table = super().make(width)
        angles = torch.arange(self.rows)[:, None] * 10_000.0 ** (-torch.arange(0, width, 2) / width)
        table[:, 1::2] = angles.cos()
        return table


class OnlyRowZeroWritten(RightSinusoidal):
    def make(self, width: int) -> Tensor:
        table = torch.zeros(self.rows, width)
        table[0] = super().make(width)[0]
        return table


class LastVectorForAll(RightSinusoidal):
    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + self.table[positions.max(1, keepdim=True).values]


class SumTimesRoot(RightSinusoidal):
    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return super().embed(x, positions) * x.shape[-1] ** 0.5


class VectorsTwice(RightSinusoidal):
    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + 2 * self.table[positions]


class TokensTimesRoot(RightSinusoidal):
    """As in the paper: no mistake."""

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return super().embed(x * x.shape[-1] ** 0.5, positions)


class RightLearned(PositionalEncoding):
    extra, padding = 0, None

    def __init__(self, shape: ModelShape):
        super().__init__(shape)
        self.table = nn.Embedding(shape.train_positions + self.extra, shape.d_model, padding_idx=self.padding)

    def ids(self, positions: Tensor) -> Tensor:
        return positions.clamp(max=self.shape.train_positions - 1)

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + self.table(self.ids(positions) + self.extra)


class PaddingIndexZero(RightLearned):
    padding = 0


class RowsWrapped(RightLearned):
    def ids(self, positions: Tensor) -> Tensor:
        return positions % self.shape.train_positions


class Roberta(RightLearned):
    """Positions begin at row 2: no mistake."""

    extra, padding = 2, 1


# Biases.


class RightAlibi(PositionalEncoding):
    """ALiBi as in the authors' code."""

    def slopes(self, heads: int) -> Tensor:
        def geometric(n: int) -> list[float]:
            return [2 ** (-8 * h / n) for h in range(1, n + 1)]

        power = 1 << (heads.bit_length() - 1)
        return torch.tensor(geometric(power) + geometric(2 * power)[0::2][: heads - power])

    def bias(self, q: Tensor, k: Tensor, at: AttentionContext) -> Tensor:
        distances = at.relative_positions_BTS.abs()[:, None]
        return -self.slopes(self.shape.num_heads)[:, None, None] * distances


class KeysAlone(RightAlibi):
    """m j in place of -m (i - j), as in BLOOM: right in a decoder, rounded off in float32."""

    causal_only = True

    def bias(self, q: Tensor, k: Tensor, at: AttentionContext) -> Tensor:
        return self.slopes(self.shape.num_heads)[:, None, None] * at.k_positions_BS[:, None, None].float()


class SlopesWrongFromTwelve(RightAlibi):
    def slopes(self, heads: int) -> Tensor:
        slopes = super().slopes(heads)
        return slopes if heads < 12 else slopes.sort(descending=True).values


class ClippedAt5000(RightAlibi):
    def bias(self, q: Tensor, k: Tensor, at: AttentionContext) -> Tensor:
        distances = at.relative_positions_BTS.abs().clamp(max=5000)[:, None]
        return -self.slopes(self.shape.num_heads)[:, None, None] * distances


class ExtraHeadsNotInterleaved(RightAlibi):
    def slopes(self, heads: int) -> Tensor:
        power = 1 << (heads.bit_length() - 1)
        more = [2 ** (-4 * h / power) for h in range(1, heads - power + 1)]
        return torch.tensor([2 ** (-8 * h / power) for h in range(1, power + 1)] + more)


class HeadsPermuted(RightAlibi):
    def slopes(self, heads: int) -> Tensor:
        return super().slopes(heads).roll(1)


class LastHeadsUnbiased(RightAlibi):
    def slopes(self, heads: int) -> Tensor:
        slopes = super().slopes(heads)
        slopes[heads - heads // 4 :] = 0
        return slopes


class RightT5(PositionalEncoding):
    """T5's buckets, distances up to the training length."""

    def __init__(self, shape: ModelShape):
        super().__init__(shape)
        sides = 1 if shape.causal else 2
        self.buckets = min(32, 2 * sides * max(1, shape.train_length // 2))
        self.most = max(shape.train_length, self.buckets // sides // 2 + 1)
        self.relative_attention_bias = nn.Embedding(self.buckets, shape.num_heads)

    def bias(self, q: Tensor, k: Tensor, at: AttentionContext) -> Tensor:
        relative = at.relative_positions_BTS
        buckets = self.buckets
        offset = torch.zeros((), dtype=torch.long)
        if self.shape.causal:
            distance = -relative.clamp(max=0)
        else:
            buckets = buckets // 2
            offset = (relative > 0).long() * buckets
            distance = relative.abs()
        exact = buckets // 2
        log = (distance.clamp(min=1).double() / exact).log() / math.log(self.most / exact)
        far = (exact + (log * (buckets - exact)).long()).clamp(max=buckets - 1)
        bucket = offset + torch.where(distance < exact, distance, far)
        return self.relative_attention_bias(bucket).permute(0, 3, 1, 2)


class T5PaperArguments(RightT5):
    """32 buckets up to 128: no mistake."""

    def __init__(self, shape: ModelShape):
        super().__init__(shape)
        self.buckets = 32
        self.most = 128
        self.relative_attention_bias = nn.Embedding(32, shape.num_heads)


# Classes that are not encodings.


class MisspeltHook(PositionalEncoding):
    def bais(self, q: Tensor, k: Tensor, at: AttentionContext) -> Tensor:
        return -at.relative_positions_BTS.abs()[:, None].float()


class NotANumber(PositionalEncoding):
    def bias(self, q: Tensor, k: Tensor, at: AttentionContext) -> Tensor:
        return -at.relative_positions_BTS.float().sqrt()[:, None]


class WrongShape(PositionalEncoding):
    def bias(self, q: Tensor, k: Tensor, at: AttentionContext) -> Tensor:
        return torch.zeros(7, 7)
