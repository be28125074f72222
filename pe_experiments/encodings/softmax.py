"""The masked softmax that turns scaled logits into attention weights.

Names of tensors end in their shapes, as in `base`.
"""

from typing import Any

import torch
from torch import Tensor, nn

from pe_experiments.encodings.attention_context import AttentionContext

# The bias of a key that an encoding masks. The key gets weight 0 if any other key is unmasked. Unlike minus
# infinity, the value keeps the softmax finite in a row whose keys are all masked (padding with a window).
MASKED = -1e9


def biased_mask(bias: Tensor | None, at: AttentionContext) -> Tensor:
    """Return `additive_mask` plus the bias of the encoding, if it has one."""
    mask = at.once(additive_mask)
    return mask if bias is None else mask + bias


def additive_mask(at: AttentionContext) -> Tensor:
    """Return 0 where a query may see a key and minus infinity where not, [B, 1, T, S] in float32."""
    masked_B1TS = ~at.visible_BTS[:, None]
    return torch.zeros(masked_B1TS.shape, device=masked_B1TS.device).masked_fill_(masked_B1TS, -torch.inf)


def is_masked(logits: Tensor) -> Tensor:
    """Return whether each logit or bias belongs to a masked key: about `MASKED`, or minus infinity."""
    return logits <= MASKED / 2


class Softmax(nn.Module):
    """The softmax of attention, an axis of its own: ``model.attention=mine.MySoftmax`` names a subclass.

    Every layer has its own instance, which may have parameters. It takes the place of the softmax of every
    encoding that does not compute its own weights.

    Args:
        shape: sizes of the model, a `ModelShape`.
    """

    def __init__(self, shape: Any):
        super().__init__()
        self.shape = shape

    def forward(self, logits_BHTS: Tensor) -> Tensor:
        """Return attention weights [B, H, T, S], 0 where a logit is `MASKED` (a key that is not seen).

        Logits are finite, in float32 or better, scaled, and contain the bias of the encoding. T may be a
        block of the queries.
        """
        return torch.softmax(logits_BHTS, dim=-1)


class Softmax1(Softmax):
    """Softmax with 1 in the denominator, so that a head can attend to nothing: e^x_i / (1 + sum_j e^x_j).

    Source: Miller 2023, "Attention is off by one". Parameters: none. It is a sink
    (`models.attention_parts.Sinks`) whose logit stays at 0.
    """

    def forward(self, logits_BHTS: Tensor) -> Tensor:
        nothing_BHT1 = logits_BHTS.new_zeros(*logits_BHTS.shape[:-1], 1)
        return torch.softmax(torch.cat([logits_BHTS, nothing_BHT1], dim=-1), dim=-1)[..., :-1]
