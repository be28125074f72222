"""DAPE (Zheng et al. 2024): a bias that adapts to the logits it is added to."""

import torch
from torch import Tensor, nn

from pe_experiments.encodings import AttentionContext, ModelShape, PositionalEncoding
from pe_experiments.encodings.base import MakeEncoding
from pe_experiments.encodings.kerple import KerpleLog
from pe_experiments.encodings.tensors import at_least_float32
from pe_experiments.encodings.windows import Chunks, HardAlibi, SlidingWindow
from pe_experiments.terminal.errors import at_least


class Dape(PositionalEncoding):
    """Logits A + B + MLP([A, B]): A = q . k / sqrt(head_dim), B another encoding's bias, MLP across heads.

    For each pair of query and key the MLP reads 2 H values and returns one per head; its hidden layer is
    followed by a leaky ReLU. With ``kernel`` above 1, a convolution over neighbouring keys (in memory)
    replaces each linear map. It reads zeros for keys that the query does not see.

    Source: Zheng et al. 2024, arXiv:2405.14722, section 3.2 and appendix J. Parameters: those of B, and
    ``(2 * num_heads * kernel + 1) * width + (width * kernel + 1) * num_heads``, per layer. Beyond training:
    as B, with a correction that depends on the logits. Causal only if B is.

    Args:
        bias: function that builds B from a shape (in YAML a ``_target_`` with ``_partial_: true``); None
            means `KerpleLog`. B may only add a bias, and it may not mask keys.
        width: units of the hidden layer, at least 1; 32 in the paper.
        kernel: number of neighbouring keys that each map reads, odd; 3 in DAPE V2, Zheng et al. 2024,
            arXiv:2410.04798. Its released code zeroes the logits of later keys but not their hidden units, so
            a query's logits depend on whether a later key exists; here they do not, as if it decoded token
            by token.
    """

    per_layer = True

    def __init__(
        self, shape: ModelShape, *, bias: MakeEncoding | None = None, width: int = 32, kernel: int = 1
    ):
        super().__init__(shape)
        self.width = at_least(1, "width", width)
        self.kernel = at_least(1, "kernel", kernel)
        if kernel % 2 == 0:
            raise ValueError(f"kernel={kernel} must be odd, so that it is centred on a key")
        self.added = KerpleLog(shape) if bias is None else bias(shape)
        self.reads_row = kernel > 1 or self.added.reads_row  # neighbours in memory
        self.looks_ahead = self.added.looks_ahead
        name = type(self.added).__name__
        does_more = self.added.overrides("embed", "embed_sequence", "rotate", "weights", "values", "outputs")
        if not self.added.overrides("bias") or does_more or self.added.reads_weights:
            raise ValueError(f"bias={name}: DAPE needs an encoding that only adds a bias")
        if isinstance(self.added, SlidingWindow | Chunks | HardAlibi):
            raise ValueError(f"bias={name} masks keys; DAPE needs an encoding that masks no key")
        self.invariant_to = self.added.invariant_to
        self.mlp = nn.Sequential(
            self._map(2 * shape.num_heads, width), nn.LeakyReLU(), self._map(width, shape.num_heads)
        )

    def _map(self, inputs: int, outputs: int) -> nn.Module:
        if self.kernel == 1:
            return nn.Linear(inputs, outputs)
        return nn.Conv2d(inputs, outputs, (1, self.kernel), padding=(0, self.kernel // 2))

    def bias(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor:
        a_BHTS = self.scaled_logits(q_BHTK, k_BHSK)
        bias = self.added.bias(q_BHTK, k_BHSK, at)
        assert bias is not None
        b_BHTS = bias.to(a_BHTS.dtype).expand_as(a_BHTS)
        with torch.autocast(q_BHTK.device.type, enabled=False):
            inputs_BPTS = torch.cat([a_BHTS, b_BHTS], dim=1).to(next(self.mlp.parameters()).dtype)
            if self.kernel == 1:
                correction_BHTS = self.mlp(inputs_BPTS.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
            else:
                correction_BHTS = self._convolved(inputs_BPTS, at)
        return b_BHTS + at_least_float32(correction_BHTS)

    def _convolved(self, inputs_BPTS: Tensor, at: AttentionContext) -> Tensor:
        """Return the correction [B, H, T, S] by convolutions over the keys that each query sees."""
        masked_B1TS = ~at.visible_BTS[:, None]
        first, activation, second = self.mlp
        hidden_BUTS = activation(first(inputs_BPTS.masked_fill(masked_B1TS, 0)))
        return second(hidden_BUTS.masked_fill(masked_B1TS, 0))
