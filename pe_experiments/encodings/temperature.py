"""Temperature by position, as in the layers of Llama 4 that have no other encoding."""

from torch import Tensor

from pe_experiments.encodings import AttentionContext, ModelShape, PositionalEncoding
from pe_experiments.encodings.tensors import in_float64
from pe_experiments.terminal.errors import at_least


class PositionTemperature(PositionalEncoding):
    """Queries at position p are multiplied by 1 + strength ln(1 + floor((p + first) / step)).

    Positions below ``step - first`` stay unchanged. The encoding carries no order by itself: Llama 4 uses it
    in the layers without RoPE, one in four (in YAML, `ByLayer`).

    Source: ``Llama4TextAttention`` and ``Ministral3Attention`` of transformers, after Nakanishi 2025,
    arXiv:2501.19399. Parameters: none. Beyond training: designed for it; logits grow with the logarithm of
    the position. In decoders and encoders.

    Args:
        step: number of positions with the same factor, at least 1; 8,192 in Llama 4; None means
            ``original_length``: logits then change only past the training length.
        strength: factor of the logarithm, at least 0; 0.1 in Llama 4.
        first: number of the first position, at least 0; 1 in Llama 4, 0 in Ministral 3 and Mistral 4.
    """

    invariant_to = "nothing"

    def __init__(self, shape: ModelShape, *, step: int | None = None, strength: float = 0.1, first: int = 1):
        super().__init__(shape)
        self.step = at_least(1, "step", shape.original_length if step is None else step)
        self.strength = at_least(0, "strength", strength)
        self.first = at_least(0, "first", first)

    def rotate(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> tuple[Tensor, Tensor]:
        return (q_BHTK * at.once(self._factors)).to(q_BHTK.dtype), k_BHSK

    def _factors(self, at: AttentionContext) -> Tensor:
        """Return the factor of each query, [B, 1, T, 1] in float32."""
        steps_BT = ((in_float64(at.q_positions_BT) + self.first) / self.step).floor()
        factors_BT = (1 + self.strength * steps_BT.log1p()).float().to(at.q_positions_BT.device)
        return factors_BT[:, None, :, None]
