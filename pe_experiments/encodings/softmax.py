"""The masked softmax that turns scaled logits into attention weights.

Names of tensors end in their shapes, as in `base`.
"""

import torch
from torch import Tensor

from pe_experiments.encodings.attention_context import AttentionContext

# The bias of a key that an encoding masks. The key gets weight 0 if any other key is unmasked. Unlike minus
# infinity, the value keeps the softmax finite in a row whose keys are all masked (padding with a window).
MASKED = -1e9


def masked_softmax(logits_BHTS: Tensor, bias: Tensor | None, at: AttentionContext) -> Tensor:
    """Return the softmax of logits plus bias over the keys that each query may see, BHTS."""
    mask = at.once(additive_mask)
    return torch.softmax(logits_BHTS + (mask if bias is None else mask + bias), dim=-1)


def additive_mask(at: AttentionContext) -> Tensor:
    """Return 0 where a query may see a key and minus infinity where not, [B, 1, T, S] in float32."""
    masked_B1TS = ~at.visible_BTS[:, None]
    return torch.zeros(masked_B1TS.shape, device=masked_B1TS.device).masked_fill_(masked_B1TS, -torch.inf)


def is_masked(logits: Tensor) -> Tensor:
    """Return whether each logit or bias belongs to a masked key: about `MASKED`, or minus infinity."""
    return logits <= MASKED / 2
