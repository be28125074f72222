"""A learned vector per position id (BERT, GPT-2), with a choice of vectors for ids past the trained rows."""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pe_experiments.encodings import ModelShape
from pe_experiments.encodings.absolute import AbsoluteEncoding, Combine
from pe_experiments.encodings.base import largest_ids
from pe_experiments.encodings.sinusoidal import sinusoid_vectors
from pe_experiments.encodings.tensors import in_float64
from pe_experiments.terminal.errors import NotApplicable, above, one_of

Initial = Literal["normal", "sinusoidal"]
Beyond = Literal["untrained", "clamp", "wrap", "zero", "interpolate", "error"]
UNTRAINED_BLOCK = 64  # rows drawn at a time; changing it would change the untrained rows


class Learned(AbsoluteEncoding):
    """Learned absolute positions: row p of a table of ``train_positions`` vectors.

    Source: Gehring et al. 2017, arXiv:1705.03122; as in BERT and GPT-2 (``wpe``).
    Parameters: ``train_positions * width``. Nothing in the checkpoint depends on the evaluated length, so a
    model trained at 40 tokens loads and runs at 4,000.

    Beyond the trained rows:
        ``untrained``    initial rows, drawn from (seed, row), as if the table had been longer.
        ``clamp``        the last trained row.
        ``wrap``         row p modulo the number of rows.
        ``zero``         the zero vector.
        ``interpolate``  ids are scaled so that the largest id of the declared length reads the last trained
                         row, and rows are interpolated linearly; the only choice that takes fractional ids.
        ``error``        a ValueError.

    Args:
        beyond: one of the above.
        initial: rows before training: ``normal``, drawn from N(0, std^2), or ``sinusoidal``, the vectors of
            `Sinusoidal` with base 10,000 (``std`` then has no effect).
        std: standard deviation of the initial rows, above 0. Its ratio to that of the token embeddings
            matters: BERT and GPT-2 draw both with 0.02. The default suits `initialisation=pytorch`, which
            draws token embeddings with 1, and is close to the 0.7 of sinusoids; with 0.02 learning is several
            times slower under that initialisation.
        combine, width: see `AbsoluteEncoding`.

    Raises:
        ValueError: negative ids, fractional ids (except under ``interpolate``), ids past the table under
            ``error``.
    """

    grown_tables = ("table",)

    def __init__(
        self,
        shape: ModelShape,
        *,
        beyond: Beyond = "untrained",
        initial: Initial = "normal",
        std: float = 0.5,
        combine: Combine = "add",
        width: int | None = None,
    ):
        super().__init__(shape, combine=combine, width=width)
        self.beyond = one_of(Beyond, "beyond", beyond)
        self.initial = one_of(Initial, "initial", initial)
        self.std = above(0, "std", std)
        rows = torch.randn(shape.train_positions, self.width) * std
        if initial == "sinusoidal":
            rows = sinusoid_vectors(torch.arange(shape.train_positions), self.width, 10_000.0).float()
        self.table = nn.Parameter(rows)
        # Drawn from the table's random stream and saved, so that untrained rows follow from the run's seed.
        self.untrained_seed: Tensor
        self.register_buffer("untrained_seed", torch.randint(2**31, ()))

    def vectors(self, positions_BT: Tensor) -> Tensor:
        rows = self.table.shape[0]
        if self.beyond == "interpolate":
            return self._interpolated(positions_BT, largest_ids(positions_BT, None))
        _refuse_negative(positions_BT)
        if positions_BT.is_floating_point():
            raise NotApplicable(
                "pe: a learned table has no rows between whole ids; for fractional positions use "
                "pe.beyond=interpolate"
            )
        longest = int(positions_BT.max()) + 1
        if longest <= rows:
            return F.embedding(positions_BT, self.table)
        if self.beyond == "error":
            raise ValueError(
                f"position {longest - 1} lies beyond the {rows} trained rows of the learned table and "
                f"pe.beyond=error forbids that; shorten evaluation.lengths or use pe.beyond=untrained, "
                f"clamp, wrap, zero or interpolate"
            )
        if self.beyond == "wrap":
            return F.embedding(positions_BT % rows, self.table)
        if self.beyond == "untrained":
            return F.embedding(positions_BT, torch.cat([self.table, self.untrained_rows(longest - rows)]))
        clamped_BTW = F.embedding(positions_BT.clamp(max=rows - 1), self.table)
        return clamped_BTW if self.beyond == "clamp" else clamped_BTW * (positions_BT < rows)[..., None]

    def embed_sequence(self, x_BTD: Tensor, positions_BP: Tensor, declared_B: Tensor | None) -> Tensor:
        if self.beyond != "interpolate":
            return super().embed_sequence(x_BTD, positions_BP, declared_B)
        largest_B1 = largest_ids(positions_BP, declared_B)
        return self.combined(x_BTD, self._interpolated(positions_BP[:, : x_BTD.shape[1]], largest_B1))

    def untrained_rows(self, count: int) -> Tensor:
        """Return initial values of the first ``count`` rows past the table, [count, width]."""
        if self.initial == "sinusoidal":
            ids = torch.arange(count, device=self.table.device) + self.table.shape[0]
            return sinusoid_vectors(ids, self.width, 10_000.0).to(self.table)
        seed = int(self.untrained_seed)
        blocks = []
        for block in range(-(-count // UNTRAINED_BLOCK)):
            generator = torch.Generator().manual_seed((seed + 0x9E3779B1 * (block + 1)) % 2**32)
            blocks.append(torch.randn(UNTRAINED_BLOCK, self.width, generator=generator) * self.std)
        return torch.cat(blocks)[:count].to(self.table)

    def _interpolated(self, positions_BT: Tensor, largest_B1: Tensor) -> Tensor:
        """Return interpolated rows [B, T, width]; the largest id of a row reads the last trained row."""
        _refuse_negative(positions_BT)
        last_row = self.table.shape[0] - 1
        stretch_B1 = last_row / in_float64(largest_B1).clamp(min=max(last_row, 1))
        row_BT = in_float64(positions_BT) * stretch_B1
        lower_BT = row_BT.floor().long().clamp(max=last_row)
        fraction_BT1 = (row_BT - lower_BT)[..., None].to(self.table)
        lower_BT = lower_BT.to(self.table.device)
        upper_BTW = F.embedding((lower_BT + 1).clamp(max=last_row), self.table)
        return F.embedding(lower_BT, self.table) * (1 - fraction_BT1) + upper_BTW * fraction_BT1


def _refuse_negative(positions_BT: Tensor) -> None:
    if positions_BT.min() < 0:
        raise ValueError(f"learned positions must be at least 0, got {positions_BT.min().item()}")
