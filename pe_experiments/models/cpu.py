"""Make a model fast on a CPU: skip padding in training, and call fused kernels where they pay.

Nothing here changes a result beyond rounding, so a first reading may skip it. `training.cpu` has the rest.
Padding is removed in all parts of a layer except attention, which needs whole rows.

Shapes: B rows, T tokens of the longest row, P = B T, N computed tokens, D columns.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pe_experiments.encodings import PositionalEncoding

PADDED = 0.9  # padding is removed if the share of real tokens is lower
STEP = 16  # N is padded to a multiple of it, because every new shape sets up kernels
FUSED = 512  # tokens from which the fused kernel's forward pass is faster, with either library
# The same for both passes with MKL. A step of width 64 with the fused kernel takes 0.99 times as long at 24
# tokens, 0.90 at 96 and 0.63 at 160.
FUSED_TRAINING = 128
# In use; `training.cpu.use_route` sets both.
fused_training = FUSED_TRAINING
onednn_adds_bias = False


def fused_kernel_is_faster(encoding: PositionalEncoding, tokens: int) -> bool:
    """Return whether PyTorch's fused attention kernel beats attention written out, at this length."""
    if torch.is_grad_enabled():
        return tokens >= fused_training and has_fixed_bias(encoding)
    return tokens >= FUSED


def has_fixed_bias(encoding: PositionalEncoding) -> bool:
    """Return whether no bias needs gradients, with which a mask takes the fused kernel's slow path."""
    return type(encoding).bias is PositionalEncoding.bias or next(encoding.parameters(), None) is None


def rounded_up(count: int, step: int) -> int:
    return -(-count // step) * step


class Linear(nn.Linear):
    """A linear layer whose bias oneDNN, if it is in use, adds within the matrix product of a training step.

    PyTorch copies the bias to every row before the product, which takes 3 % of a step of width 128. On an
    AMD Zen 5 both have the same bits.
    """

    def forward(self, x_ND: Tensor) -> Tensor:
        in_training = onednn_adds_bias and torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")
        in_float32 = x_ND.device.type == "cpu" and x_ND.dtype == torch.float32
        if in_training and in_float32 and self.bias is not None:
            return _FusedLinear.apply(x_ND, self.weight, self.bias)
        return super().forward(x_ND)


class _FusedLinear(torch.autograd.Function):
    """x W^T + b by the kernel that PyTorch's compiler takes on a CPU; it has no gradient of its own."""

    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, weight_ED: Tensor, bias_E: Tensor) -> Tensor:
        ctx.save_for_backward(x_ND, weight_ED)
        return torch.ops.mkldnn._linear_pointwise(x_ND, weight_ED, bias_E, "none", [], "")

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x_ND, weight_ED = ctx.saved_tensors
        gradient_NE = gradients[0].flatten(0, -2)
        x_gradient = (gradient_NE @ weight_ED).view(x_ND.shape)
        return x_gradient, gradient_NE.mT @ x_ND.flatten(0, -2), gradient_NE.sum(0)


def packing_of(x_BTD: Tensor, lengths_B: Tensor | None) -> Unpacked:
    """Return how the padding of these rows is removed, which pays only in training on a CPU."""
    if lengths_B is None or x_BTD.device.type != "cpu" or not torch.is_grad_enabled():
        return UNPACKED
    rows, tokens = x_BTD.shape[:2]
    padded = int(lengths_B.sum()) < PADDED * rows * tokens
    return Packing(lengths_B, tokens) if padded else UNPACKED


class Unpacked:
    """Keep the padding: every method returns its argument."""

    def pack(self, x_BTD: Tensor) -> Tensor:
        return x_BTD

    def pad(self, x_BTD: Tensor) -> Tensor:
        return x_BTD

    def unpad(self, x_BTD: Tensor) -> Tensor:
        """Return the tokens of a layer's input from rows, as `pad` takes them."""
        return x_BTD

    def residual_rows(self, x_ND: Tensor) -> Tensor:
        """Return the rows of a layer's input to which the output of its attention is added."""
        return x_ND


UNPACKED = Unpacked()


class Packing(Unpacked):
    """Concatenate the real tokens of right-padded rows; ``tokens`` is the length of the longest row."""

    def __init__(self, lengths_B: Tensor, tokens: int):
        self.shape = (len(lengths_B), tokens)
        shortest = int(lengths_B.argmin())
        padding = min(-int(lengths_B.sum()) % STEP, tokens - int(lengths_B[shortest]))
        packed_BT = torch.arange(tokens) < lengths_B[:, None]
        packed_BT[shortest, lengths_B[shortest] :][:padding] = True
        packed_P = packed_BT.flatten()
        self.indices_N = packed_P.nonzero()[:, 0]
        # `pad` fills padding with the last token of its row, so that encodings compute with ordinary values.
        self.sources_P = packed_P.cumsum(0) - 1

    def pack(self, x_BTD: Tensor) -> Tensor:
        """Return the real tokens [N, D] of rows [B, T, D], and padding up to a multiple of `STEP`."""
        return x_BTD.flatten(0, 1).index_select(0, self.indices_N)

    def pad(self, x_ND: Tensor) -> Tensor:
        """Return rows [B, T, D] from packed tokens [N, D]."""
        return x_ND.index_select(0, self.sources_P).unflatten(0, self.shape)

    def unpad(self, x_BTD: Tensor) -> Tensor:
        return self.pack(x_BTD)


class SelectedTokens(Unpacked):
    """Continue with selected tokens only after the attention of the last layer, which sees all tokens."""

    def __init__(self, packing: Unpacked, indices_n: Tensor):
        self.pad = packing.pad  # type: ignore[method-assign]
        self.unpad = packing.unpad  # type: ignore[method-assign]
        self.indices_n = indices_n
        self.rows_n = packing.sources_P[indices_n] if isinstance(packing, Packing) else indices_n

    def pack(self, x_BTD: Tensor) -> Tensor:
        return x_BTD.flatten(0, 1).index_select(0, self.indices_n)

    def residual_rows(self, x_ND: Tensor) -> Tensor:
        return x_ND.flatten(0, -2).index_select(0, self.rows_n)
