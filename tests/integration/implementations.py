"""Implementations in other conventions, right and wrong, for the tests of the checker."""

from __future__ import annotations

import math
import random
from typing import Any

import torch
from torch import Tensor, nn

from pe_experiments.encodings import AttentionContext, ModelShape, PositionalEncoding
from pe_experiments.encodings.alibi import alibi_slopes
from pe_experiments.encodings.cope import Cope
from pe_experiments.encodings.learned import Learned
from pe_experiments.encodings.rope import frequencies
from pe_experiments.encodings.sinusoidal import sinusoid_vectors
from tests.integration.public_bugs import (
    Pair,
    RightAlibi,
    RightLearned,
    RightRope,
    RightSinusoidal,
    RightT5,
    RightYarn,
    turned,
)

# Rotations.


class Interleaved(PositionalEncoding):
    """RoPE as in the paper, angles in float32."""

    def rotate(self, q: Tensor, k: Tensor, at: AttentionContext) -> Pair:
        return self.rotated(q, at.q_positions_BT), self.rotated(k, at.k_positions_BS)

    def angles(self, positions: Tensor, channels: int) -> Tensor:
        inverse = 1 / (10000 ** (torch.arange(0, channels, 2).float() / channels))
        return (positions[:, None, :, None].float() * inverse).repeat_interleave(2, -1)

    def rotated(self, x: Tensor, positions: Tensor) -> Tensor:
        angles = self.angles(positions, x.shape[-1])
        across = torch.stack([-x[..., 1::2], x[..., 0::2]], -1).flatten(-2)
        return x * angles.cos() + across * angles.sin()


class LastQuarter(Interleaved):
    """The last channels rotate, in neighbouring pairs."""

    def rotated(self, x: Tensor, positions: Tensor) -> Tensor:
        first = x.shape[-1] * 3 // 4
        return torch.cat([x[..., :first], super().rotated(x[..., first:], positions)], -1)


class Backwards(Interleaved):
    def angles(self, positions: Tensor, channels: int) -> Tensor:
        return -super().angles(positions, channels)


class QueriesAhead(Interleaved):
    def rotate(self, q: Tensor, k: Tensor, at: AttentionContext) -> Pair:
        return self.rotated(q, at.q_positions_BT + 1), self.rotated(k, at.k_positions_BS)


class FrozenFrequencies(RightRope):
    """Frequencies in a frozen parameter, as rotary_embedding_torch keeps them."""

    def __init__(self, shape: ModelShape):
        super().__init__(shape)
        inverse = 10000.0 ** -(torch.arange(0, shape.head_dim, 2) / shape.head_dim)
        self.freqs = nn.Parameter(inverse, requires_grad=False)

    def inverse(self, at: AttentionContext) -> Tensor:
        return self.freqs


class FirstRow(RightRope):
    def ids(self, positions: Tensor) -> Tensor:
        return positions[:1]


class InPlace(RightRope):
    def rotate(self, q: Tensor, k: Tensor, at: AttentionContext) -> Pair:
        rotated_q, rotated_k = super().rotate(q, k, at)
        with torch.no_grad():
            q.copy_(rotated_q)
        return q, rotated_k


class Detached(RightRope):
    def rotate(self, q: Tensor, k: Tensor, at: AttentionContext) -> Pair:
        return super().rotate(q.detach(), k.detach(), at)


class RopeOnValues(RightRope):
    """As in DeepSeek-V4."""

    def values(self, v: Tensor, at: AttentionContext) -> Tensor:
        return self.rotated(v, at.k_positions_BS, at)

    def outputs(self, o: Tensor, at: AttentionContext) -> Tensor:
        return self.rotated(o, -at.q_positions_BT, at)


# Biases.


class SlopesInBfloat16(RightAlibi):
    def slopes(self, heads: int) -> Tensor:
        return super().slopes(heads).bfloat16().float()


class SlopesTimesFour(RightAlibi):
    """Four is also the square root of the channels of a head in one of the compared models."""

    def slopes(self, heads: int) -> Tensor:
        return 4 * super().slopes(heads)


