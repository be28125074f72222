"""Stick-breaking attention (Tan et al. 2025): each key takes its share of what nearer keys have left."""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from pe_experiments.encodings import AttentionContext, ModelShape, PositionalEncoding
from pe_experiments.terminal.errors import one_of

Remainder = Literal["nothing", "self"]


class StickBreaking(PositionalEncoding):
    """Weight of key j < i for query i: sigmoid(z_ij) prod_{j<s<i} (1 - sigmoid(z_is)), z the scaled logits.

    The nearest key takes its share first; the query's own key gets none. Weights may sum to less than 1, and
    the first token attends to nothing. Order is the order of the sequence; position ids are not read.

    Source: Tan et al. 2025, arXiv:2410.17980, section 2, and its released kernels. The authors' training code
    also uses the weight that is left: at first for the query's own value (``self``), later for a learned
    vector per head (not implemented). Parameters: none. Beyond training: near keys take their shares first,
    so far keys get what is left. Causal only.

    Args:
        remainder: the weight that is left: ``nothing`` drops it, as in the formula; ``self`` gives it to the
            query's own value, so that weights sum to 1.
    """

    causal_only = True
    invariant_to = "ids"

    def __init__(self, shape: ModelShape, *, remainder: Remainder = "nothing"):
        super().__init__(shape)
        self.remainder = one_of(Remainder, "remainder", remainder)

    def weights(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor:
        z_BHTS = self.scaled_logits(q_BHTK, k_BHSK)
        index_S = torch.arange(k_BHSK.shape[2], device=z_BHTS.device)
        is_self_TS = index_S == index_S[at.queries, None]
        masked_B1TS = (~at.visible_BTS | is_self_TS)[:, None]
        log_left_BHTS = F.logsigmoid(-z_BHTS).masked_fill(masked_B1TS, 0.0)
        # The log of what nearer keys leave is a sum over s > j, shifted rather than subtracted to stay exact.
        log_remaining_BHTS = F.pad(log_left_BHTS.flip(-1).cumsum(-1).flip(-1)[..., 1:], (0, 1))
        weights_BHTS = (F.logsigmoid(z_BHTS) + log_remaining_BHTS).exp().masked_fill(masked_B1TS, 0.0)
        if self.remainder == "self":
            weights_BHTS = weights_BHTS + is_self_TS * (1 - weights_BHTS.sum(-1, keepdim=True))
        return weights_BHTS
