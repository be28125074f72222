"""Encodings that add a vector per position id to the token embeddings, or concatenate it with them."""

from typing import Literal

import torch
from torch import Tensor

from pe_experiments.encodings import ModelShape, PositionalEncoding
from pe_experiments.terminal.errors import one_of

Combine = Literal["add", "concat"]


class AbsoluteEncoding(PositionalEncoding):
    """One vector per position id, added to the token embedding or concatenated with it.

    Args:
        combine: ``add`` (Vaswani et al. 2017, section 3.5) or ``concat``, where ``width`` of the ``d_model``
            columns hold the position, the others the token embedding.
        width: columns for the position under ``concat``, between 1 and ``d_model - 1``; None means half of
            ``d_model``, and is the only choice under ``add``.
    """

    invariant_to = "nothing"

    def __init__(self, shape: ModelShape, *, combine: Combine = "add", width: int | None = None):
        super().__init__(shape)
        one_of(Combine, "combine", combine)
        if combine == "add" and width is not None:
            raise ValueError(f"width={width} requires combine=concat; with combine=add it must be null")
        self.width = shape.d_model
        if combine == "concat":
            self.width = shape.d_model // 2 if width is None else width
            if not 0 < self.width < shape.d_model:
                raise ValueError(
                    f"width={self.width} must leave columns for tokens and positions: "
                    f"between 1 and {shape.d_model - 1} for d_model={shape.d_model}"
                )
            self.position_width = self.width

    def vectors(self, positions_BT: Tensor) -> Tensor:
        """Return the vectors of these ids, [B, T, width], in float32 or better."""
        raise TypeError(f"{type(self).__name__} does not define vectors(positions_BT)")

    def embed(self, x_BTD: Tensor, positions_BT: Tensor) -> Tensor:
        return self.combined(x_BTD, self.vectors(positions_BT))

    def combined(self, x_BTD: Tensor, vectors_BTW: Tensor) -> Tensor:
        """Return the token embeddings with the vectors added or concatenated, [B, T, D]."""
        vectors_BTW = vectors_BTW.to(x_BTD.dtype)
        if self.position_width:
            return torch.cat([x_BTD, vectors_BTW.expand(x_BTD.shape[0], -1, -1)], dim=-1)
        return x_BTD + vectors_BTW