class OneSided(PositionalEncoding):
    """ALiBi of a decoder; in an encoder it favours keys to the right."""

    def bias(self, q: Tensor, k: Tensor, at: AttentionContext) -> Tensor:
        return alibi_slopes(q.shape[1]).float()[:, None, None] * at.relative_positions_BTS[:, None]


class LearnedSlopes(PositionalEncoding):
    """ALiBi at initialisation, with trainable slopes."""

    def __init__(self, shape: ModelShape):
        super().__init__(shape)
        self.slopes = nn.Parameter(alibi_slopes(shape.num_heads).float())

    def bias(self, q: Tensor, k: Tensor, at: AttentionContext) -> Tensor:
        return -self.slopes[:, None, None] * at.relative_positions_BTS.abs()[:, None]


class KerplePower(PositionalEncoding):
    """Its parameters have other names and another order."""

    def __init__(self, shape: ModelShape):
        super().__init__(shape)
        self.power = nn.Parameter(torch.ones(shape.num_heads))
        self.scale = nn.Parameter(torch.ones(shape.num_heads))

    def bias(self, q: Tensor, k: Tensor, at: AttentionContext) -> Tensor:
        distance = at.relative_positions_BTS.abs()[:, None].float()
        p, a = (x.clamp(min=0.01)[:, None, None] for x in (self.power, self.scale))
        return -a * distance.where(distance > 0, 1) ** p.clamp(max=2) * (distance > 0)


class KerpleLogBase2(PositionalEncoding):
    """Parameters of the same shape that have other names than ours."""

    def __init__(self, shape: ModelShape):
        super().__init__(shape)
        self.slope = nn.Parameter(torch.rand(shape.num_heads) * 2)
        self.scale = nn.Parameter(torch.rand(shape.num_heads))

    def bias(self, q: Tensor, k: Tensor, at: AttentionContext) -> Tensor:
        distance = at.relative_positions_BTS.abs()[:, None].float()
        p, a = (x.clamp(min=0.01)[:, None, None] for x in (self.slope, self.scale))
        return -p * torch.log2(1 + a * distance)


class TransposedTable(Cope):
    """The shape of the paper's listing: [1, head_dim, positions]."""

    def __init__(self, shape: ModelShape):
        super().__init__(shape)
        self.stored = nn.Parameter(self.table_RK.detach().T[None].clone())
        del self.table_RK

    @property
    def table_RK(self) -> Tensor:  # type: ignore[override]
        return self.stored[0].T


class BothSides(PositionalEncoding):
    """Shaw's table with rows for later keys, also in a decoder."""

    per_layer = True

    def __init__(self, shape: ModelShape):
        super().__init__(shape)
        self.most = min(16, shape.train_length - 1)
        self.table = nn.Embedding(2 * self.most + 1, shape.head_dim)

    def bias(self, q: Tensor, k: Tensor, at: AttentionContext) -> Tensor:
        rows = (at.k_positions_BS[:, None] - at.q_positions_BT[:, :, None]).clamp(-self.most, self.most)
        keys = self.table((rows + self.most).long())[:, None]
        return (q[:, :, :, None] * keys).sum(-1) / q.shape[-1] ** 0.5


class SeenBlock(PositionalEncoding):
    """Counts the rows of q: right only if all queries are in one call."""

    def bias(self, q: Tensor, k: Tensor, at: AttentionContext) -> Tensor:
        return -(torch.arange(q.shape[2])[:, None] - torch.arange(k.shape[2])).abs().float()


class Raises(PositionalEncoding):
    def bias(self, q: Tensor, k: Tensor, at: AttentionContext) -> Tensor:
        raise KeyError("oops")


class HalfBuilt(PositionalEncoding):
    def __init__(self, shape: ModelShape):
        super().__init__(shape)
        if not shape.causal:
            shape.nothing  # type: ignore[attr-defined] # noqa: B018


# Embeddings.


