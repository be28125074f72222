"""Optional parts of a layer's attention: normalised queries and keys, sinks, output gates, token shift.

Each part overrides one hook of `AttentionPart`. Shapes: B batch, T queries, S keys, H heads, K head_dim,
D d_model, N tokens without padding.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pe_experiments.encodings import ModelShape
from pe_experiments.models.cpu import Unpacked
from pe_experiments.terminal.errors import NotApplicable

OutputGate = Literal["none", "head", "channel"]
NormOfQueries = bool | Literal["before", "after"]  # the rotation; True means before

KERNEL_WIDTH = 4  # tokens that the token shift reads, the current one included


class AttentionPart(nn.Module):
    """A part of attention that changes nothing; subclasses override the hooks that they change."""

    def hidden(self, x_ND: Tensor, packing: Unpacked) -> Tensor:
        """Return the normed hidden states from which queries, keys and values are computed."""
        return x_ND

    def queries_and_keys(self, q_BHTK: Tensor, k_BHSK: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries and keys before the encoding rotates them."""
        return q_BHTK, k_BHSK

    def sink_logits(self) -> Tensor | None:
        """Return the logit [H] of a further key without a value; None if there is none."""
        return None

    def output(self, y_ND: Tensor, x_ND: Tensor) -> Tensor:
        """Return the values that the heads attend to, of the tokens with the hidden states ``x_ND``."""
        return y_ND


class QkNorm(AttentionPart):
    """Queries and keys of each head are divided by their root mean square and scaled by learned weights.

    Source: Dehghani et al. 2023, arXiv:2302.05442, as in Qwen3: RMSNorm before the rotation, with one weight
    per channel that the heads share; ``after`` the rotation as in nanochat, which has no weights. Parameters:
    2 head_dim per layer, starting at 1.
    """

    def __init__(self, shape: ModelShape, after_rotation: bool = False):
        super().__init__()
        self.after_rotation = after_rotation
        self.q_norm = nn.RMSNorm(shape.head_dim, eps=1e-6)
        self.k_norm = nn.RMSNorm(shape.head_dim, eps=1e-6)

    def queries_and_keys(self, q_BHTK: Tensor, k_BHSK: Tensor) -> tuple[Tensor, Tensor]:
        return (q_BHTK, k_BHSK) if self.after_rotation else (self.q_norm(q_BHTK), self.k_norm(k_BHSK))

    def of_rotated(self, q_BHTK: Tensor, k_BHSK: Tensor) -> tuple[Tensor, Tensor]:
        (width,) = self.q_norm.normalized_shape
        if q_BHTK.shape[-1] != width:
            raise NotApplicable(
                f"model.qk_norm=after: the encoding makes queries of {q_BHTK.shape[-1]} channels from {width}"
            )
        return self.q_norm(q_BHTK), self.k_norm(k_BHSK)


class Sinks(AttentionPart):
    """Each head has a learned logit in the denominator of its softmax, so that it can attend to nothing.

    Weights are multiplied by Z / (Z + e^s), where Z is the sum of the exponentials of the logits.

    Source: gpt-oss (OpenAI 2025, arXiv:2508.10925). Parameters: num_heads per layer, starting at 0.
    """

    def __init__(self, shape: ModelShape):
        super().__init__()
        self.sink_H = nn.Parameter(torch.zeros(shape.num_heads))

    def sink_logits(self) -> Tensor:
        return self.sink_H


class Gate(AttentionPart):
    """The attended values are multiplied by a sigmoid of the hidden state, per head or per channel.

    Source: Qiu et al. 2025, arXiv:2505.06708, as in Qwen3-Next. Parameters: d_model num_heads, or d_model^2,
    per layer.
    """

    def __init__(self, shape: ModelShape, gates: int):
        super().__init__()
        self.gate = nn.Linear(shape.d_model, gates, bias=False)

    def output(self, y_ND: Tensor, x_ND: Tensor) -> Tensor:
        gates_NG = torch.sigmoid(self.gate(x_ND))
        return (y_ND.unflatten(-1, (gates_NG.shape[-1], -1)) * gates_NG[..., None]).flatten(-2)


class TokenShift(AttentionPart):
    """A causal convolution of each channel over four tokens is added to the hidden states.

    Source: Allen-Zhu 2025, Physics of Language Models 4.1 (Canon layers), at the input of attention.
    Parameters: 4 d_model per layer.
    """

    def __init__(self, shape: ModelShape):
        super().__init__()
        if not shape.causal:
            raise NotApplicable("model.token_shift reads earlier tokens only; take model=decoder or llama")
        self.convolution = nn.Conv1d(
            shape.d_model, shape.d_model, KERNEL_WIDTH, groups=shape.d_model, bias=False
        )

    def hidden(self, x_ND: Tensor, packing: Unpacked) -> Tensor:
        x_BDT = F.pad(packing.pad(x_ND).mT, (KERNEL_WIDTH - 1, 0))
        return x_ND + packing.unpad(self.convolution(x_BDT).mT)
