"""Encodings that tutorials try before sinusoids: the index, the index as a fraction, the index in binary.

Each fails a criterion of a good encoding; `scripts/show_encoding.py` shows which (Kazemnejad 2019,
"Transformer Architecture: The Positional Encoding").
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from pe_experiments.encodings.absolute import AbsoluteEncoding
from pe_experiments.encodings.base import largest_ids
from pe_experiments.encodings.tensors import in_float64
from pe_experiments.terminal.errors import NotApplicable


class RawIndex(AbsoluteEncoding):
    """The position itself in the first column and 0 in the others, which grows without bound.

    It uses one column, because the following layer norm would remove a number added to all columns.

    Source: a teaching baseline to Vaswani et al. 2017, arXiv:1706.03762. Parameters: none. Beyond training:
    values are larger than any in training.
    """

    def vectors(self, positions_BT: Tensor) -> Tensor:
        return F.pad(positions_BT[..., None].float(), (0, self.width - 1))


class ScaledIndex(AbsoluteEncoding):
    """The position divided by the largest position of the row, 0 .. 1, in the first column.

    The step depends on the length: neighbours are 1/4 apart among five tokens and 1/99 among a hundred. The
    length is the declared one (with the longest possible answer), since it must be known before the first
    token is read.

    Source: a teaching baseline to Vaswani et al. 2017, arXiv:1706.03762. Parameters: none. Beyond training:
    the range stays, the step shrinks.
    """

    reads_row = True

    def vectors(self, positions_BT: Tensor) -> Tensor:
        return self._fractions(positions_BT, largest_ids(positions_BT, None))

    def embed_sequence(self, x_BTD: Tensor, positions_BP: Tensor, declared_B: Tensor | None) -> Tensor:
        largest_B1 = largest_ids(positions_BP, declared_B)
        return self.combined(x_BTD, self._fractions(positions_BP[:, : x_BTD.shape[1]], largest_B1))

    def _fractions(self, positions_BT: Tensor, largest_B1: Tensor) -> Tensor:
        """Return vectors [B, T, width] with the position divided by the largest one in the first column."""
        fraction_BT = in_float64(positions_BT) / in_float64(largest_B1).clamp(min=1)
        return F.pad(fraction_BT[..., None].float().to(positions_BT.device), (0, self.width - 1))


class BinaryCounter(AbsoluteEncoding):
    """The position in binary, one bit per column, the lowest bit in the last column.

    7 and 8 are neighbours and differ in every bit they use; sinusoids are its smooth version (with the
    fastest column first).

    Source: a teaching baseline to Vaswani et al. 2017, arXiv:1706.03762. Parameters: none. Beyond training:
    columns that were always 0 become 1.

    Args:
        combine, width: see `AbsoluteEncoding`; with fewer columns than bits the highest bits are missing.

    Raises:
        NotApplicable: when applied to fractional or negative positions.
    """

    def vectors(self, positions_BT: Tensor) -> Tensor:
        if positions_BT.is_floating_point() or positions_BT.min() < 0:
            raise NotApplicable("pe: a binary counter has no bits for fractional or negative positions")
        bits = torch.arange(self.width - 1, -1, -1, device=positions_BT.device)
        values_BTW = positions_BT[..., None] >> bits.clamp(max=62)
        return torch.where(bits < 63, values_BTW & 1, 0).float()