class Concatenated(PositionalEncoding):
    """Sines before cosines, concatenated to the tokens."""

    def __init__(self, shape: ModelShape):
        super().__init__(shape)
        self.position_width = shape.d_model // 2

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        angles = positions[..., None].double() * frequencies(10_000.0, self.position_width // 2)
        vectors = torch.cat([angles.sin(), angles.cos()], -1).float()
        return torch.cat([x, vectors.expand(len(x), -1, -1)], -1)


class CosinesFirst(PositionalEncoding):
    """Cosines before sines, in halves."""

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        angles = positions[..., None].double() * frequencies(10_000.0, x.shape[-1] // 2)
        return x + torch.cat([angles.cos(), angles.sin()], -1).float()


class Tensor2TensorSinusoids(PositionalEncoding):
    """Sines before cosines, whose exponents are divided by the number of pairs - 1."""

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        pairs = x.shape[-1] // 2
        step = math.log(10_000.0) / (pairs - 1)
        angles = positions[..., None].double() * torch.exp(-step * torch.arange(pairs).double())
        return x + torch.cat([angles.sin(), angles.cos()], -1).float()


class SinesInBfloat16(PositionalEncoding):
    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + sinusoid_vectors(positions, x.shape[-1], 10_000.0).float().bfloat16().float()


class SinglesFromZero(RightSinusoidal):
    """A token that comes alone, as in a step with cached keys, gets the vector of position 0."""

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return super().embed(x, 0 * positions if positions.shape[1] == 1 else positions)


class BeyondIgnored(RightLearned):
    """Its argument has no effect: the last row serves all ids beyond the table."""

    def __init__(self, shape: ModelShape, beyond: str = "interpolate"):
        super().__init__(shape)


class Unused(Learned):
    def embed_sequence(self, x: Tensor, positions: Tensor, declared: Any) -> Tensor:
        return x

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return x


# Lengths, dtypes, arguments and layers.


class AnglesInDtypeOfQ(RightRope):
    def rotated(self, x: Tensor, positions: Tensor, at: AttentionContext) -> Tensor:
        angles = positions[:, None, :, None].to(x.dtype) * self.inverse(at).to(x.dtype)
        return turned(x, angles.cos(), angles.sin())


class RightNtk(RightRope):
    """Dynamic NTK with factor 1: the base follows the length of each row."""

    def longer(self, at: AttentionContext) -> Tensor:
        return (at.tokens_B.double() / self.shape.train_length).clamp(min=1)

    def inverse(self, at: AttentionContext) -> Tensor:
        pairs = self.shape.head_dim // 2
        base = self.base * self.longer(at)[:, None, None, None] ** (pairs / (pairs - 1))
        return base ** (-torch.arange(pairs).double() / pairs)

    def rotated(self, x: Tensor, positions: Tensor, at: AttentionContext) -> Tensor:
        return super().rotated(x, positions, at).to(x.dtype)


class ScaledAtTheLength(RightNtk):
    """A row of exactly the training length is taken to be longer."""

    def longer(self, at: AttentionContext) -> Tensor:
        return super().longer(at) * torch.where(at.tokens_B == self.shape.train_length, 1.1, 1.0)


class LongRopeEachRow(RightRope):
    """A row longer than in training has other frequencies."""

    def tokens(self, at: AttentionContext) -> Tensor:
        return at.tokens_B

    def inverse(self, at: AttentionContext) -> Tensor:
        is_long = self.tokens(at) > self.shape.train_length
        factors = torch.linspace(1.0, 4.0, self.shape.head_dim // 2).double()
        return super().inverse(at).double() / torch.where(is_long[:, None], factors, 1.0)[:, None, None]

    def rotated(self, x: Tensor, positions: Tensor, at: AttentionContext) -> Tensor:
        angles = positions[:, None, :, None].double() * self.inverse(at)
        return turned(x, angles.cos().float(), angles.sin().float()).to(x.dtype)


class LongRopeByBatch(LongRopeEachRow):
    """The longest row of a batch decides for all rows."""

    def tokens(self, at: AttentionContext) -> Tensor:
        return super().tokens(at).amax(0, keepdim=True)


class YarnOfArguments(RightYarn):
    def __init__(
        self,
        shape: ModelShape,
        base: float = 10_000.0,
        factor: float = 4.0,
        attention_factor: float | None = None,
    ):
        super().__init__(shape)
        self.base, self.factor, self.attention_factor = base, factor, attention_factor
        self.original = shape.train_length

    def scale(self) -> float:
        return super().scale() if self.attention_factor is None else self.attention_factor


class RampClampedAtPairs(YarnOfArguments):
    """keras-hub #2981: differs only where a pair beyond the last makes one rotation."""

    def last(self, pair: float, pairs: int) -> float:
        return min(pair, pairs - 1)


class AttentionFactorIgnored(YarnOfArguments):
    def scale(self) -> float:
        return RightYarn.scale(self)


class LinearScaling(RightRope):
    def __init__(self, shape: ModelShape, base: float = 500_000.0, factor: float = 8.0):
        super().__init__(shape)
        self.base, self.factor = base, factor

    def inverse(self, at: AttentionContext) -> Tensor:
        return super().inverse(at) / self.factor


class BaseIgnored(RightRope):
    def __init__(self, shape: ModelShape, base: float = 10_000.0):
        super().__init__(shape)


class OtherBase(RightRope):
    base = 500.0


class EveryFourthRotated(RightRope):
    def rotate(self, q: Tensor, k: Tensor, at: AttentionContext) -> Pair:
        return super().rotate(q, k, at) if at.layer % 4 == 3 else (q, k)


class StepsOfPositions(PositionalEncoding):
    """The temperature of Llama 4 alone, in steps of twelve positions."""

    def rotate(self, q: Tensor, k: Tensor, at: AttentionContext) -> Pair:
        steps = ((at.q_positions_BT.double() + 1) / 12).floor()
        return (q * (1 + 0.1 * steps.log1p())[:, None, :, None]).to(q.dtype), k


class Window(PositionalEncoding):
    """A mask of the smallest number."""

    def __init__(self, shape: ModelShape, window: int = 4):
        super().__init__(shape)
        self.window = window

    def bias(self, q: Tensor, k: Tensor, at: AttentionContext) -> Tensor:
        far = at.relative_positions_BTS.abs()[:, None] >= self.window
        return torch.zeros(far.shape).masked_fill(far, torch.finfo(torch.float32).min)


class Chunks(Window):
    """A query sees its own chunk of tokens, as in Llama 4, not a window."""

    def bias(self, q: Tensor, k: Tensor, at: AttentionContext) -> Tensor:
        chunks = (at.q_positions_BT // self.window)[:, :, None] != (at.k_positions_BS // self.window)[:, None]
        return torch.zeros(chunks[:, None].shape).masked_fill(chunks[:, None], torch.finfo(torch.float32).min)


class WindowAndSinks(PositionalEncoding):
    """The last four keys and the first two are seen."""

    def bias(self, q: Tensor, k: Tensor, at: AttentionContext) -> Tensor:
        seen = (at.relative_positions_BTS.abs()[:, None] < 4) | (at.k_positions_BS[:, None, None] < 2)
        return torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)


class RopeInChunks(RightRope):
    """RoPE in chunks, as in Llama 4, with another base; a chunk ends at position 100,000."""

    base = 500.0
    chunk = 100

    def inverse(self, at: AttentionContext) -> Tensor:
        return super().inverse(at).double()

    def rotated(self, x: Tensor, positions: Tensor, at: AttentionContext) -> Tensor:
        angles = positions[:, None, :, None].double() * self.inverse(at)
        return turned(x, angles.cos().float(), angles.sin().float()).to(x.dtype)

    def bias(self, q: Tensor, k: Tensor, at: AttentionContext) -> Tensor:
        hidden = (at.q_positions_BT // self.chunk)[:, :, None] != (at.k_positions_BS // self.chunk)[:, None]
        return torch.zeros(hidden[:, None].shape).masked_fill(hidden[:, None], -1e9)


class OwnTableInEveryLayer(RightT5):
    """As in UMT5."""

    per_layer = True


class OwnGenerator(PositionalEncoding):
    """Draws from a generator without a seed."""

    def __init__(self, shape: ModelShape):
        super().__init__(shape)
        self.generator = random.Random()

    def bias(self, q: Tensor, k: Tensor, at: AttentionContext) -> Tensor:
        return self.generator.random() * at.relative_positions_BTS[:, None].float()
