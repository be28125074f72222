"""Learned relative logits, as in Inkling (2026): each query mixes a bank of learned biases by distance."""

import torch
from torch import Tensor, nn

from pe_experiments.encodings import AttentionContext, ModelShape, PositionalEncoding
from pe_experiments.encodings.tensors import at_least_float32, by_distance, require_whole
from pe_experiments.terminal.errors import at_least


class LearnedRelative(PositionalEncoding):
    """Bias (W x_i)_h . B[:, i - j] for 0 <= i - j < extent, else 0, on the logit of query i and key j.

    B [d_rel, extent] holds d_rel profiles of bias against distance, shared by the heads; W maps the hidden
    state of the query to d_rel weights per head. The source also normalises q and k, divides the logits by
    head_dim and has short convolutions on k and v, which belong to the model, and scales the logits of its
    global layers with the position (compare `PositionTemperature`).

    Source: Inkling (Thinking Machines 2026), as in ``InklingRelativeLogits`` of transformers and
    ``RelativeProjPositionalBias`` of x-transformers. Parameters:
    ``d_model * num_heads * d_rel + d_rel * extent`` per layer. Beyond training: keys ``extent`` or more away
    have no bias. In decoders and encoders (where keys after the query have no bias).

    Args:
        d_rel: number of profiles, at least 1; 16 in the source.
        extent: number of distances with a bias, at least 1; None means half of ``original_length``, so that
            training has keys without a bias too. The source uses 1,024 in global layers and the window in
            local layers.

    Raises:
        NotApplicable: when applied to fractional positions.
    """

    per_layer = True
    invariant_to = "shift"

    def __init__(self, shape: ModelShape, *, d_rel: int = 16, extent: int | None = None):
        super().__init__(shape)
        self.d_rel = at_least(1, "d_rel", d_rel)
        self.extent = at_least(1, "extent", max(1, shape.original_length // 2) if extent is None else extent)
        self.mix = nn.Linear(shape.d_model, shape.num_heads * d_rel, bias=False)  # W
        self.profiles_RE = nn.Parameter(torch.randn(d_rel, self.extent) * 0.02)  # B

    def bias(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor:
        distance_BTS = -at.relative_positions_BTS
        require_whole(distance_BTS, "LearnedRelative has no bias")
        with torch.autocast(q_BHTK.device.type, enabled=False):
            weights_BTW = self.mix(at.x_BSD[:, at.queries].to(self.mix.weight.dtype))
            weights_BHTR = weights_BTW.unflatten(-1, (self.shape.num_heads, self.d_rel)).transpose(1, 2)
            bias_BHTE = at_least_float32(weights_BHTR @ self.profiles_RE)
        bias_BHTS = by_distance(bias_BHTE, distance_BTS.clamp(0, self.extent - 1))
        outside_BTS = (distance_BTS < 0) | (distance_BTS >= self.extent)
        return bias_BHTS.masked_fill(outside_BTS[:, None], 0.0)
