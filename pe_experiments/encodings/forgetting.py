"""The forgetting transformer, FoX (Lin et al. 2025): a forget gate per token and head."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pe_experiments.encodings import AttentionContext, ModelShape, PositionalEncoding
from pe_experiments.encodings.tensors import in_float64
from pe_experiments.terminal.errors import at_least


def forget_gate(width: int, gates: int, initial_bias: float) -> nn.Linear:
    """Return the linear map from hidden states to gates before the sigmoid, with w from N(0, 0.02^2)."""
    if not math.isfinite(initial_bias):
        raise ValueError(f"initial_bias={initial_bias} must be a finite number")
    gate = nn.Linear(width, gates)
    nn.init.normal_(gate.weight, std=0.02)
    nn.init.constant_(gate.bias, initial_bias)
    return gate


class Forgetting(PositionalEncoding):
    """Bias sum_{s=j+1..i} ln f_s on the logit of query i and key j, f_s = sigmoid(w_h . x_s + b_h).

    x is the layer's (normalised) hidden state. Every token after the key, up to the query itself, lowers the
    key's logit. Position ids are not read.

    Source: Lin et al. 2025, arXiv:2503.02130, section 3, and its released code (w from N(0, 0.02^2), b = 0).
    Parameters: ``d_model * num_heads + num_heads`` per layer. Beyond training: the bias keeps falling with
    every token. Causal only.

    Args:
        initial_bias: initial b, finite; with 0 every token multiplies a key's weight by 0.5, with 4 by 0.98.
    """

    causal_only = True
    per_layer = True
    invariant_to = "ids"

    def __init__(self, shape: ModelShape, *, initial_bias: float = 0.0):
        super().__init__(shape)
        self.gate = forget_gate(shape.d_model, shape.num_heads, initial_bias)

    def bias(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor:
        with torch.autocast(q_BHTK.device.type, enabled=False):
            gates_BSH = self.gate(at.x_BSD.to(self.gate.weight.dtype))
        # The bias is a difference of long sums; float64 keeps it exact for near keys at any length.
        cumulative_BHS = in_float64(F.logsigmoid(gates_BSH)).cumsum(1).transpose(1, 2)
        bias_BHTS = cumulative_BHS[:, :, at.queries, None] - cumulative_BHS[:, :, None]
        return bias_BHTS.float().to(q_BHTK.device)


class ForgettingPerQuery(PositionalEncoding):
    """Bias sum_{s=j..i-1} ln sigmoid(q'_i . k'_s / sqrt(d')) on the logit of query i and key j.

    q' and k' are small projections of the layer's (normalised) hidden state, for each head: a query decides
    how much each token between it and a key lowers the key's logit. Position ids are not read.

    Source: x-transformers (``PerRowDataDependentAlibi``), after Lin et al. 2025, arXiv:2503.02130.
    Parameters: ``2 * d_model * num_heads * width`` per layer. Beyond training: the bias keeps falling with
    every token. Causal only.

    Args:
        width: d', at least 1; 8 in the source.
    """

    causal_only = True
    per_layer = True
    invariant_to = "ids"

    def __init__(self, shape: ModelShape, *, width: int = 8):
        super().__init__(shape)
        self.width = at_least(1, "width", width)
        self.gate = nn.Linear(shape.d_model, 2 * shape.num_heads * width, bias=False)

    def bias(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor:
        with torch.autocast(q_BHTK.device.type, enabled=False):
            projected = self.gate(at.x_BSD.to(self.gate.weight.dtype))
            heads = (2, self.shape.num_heads, self.width)
            small_q_BHSW, small_k_BHSW = projected.unflatten(-1, heads).permute(2, 0, 3, 1, 4)
            small_q_BHTW = small_q_BHSW[:, :, at.queries] * self.width**-0.5
            log_gates_BHTS = F.logsigmoid(small_q_BHTW @ small_k_BHSW.mT)
            index_S = torch.arange(k_BHSK.shape[2], device=q_BHTK.device)
            is_earlier_TS = index_S < index_S[at.queries, None]
            # Summed from the query backwards, so that sums up to near keys have few terms.
            return (log_gates_BHTS * is_earlier_TS).flip(-1).cumsum(-1).flip(-1)
