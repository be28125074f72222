"""Wall attention (Pai et al. 2026): a forget gate for every channel."""

import torch
from torch import Tensor
from torch.nn import functional as F

from pe_experiments.encodings import AttentionContext, ModelShape, PositionalEncoding
from pe_experiments.encodings.forgetting import forget_gate
from pe_experiments.encodings.tensors import at_least_float32, in_float64

BLOCK = 8  # number of keys computed at a time


class Wall(PositionalEncoding):
    """Logit sum_c q_ic k_jc exp(P_ic - P_jc) over sqrt(head_dim), P_tc = sum_{s<=t} ln f_sc.

    f_sc = sigmoid(w_c . x_s + b_c) per head and channel c; x is the layer's (normalised) hidden state. FoX
    has one gate per head, added to the logit. Position ids are not read. Memory grows with the square of the
    length.

    Source: Pai et al. 2026 (Tilde Research, blog.tilderesearch.com/blog/wall-attn) and flash-linear-attention
    (w from N(0, 0.02^2), b = 8). Parameters: ``(d_model + 1) * num_heads * head_dim`` per layer. Beyond
    training: channels keep fading with every token. Causal only.

    Args:
        initial_bias: initial b, finite; with 8 a token lowers a channel by 0.03 %, with 0 by half.
    """

    causal_only = True
    per_layer = True
    invariant_to = "ids"

    def __init__(self, shape: ModelShape, *, initial_bias: float = 8.0):
        super().__init__(shape)
        self.gate = forget_gate(shape.d_model, shape.num_heads * shape.head_dim, initial_bias)

    def bias(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor:
        """Return the change of the scaled q . k by the gates, BHTS."""
        with torch.autocast(q_BHTK.device.type, enabled=False):
            q_BHTK, k_BHSK = at_least_float32(q_BHTK), at_least_float32(k_BHSK)
            gates_BSW = self.gate(at.x_BSD.to(self.gate.weight.dtype))
            gates_BSHK = gates_BSW.unflatten(-1, (self.shape.num_heads, -1))
            # P is in float64, so that differences of long sums stay exact.
            log_BHSK = in_float64(F.logsigmoid(gates_BSHK)).cumsum(1).transpose(1, 2)
            products_BHTS = self._faded_products(q_BHTK, k_BHSK, log_BHSK, at.first_query)
            return (products_BHTS - q_BHTK @ k_BHSK.mT) * self.shape.head_dim**-0.5

    def _faded_products(self, q_BHTK: Tensor, k_BHSK: Tensor, log_BHSK: Tensor, first: int) -> Tensor:
        """Return sum_c q_ic k_jc exp(P_ic - P_jc), BHTS, for queries from index ``first`` on.

        The exponential is split at the last key a of a block into exp(P_i - P_a) exp(P_a - P_j). Neither
        factor exceeds 1 for queries from a on; for queries within the block each pair is computed directly.
        """
        log_q_BHTK = log_BHSK[:, :, first : first + q_BHTK.shape[2]]
        columns = []
        for start in range(0, k_BHSK.shape[2], BLOCK):
            k, log_k = k_BHSK[:, :, start : start + BLOCK], log_BHSK[:, :, start : start + BLOCK]
            anchor = log_k[:, :, -1:]
            # From the anchor on, numbers are small enough for float32.
            log_q, log_k = ((log - anchor).to(q_BHTK) for log in (log_q_BHTK, log_k))
            columns.append((q_BHTK * log_q.clamp(max=0).exp()) @ (k * (-log_k).exp()).mT)
            within = slice(max(start - first, 0), max(start + BLOCK - first, 0))
            # An exponent above 0 belongs to a later key, which is masked.
            fading = (log_q[:, :, within, None] - log_k[:, :, None]).clamp(max=0).exp()
            columns[-1][:, :, within] = ((fading * k[:, :, None]) @ q_BHTK[:, :, within, :, None])[..., 0]
        return torch.cat(columns, dim=-1)
