"""CoPE (Golovneva et al. 2024): positions counted by content."""

import torch
from torch import Tensor, nn

from pe_experiments.encodings import AttentionContext, ModelShape, PositionalEncoding
from pe_experiments.encodings.tensors import at_least_float32
from pe_experiments.terminal.errors import at_least


class Cope(PositionalEncoding):
    """Bias q_i . e[p_ij], where p_ij = sum_{s=j..i} g_is counts tokens by gates g_is = sigmoid(logit_is).

    Gates are the sigmoids of the scaled logits, 0 for masked keys. p is clamped to ``max_position``, and e is
    interpolated between whole numbers. q_i . e is added without the factor 1/sqrt(head_dim), as in the
    paper's listing (the released code scales it by default). Position ids are not read.

    Source: Golovneva et al. 2024, arXiv:2405.18719, section 4 and appendix B. Parameters:
    ``rows * head_dim`` per layer, ``rows`` = ``max_position`` + 1, shared by the heads, starting at 0. Beyond
    training: counts stop at ``max_position``. Causal only.

    Args:
        max_position: largest count, at least 1; None means half of ``original_length``: gates start near 1/2,
            so the rows of larger counts would not be trained. The released code has a row for every
            position in training; here keys farther away than the maximum share a row if gates are near 1.
    """

    causal_only = True
    per_layer = True
    invariant_to = "ids"

    def __init__(self, shape: ModelShape, *, max_position: int | None = None):
        super().__init__(shape)
        default = max(1, shape.original_length // 2)
        self.max_position = at_least(1, "max_position", default if max_position is None else max_position)
        self.rows = self.max_position + 1
        self.table_RK = nn.Parameter(torch.zeros(self.rows, shape.head_dim))

    def bias(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor:
        logits_BHTS = self.scaled_logits(q_BHTK, k_BHSK)
        # Mask before computing gates: the gate of a later token would reveal that token.
        gates_BHTS = logits_BHTS.sigmoid() * at.visible_BTS[:, None]
        count_BHTS = gates_BHTS.flip(-1).cumsum(-1).flip(-1).clamp(max=self.max_position)
        whole_BHTS = count_BHTS.floor()
        fraction_BHTS = count_BHTS - whole_BHTS
        scores_BHTR = at_least_float32(q_BHTK @ self.table_RK.T.to(q_BHTK.dtype))
        row_BHTS = whole_BHTS.long()
        lower_BHTS = scores_BHTR.gather(-1, row_BHTS)
        upper_BHTS = scores_BHTR.gather(-1, (row_BHTS + 1).clamp(max=self.max_position))
        return torch.lerp(lower_BHTS, upper_BHTS, fraction_BHTS)
