"""DAPE (Zheng et al. 2024): a bias that adapts to the logits it is added to."""

import torch
from torch import Tensor, nn

from pe_experiments.encodings import AttentionContext, ModelShape, PositionalEncoding
from pe_experiments.encodings.base import MakeEncoding
from pe_experiments.encodings.kerple import KerpleLog
from pe_experiments.encodings.tensors import at_least_float32
from pe_experiments.encodings.windows import HardAlibi, SlidingWindow
from pe_experiments.terminal.argument_checks import at_least


class Dape(PositionalEncoding):
    """Logits A + B + MLP([A, B]): A = q . k / sqrt(head_dim), B another encoding's bias, MLP across heads.

    For each pair of query and key the MLP reads 2 H values and returns one per head; its hidden layer is
    followed by a leaky ReLU.

    Source: Zheng et al. 2024, arXiv:2405.14722, section 3.2 and appendix J. Parameters: those of B, and
    ``(2 * num_heads + 1) * width + (width + 1) * num_heads``, per layer. Beyond training: as B, with a
    correction that depends on the logits. Causal only if B is.

    Args:
        bias: function that builds B from a shape (in YAML a ``_target_`` with ``_partial_: true``); None
            means `KerpleLog`. B may only add a bias, and it may not mask keys.
        width: units of the hidden layer, at least 1; 32 in the paper.
    """

    per_layer = True

    def __init__(self, shape: ModelShape, *, bias: MakeEncoding | None = None, width: int = 32):
        super().__init__(shape)
        self.width = at_least(1, "width", width)
        self.added = KerpleLog(shape) if bias is None else bias(shape)
        base = PositionalEncoding
        bias_class = type(self.added)
        other_hooks = ("embed", "rotate", "weights")
        overrides_others = any(getattr(bias_class, hook) is not getattr(base, hook) for hook in other_hooks)
        if bias_class.bias is base.bias or overrides_others:
            raise ValueError(f"bias={bias_class.__name__}: DAPE needs an encoding that only adds a bias")
        if isinstance(self.added, SlidingWindow | HardAlibi):
            raise ValueError(
                f"bias={bias_class.__name__} masks keys; DAPE needs an encoding that masks no key"
            )
        self.invariant_to = self.added.invariant_to
        self.mlp = nn.Sequential(
            nn.Linear(2 * shape.num_heads, width), nn.LeakyReLU(), nn.Linear(width, shape.num_heads)
        )

    def bias(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor:
        a_BHTS = self.scaled_logits(q_BHTK, k_BHSK)
        bias = self.added.bias(q_BHTK, k_BHSK, at)
        assert bias is not None
        b_BHTS = bias.to(a_BHTS.dtype).expand_as(a_BHTS)
        with torch.autocast(q_BHTK.device.type, enabled=False):
            inputs_BTSH = torch.cat([a_BHTS, b_BHTS], dim=1).permute(0, 2, 3, 1)
            correction_BTSH = self.mlp(inputs_BTSH.to(next(self.mlp.parameters()).dtype))
        return b_BHTS + at_least_float32(correction_BTSH).permute(0, 3, 1, 2)
