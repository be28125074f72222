"""FIRE (Li et al. 2024): a small network reads the distance relative to the query's position."""

import torch
from torch import Tensor, nn

from pe_experiments.encodings import AttentionContext, ModelShape, PositionalEncoding
from pe_experiments.encodings.tensors import at_least_float32
from pe_experiments.terminal.errors import above, at_least

EPSILON = 1e-6  # keeps the ratio finite, as in the authors' code


class Fire(PositionalEncoding):
    """Bias MLP(psi(i - j) / psi(max(L, i))) on the logit of query i and key j, psi(x) = ln(|c x| + 1).

    The MLP's input lies in 0 .. 1 at any length, so longer sequences give no new inputs (progressive
    interpolation). c and L are learned; the MLP has one hidden layer and an output per head.

    Source: Li et al. 2024, arXiv:2310.04418, section 3 and its code. Parameters:
    ``2 + 2 * width + (width + 1) * num_heads`` per layer. Beyond training: inputs of the MLP stay in the
    range of training. Causal only: for keys after the query the input may exceed 1.

    Args:
        width: units of the hidden layer, at least 1; 32 in the paper.
        c: initial value of c, above 0.
        threshold: initial value of L, above 0; None means ``original_length / 2``, so that training has
            positions below and above it. With more than ``original_length``, longer sequences would leave the
            range of training.
    """

    causal_only = True
    per_layer = True
    invariant_to = "nothing"

    def __init__(self, shape: ModelShape, *, width: int = 32, c: float = 0.1, threshold: float | None = None):
        super().__init__(shape)
        self.width = at_least(1, "width", width)
        self.threshold = above(0, "threshold", shape.original_length / 2 if threshold is None else threshold)
        self.c = nn.Parameter(torch.tensor(float(above(0, "c", c))))
        # The factor of the initial L is learned: steps of L itself, a number of tokens, would be tiny.
        self.stretch = nn.Parameter(torch.tensor(1.0))
        self.mlp = nn.Sequential(nn.Linear(1, width), nn.ReLU(), nn.Linear(width, shape.num_heads))

    def bias(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor:
        dtype = torch.promote_types(self.c.dtype, torch.float32)
        threshold = (self.stretch * self.threshold).abs().to(dtype)
        limit_BT1 = torch.maximum(at.q_positions_BT[:, :, None].to(dtype), threshold)
        ratio_BTS = self._psi(at.relative_positions_BTS.to(dtype)) / (self._psi(limit_BT1) + EPSILON)
        with torch.autocast(q_BHTK.device.type, enabled=False):
            bias_BTSH = self.mlp(ratio_BTS[..., None].to(self.c.dtype))
            return at_least_float32(bias_BTSH).permute(0, 3, 1, 2)

    def _psi(self, x: Tensor) -> Tensor:
        return torch.log1p((self.c * x).abs())
