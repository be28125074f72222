"""Broken schemes of the content, and of several parts."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pe_experiments.checking.mutants.registry import mutant
from pe_experiments.encodings.base import AttentionContext, PositionalEncoding
from pe_experiments.encodings.cope import Cope
from pe_experiments.encodings.dape import Dape
from pe_experiments.encodings.forgetting import Forgetting
from pe_experiments.encodings.mixtures import ByLayer, Composition
from pe_experiments.encodings.path_attention import Path
from pe_experiments.encodings.stick_breaking import StickBreaking


@mutant("cope: gates before the mask (the future is counted)")
class CopeFuture(Cope):
    def bias(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor:
        everything = torch.ones_like(at.visible_BTS)
        return super().bias(
            q_BHTK, k_BHSK, AttentionContext(at.q_positions_BT, at.k_positions_BS, everything)
        )


@mutant("cope: the interpolated logit is scaled too")
class CopeScaled(Cope):
    def bias(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor:
        return super().bias(q_BHTK, k_BHSK, at) * self.shape.head_dim**-0.5


@mutant("cope: gates from logits without the scale")
class CopeSharpGates(Cope):
    def bias(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor:
        return super().bias(q_BHTK, k_BHSK * self.shape.head_dim**0.5, at)


@mutant("fox: the key's own gate counts")
class FoxOwnGate(Forgetting):
    def bias(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor:
        assert at.x_BSD is not None
        own_BHS = F.logsigmoid(self.gate(at.x_BSD)).transpose(1, 2)
        return super().bias(q_BHTK, k_BHSK, at) + own_BHS[:, :, None]


@mutant("fox: the sum of gates without the logarithm")
class FoxNoLog(Forgetting):
    def bias(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor:
        assert at.x_BSD is not None
        kept_BHS = torch.sigmoid(self.gate(at.x_BSD)).cumsum(1).transpose(1, 2)
        return kept_BHS[:, :, :, None] - kept_BHS[:, :, None]


@mutant("fox: what is remembered grows (sign)")
class FoxSign(Forgetting):
    def bias(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor:
        return -super().bias(q_BHTK, k_BHSK, at)


@mutant("stick_breaking: the stick is broken from the far end")
class StickFarEnd(StickBreaking):
    def weights(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor:
        z = (q_BHTK * self.shape.head_dim**-0.5) @ k_BHSK.mT
        masked = torch.ones(z.shape[-2:], dtype=torch.bool).triu()
        left = F.logsigmoid(-z).masked_fill(masked, 0.0)
        before = F.pad(left.cumsum(-1)[..., :-1], (1, 0))
        return (F.logsigmoid(z) + before).exp().masked_fill(masked, 0.0)


@mutant("stick_breaking: the query takes a share of its own")
class StickSelf(StickBreaking):
    def weights(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor:
        z = (q_BHTK * self.shape.head_dim**-0.5) @ k_BHSK.mT
        masked = torch.ones(z.shape[-2:], dtype=torch.bool).triu(1)
        left = F.logsigmoid(-z).masked_fill(masked, 0.0)
        after = F.pad(left.flip(-1).cumsum(-1).flip(-1)[..., 1:], (0, 1))
        return (F.logsigmoid(z) + after).exp().masked_fill(masked, 0.0)


@mutant("dape: the bias itself is not added")
class DapeNoResidual(Dape):
    def bias(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor:
        added = self.added.bias(q_BHTK, k_BHSK, at)
        assert added is not None
        return super().bias(q_BHTK, k_BHSK, at) - added


@mutant("dape: ReLU in place of leaky ReLU")
class DapeRelu(Dape):
    def bias(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor:
        leaky = self.mlp[1]
        self.mlp[1] = nn.ReLU()
        try:
            return super().bias(q_BHTK, k_BHSK, at)
        finally:
            self.mlp[1] = leaky


@mutant("path: beta without its factor 2")
class PathHalfStrength(Path):
    def reflections(self, x_BSD: Tensor) -> tuple[Tensor, Tensor]:
        w_BHSK, beta_BHS = super().reflections(x_BSD)
        return w_BHSK, beta_BHS / 2


@mutant("path: w is not scaled to length 1")
class PathUnnormalised(Path):
    def reflections(self, x_BSD: Tensor) -> tuple[Tensor, Tensor]:
        mixed_BWS = self.convolution(F.pad(self.direction(x_BSD).mT, (2, 0)))
        w_BSHK = F.silu(mixed_BWS).mT.unflatten(-1, (self.shape.num_heads, self.shape.head_dim))
        return w_BSHK.transpose(1, 2), super().reflections(x_BSD)[1]


@mutant("path: the convolution looks one token ahead")
class PathLooksAhead(Path):
    def reflections(self, x_BSD: Tensor) -> tuple[Tensor, Tensor]:
        ahead_BSD = F.pad(x_BSD[:, 1:], (0, 0, 0, 1))
        return super().reflections(ahead_BSD)[0], super().reflections(x_BSD)[1]


@mutant("rope_ssmax: the second scheme is never applied")
class CompositionFirstOnly(Composition):
    def _at_layer(self, layer: int) -> list[PositionalEncoding]:
        return super()._at_layer(layer)[:1]


@mutant("rope_nope: the layers are exchanged")
class LayersExchanged(ByLayer):
    def for_layer(self, layer: int) -> PositionalEncoding:
        return super().for_layer(layer + 1)
