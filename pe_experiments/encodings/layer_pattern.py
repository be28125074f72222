"""Short-range and long-range layers in a repeated pattern, as in released models."""

from __future__ import annotations

from torch import Tensor

from pe_experiments.encodings import AttentionContext, ModelShape, PositionalEncoding
from pe_experiments.encodings.base import MakeEncoding
from pe_experiments.encodings.mixtures import ByLayer
from pe_experiments.encodings.rope import Rope
from pe_experiments.encodings.windows import SlidingWindow

KINDS = "SL"  # the letters of a pattern, in the order of the encodings


class RopeInWindow(PositionalEncoding):
    """RoPE or no encoding, in a sliding window or not: one kind of layer of a `LayerPattern`.

    Source: see `Rope` and `SlidingWindow`. Parameters: none. Beyond training: as the parts. In decoders and
    encoders.

    Args:
        base: of `Rope`; None means no RoPE (NoPE).
        rotary_fraction: of `Rope`.
        window: of `SlidingWindow`, in positions; None means that queries see everything.
    """

    def __init__(
        self,
        shape: ModelShape,
        *,
        base: float | None = 10_000.0,
        rotary_fraction: float = 1.0,
        window: int | None = None,
    ):
        super().__init__(shape)
        self.rope = None if base is None else Rope(shape, base=base, rotary_fraction=rotary_fraction)
        self.window = None if window is None else SlidingWindow(shape, window=window)
        self.invariant_to = "ids" if base is None and window is None else "shift"

    def rotate(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> tuple[Tensor, Tensor]:
        return (q_BHTK, k_BHSK) if self.rope is None else self.rope.rotate(q_BHTK, k_BHSK, at)

    def bias(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor | None:
        return None if self.window is None else self.window.bias(q_BHTK, k_BHSK, at)


class LayerPattern(ByLayer):
    """Short-range and long-range layers in a repeated pattern, such as SSSL.

    Released models mix layers with RoPE in a sliding window (S) and layers that see everything (L), with
    another base or without RoPE.

    Source: Yang et al. 2025, arXiv:2501.18795 (RNoPE), and the released models under
    ``configs/pe/released``. Parameters: those of the parts. Beyond training: as the parts.

    Args:
        short, long: functions that build the encodings of the layers S and L, as in `Composition`.
        pattern: letters S and L, repeated for all layers and at most as many as layers.
        last: the letter of the last layer, whatever the pattern says; None means as the pattern says.
    """

    def __init__(
        self,
        shape: ModelShape,
        *,
        short: MakeEncoding,
        long: MakeEncoding,
        pattern: str = "SL",
        last: str | None = None,
    ):
        if not pattern or set(pattern) - set(KINDS):
            raise ValueError(f"pattern={pattern} must consist of the letters S (short) and L (long)")
        if last not in (None, *KINDS):
            raise ValueError(f"last={last} must be the letter S (short) or L (long)")
        layers = shape.num_layers
        if len(pattern) > layers:
            raise ValueError(
                f"pattern={pattern} has {len(pattern)} layers and the model {layers}; "
                f"take model.num_layers={len(pattern)} or a shorter pattern"
            )
        kinds = [pattern[layer % len(pattern)] for layer in range(layers)]
        if last is not None:
            kinds[-1] = last
        order = [KINDS.index(kind) for kind in kinds]
        super().__init__(shape, encodings=[short, long], order=order)
