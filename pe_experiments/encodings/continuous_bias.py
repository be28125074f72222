"""Continuous position bias: a small network maps the distance, or its logarithm, to a bias."""

from typing import Literal

import torch
from torch import Tensor, nn

from pe_experiments.encodings import AttentionContext, ModelShape, PositionBias
from pe_experiments.encodings.tensors import at_least_float32, in_float64
from pe_experiments.terminal.errors import at_least, one_of

Distance = Literal["linear", "log"]


class ContinuousBias(PositionBias):
    """Bias MLP(t) on the logit of query i and key j; t is the signed distance i - j or its logarithm.

    One network with an output per head serves all layers:
        ``linear``    t = i - j
        ``log``       t = sign(i - j) ln(1 + |i - j|)

    Source: Wang et al. 2021, arXiv:2108.00154, as dynamic position bias (linear), and Liu et al. 2021,
    arXiv:2111.09883, section 3.3 (log), both for images; for sequences as in ``DynamicPositionBias`` of
    x-transformers (SiLU, ``depth`` hidden layers). In CrossFormer and Swin Transformer V2 each block has a
    separate network that starts near 0; the first normalises the hidden layers, the second normalises
    distances and bounds the bias to 16. This class does none of these: before training, the bias changes by
    about 5 over 50 tokens with ``linear`` and by 0.3 with ``log``. Parameters:
    ``2 * width + (depth - 1) * (width + 1) * width + (width + 1) * num_heads``. Beyond training: the network
    extrapolates, about linearly in t. In decoders and encoders.

    Args:
        distance: one of the above.
        width: units of each hidden layer, at least 1; None means a quarter of ``d_model``, as in
            x-transformers.
        depth: number of hidden layers, at least 1.
    """

    invariant_to = "shift"

    def __init__(
        self, shape: ModelShape, *, distance: Distance = "log", width: int | None = None, depth: int = 2
    ):
        super().__init__(shape)
        self.distance = one_of(Distance, "distance", distance)
        self.width = at_least(1, "width", max(1, shape.d_model // 4) if width is None else width)
        self.depth = at_least(1, "depth", depth)
        layers: list[nn.Module] = []
        for inputs in [1] + [self.width] * (depth - 1):
            layers += [nn.Linear(inputs, self.width), nn.SiLU()]
        self.mlp = nn.Sequential(*layers, nn.Linear(self.width, shape.num_heads))

    def _bias(self, at: AttentionContext) -> Tensor:
        distance_BTS = -at.relative_positions_BTS
        # Whole ids repeat distances, so evaluate the network once per distinct distance.
        least, largest = (int(bound) for bound in distance_BTS.aminmax())
        if distance_BTS.is_floating_point() or largest - least >= distance_BTS.numel():
            return self._evaluate(distance_BTS).permute(0, 3, 1, 2)
        table_RH = self._evaluate(torch.arange(least, largest + 1, device=distance_BTS.device))
        return table_RH[distance_BTS - least].permute(0, 3, 1, 2)

    def _evaluate(self, distances: Tensor) -> Tensor:
        """Return the network's bias for distances of any shape, with a last dimension for the heads."""
        if self.distance == "log":
            distances = in_float64(distances)
            distances = distances.sign() * distances.abs().log1p()
        weight = next(self.mlp.parameters())
        with torch.autocast(weight.device.type, enabled=False):
            return at_least_float32(self.mlp(distances[..., None].to(weight)))
