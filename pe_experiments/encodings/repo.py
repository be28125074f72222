"""RePo (Li et al. 2025): a small network of the hidden state places each token, RoPE rotates there."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pe_experiments.encodings import AttentionContext, ModelShape, PositionalEncoding
from pe_experiments.encodings.rope import frequencies, pairs_of, rotate_by_angles
from pe_experiments.encodings.tensors import in_float64
from pe_experiments.terminal.errors import above, at_least


class RePo(PositionalEncoding):
    """RoPE at positions z = W_f (silu(W_g x) * W_c x), one per head, read from the hidden state x of a token.

    Pair m of q and k rotates by z theta_m, theta_m = base^(-m/pairs). Positions are real numbers in any
    order. Position ids are not read, so order enters through the mask and the content; with small initial
    weights all positions are near 0 at first (NoPE). The released model has plain RoPE in the first five of
    its sixteen layers.

    Source: Li, Zhao and Sproat 2025, arXiv:2512.14391, and its released code (SakanaAI/repo, mode
    ``swigluex_multihead``). Parameters: ``(2 * d_model + num_heads) * width`` per layer, from N(0,
    0.02^2). Beyond training: defined everywhere; positions follow from the content. In decoders and encoders.

    Args:
        base: greater than 1; 500,000 in the released model, which is that of OLMo 2.
        width: hidden units, at least 1; None means an eighth of ``d_model``, as in the released code.
    """

    per_layer = True
    invariant_to = "ids"

    def __init__(self, shape: ModelShape, *, base: float = 10_000.0, width: int | None = None):
        super().__init__(shape)
        self.base = above(1, "base", base)
        self.width = at_least(1, "width", max(1, shape.d_model // 8) if width is None else width)
        self.pairs = pairs_of(shape)
        self.gate = nn.Linear(shape.d_model, self.width, bias=False)
        self.content = nn.Linear(shape.d_model, self.width, bias=False)
        self.position = nn.Linear(self.width, shape.num_heads, bias=False)
        for layer in (self.gate, self.content, self.position):
            nn.init.normal_(layer.weight, std=0.02)

    def rotate(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> tuple[Tensor, Tensor]:
        with torch.autocast(q_BHTK.device.type, enabled=False):
            x_BSD = at.x_BSD.to(self.gate.weight.dtype)
            positions_BHS = self.position(F.silu(self.gate(x_BSD)) * self.content(x_BSD)).mT
        angles_BHSR = in_float64(positions_BHS)[..., None] * frequencies(self.base, self.pairs, q_BHTK.device)
        return rotate_by_angles(angles_BHSR, q_BHTK, k_BHSK, at)
