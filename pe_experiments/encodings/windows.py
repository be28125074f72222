"""Queries that see only near keys: sliding windows, chunks, and Hard-ALiBi's mixture of heads."""

import torch
from torch import Tensor

from pe_experiments.encodings import AttentionContext, ModelShape, PositionBias
from pe_experiments.encodings.base import Invariance
from pe_experiments.encodings.softmax import MASKED
from pe_experiments.terminal.errors import at_least


class SlidingWindow(PositionBias):
    """Every query sees only the keys less than ``window`` positions away, itself included.

    With ``first`` it also sees the keys at the first positions, whatever the distance. Order within a window
    comes from the causal mask, or from an encoding composed with this one.

    Source: Beltagy et al. 2020, arXiv:2004.05150, section 3.1. Parameters: none. Beyond training: the window
    stays, and the layers together reach num_layers (window - 1) tokens back. In decoders and encoders (to
    both sides).

    Args:
        window: size in positions, at least 1; None means a quarter of ``original_length``, at least 2.
        first: number of positions from 0 that every query sees, at least 0; StreamingLLM keeps four (Xiao et
            al. 2023, arXiv:2309.17453).
    """

    invariant_to: Invariance | None = "shift"

    def __init__(self, shape: ModelShape, *, window: int | None = None, first: int = 0):
        super().__init__(shape)
        self.window = at_least(1, "window", max(2, shape.original_length // 4) if window is None else window)
        self.first = at_least(0, "first", first)
        if first:
            self.invariant_to = "nothing"

    def _bias(self, at: AttentionContext) -> Tensor:
        masked_BTS = at.relative_positions_BTS.abs() >= self.window
        if self.first:
            masked_BTS = masked_BTS & (at.k_positions_BS >= self.first)[:, None]
        return bias_of_mask(masked_BTS[:, None])


class Chunks(PositionBias):
    """Every query sees only the keys of its own chunk of ``chunk`` positions.

    The first query of a chunk sees no earlier key. Order within a chunk comes from the causal mask, or from
    an encoding composed with this one.

    Source: ``chunked_attention`` of transformers, as in Llama 4 (chunks of 8,192). Parameters: none. Beyond
    training: chunks stay, and tokens of different chunks never meet; other layers must join them. In decoders
    and encoders.

    Args:
        chunk: size in positions, at least 1.
    """

    invariant_to = "nothing"

    def __init__(self, shape: ModelShape, *, chunk: int):
        super().__init__(shape)
        self.chunk = at_least(1, "chunk", chunk)

    def _bias(self, at: AttentionContext) -> Tensor:
        query_chunks_B1T1 = at.q_positions_BT.div(self.chunk, rounding_mode="floor")[:, None, :, None]
        key_chunks_B11S = at.k_positions_BS.div(self.chunk, rounding_mode="floor")[:, None, None, :]
        return bias_of_mask(query_chunks_B1T1 != key_chunks_B11S)


class HardAlibi(PositionBias):
    """The first heads see windows of 1, 2, 3, ... tokens, the query included; the others see everything.

    Source: Jelassi et al. 2024, arXiv:2402.01032, section 3, and its released code. Parameters: none. Beyond
    training: windows stay, and full heads have no positions. In decoders and encoders (where windows reach to
    both sides).

    Args:
        windowed_heads: number of heads with a window, at least 1; None means half of them, as in the source.
    """

    invariant_to = "shift"

    def __init__(self, shape: ModelShape, *, windowed_heads: int | None = None):
        super().__init__(shape)
        self.windowed_heads = max(1, shape.num_heads // 2) if windowed_heads is None else windowed_heads
        if not 1 <= self.windowed_heads <= shape.num_heads:
            raise ValueError(
                f"windowed_heads={windowed_heads} must be between 1 and num_heads={shape.num_heads}"
            )

    def _bias(self, at: AttentionContext) -> Tensor:
        head_H = torch.arange(self.shape.num_heads, device=at.q_positions_BT.device)
        window_H = torch.where(head_H < self.windowed_heads, head_H + 1.0, torch.inf)
        return bias_of_mask(at.relative_positions_BTS.abs()[:, None] >= window_H[:, None, None])


def bias_of_mask(masked_BHTS: Tensor) -> Tensor:
    """Return the bias: `MASKED` where True, else 0."""
    return torch.zeros(masked_BHTS.shape, device=masked_BHTS.device).masked_fill_(masked_BHTS, MASKED)
