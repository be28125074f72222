"""Random position ids in training: an offset, or a sorted subset of a long range."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from pe_experiments.positions.base import PositionPolicy, enough_positions, sorted_ids
from pe_experiments.terminal.errors import at_least, one_of

Evaluation = Literal["draw", "consecutive"]


class RandomOffset(PositionPolicy):
    """Ids o .. o+n-1 in training, with a random o per row, so that all ids below the maximum are trained.

    Evaluation starts at 0. Neighbouring tokens are one id apart, as with consecutive ids; training only
    covers more absolute ids. Used with learned tables by Huang et al. 2024, arXiv:2410.02140.

    Args:
        max_positions: number of ids; None means four times the longest training sequence.
    """

    def __init__(self, max_positions: int | None = None):
        self.max_positions = None if max_positions is None else at_least(1, "max_positions", max_positions)

    def train_positions(self, train_length: int) -> int:
        return enough_positions(self.max_positions or 4 * train_length, train_length)

    def training_ids(self, declared_B: Tensor, train_length: int, generator: torch.Generator) -> Tensor:
        choices_B = self.train_positions(train_length) - declared_B + 1
        offsets_B = (torch.rand(len(declared_B), generator=generator, dtype=torch.float64) * choices_B).long()
        # The ids of padding are clamped so that they never leave the table.
        ids_BP = offsets_B[:, None] + torch.arange(int(declared_B.max()))
        return torch.minimum(ids_BP, (offsets_B + declared_B - 1)[:, None])


class RandomSubset(PositionPolicy):
    """n distinct ids drawn uniformly from 0 .. max_positions - 1 and sorted, one draw per row.

    Ids keep the order of the tokens but not their distances: training covers the ids and distances of longer
    sequences. Source: Ruoss et al. 2023, arXiv:2305.16843, who draw ids in evaluation as well.

    Args:
        max_positions: ids to draw from; 2,048 as in the source. No sequence may be longer.
        evaluation: ``draw``, or ``consecutive`` for ids 0 .. n-1.
    """

    def __init__(self, max_positions: int = 2048, evaluation: Evaluation = "draw"):
        self.max_positions = at_least(1, "max_positions", max_positions)
        self.evaluation = one_of(Evaluation, "evaluation", evaluation)

    def train_positions(self, train_length: int) -> int:
        return enough_positions(self.max_positions, train_length)

    def training_ids(self, declared_B: Tensor, train_length: int, generator: torch.Generator) -> Tensor:
        return self._draw(declared_B, generator)

    def evaluation_ids(self, declared_B: Tensor, train_length: int, generator: torch.Generator) -> Tensor:
        longest = int(declared_B.max())
        if longest > self.max_positions:
            raise ValueError(
                f"{longest} tokens need more ids than positions.max_positions={self.max_positions}; use a "
                f"larger one (and train with it), or shorten evaluation.lengths"
            )
        if self.evaluation == "consecutive":
            return super().evaluation_ids(declared_B, train_length, generator)
        return self._draw(declared_B, generator)

    def _draw(self, declared_B: Tensor, generator: torch.Generator) -> Tensor:
        # The numbers come in random order, so that the first n of a row are a random subset.
        drawn_BP = draw_distinct(len(declared_B), int(declared_B.max()), self.max_positions, generator)
        return sorted_ids(drawn_BP, declared_B, self.max_positions)


def draw_distinct(rows: int, count: int, below: int, generator: torch.Generator) -> Tensor:
    """Return ``count`` distinct numbers per row, drawn uniformly from 0 .. below - 1, in random order."""
    if 4 * count > below:
        return torch.rand(rows, below, generator=generator).topk(count, dim=-1).indices
    # Few of many numbers are drawn with replacement; of equal numbers the first is kept. Rows with too few
    # distinct numbers are drawn again as above. This stays uniform, because no number is treated differently.
    drawn_RN = torch.randint(below, (rows, 2 * count), generator=generator)
    sorted_RN, order_RN = drawn_RN.sort(dim=-1, stable=True)
    is_first_RN = torch.ones_like(drawn_RN, dtype=torch.bool)
    is_first_RN.scatter_(1, order_RN[:, 1:], sorted_RN[:, 1:] != sorted_RN[:, :-1])
    enough_R = is_first_RN.sum(dim=-1) >= count
    chosen_RC = torch.empty(rows, count, dtype=torch.long)
    chosen_RN = is_first_RN & (is_first_RN.cumsum(dim=-1) <= count)
    chosen_RC[enough_R] = drawn_RN[chosen_RN & enough_R[:, None]].view(-1, count)
    redrawn = int((~enough_R).sum())
    chosen_RC[~enough_R] = torch.rand(redrawn, below, generator=generator).topk(count, dim=-1).indices
    return chosen_RC
