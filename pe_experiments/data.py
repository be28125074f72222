"""Seeded, counter-based streams of batches: batch i is a pure function of (seed, stream, i).

Every scheme sees the same batches for one seed, and a resumed run sees the batches an uninterrupted one
would.

Shapes: B rows, T tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from pe_experiments.formats import Format, Sequences
from pe_experiments.positions import PositionPolicy
from pe_experiments.randomness import block_index, stream
from pe_experiments.tasks import IGNORE, Task

BATCHES_PER_DRAW = 16  # drawn together: a task is called once per length, not once per length and batch
MICRO_BATCH_TOKENS = 1300  # below about so many, a part of a batch costs more than its padding did (measured)
WIDTH_STEP = 8  # widths and rows come in steps: a kernel is set up anew for every shape it has not seen
BLOCK_EXAMPLES = 100  # evaluation examples come in fixed blocks, whatever the batch size


class Batch(NamedTuple):
    """What one forward pass reads: `formats.Sequences` and the position ids (B may be 1)."""

    tokens_BT: Tensor
    labels_BT: Tensor
    lengths_B: Tensor
    positions_BT: Tensor


@dataclass(frozen=True)
class Source:
    """What examples are made from.

    Attributes:
        task, format, positions: the parts.
        train_lengths: input lengths training draws from.
        train_length: tokens of the longest training sequence.
        seed: of the run.
    """

    task: Task
    format: Format
    positions: PositionPolicy
    train_lengths: tuple[int, ...]
    train_length: int
    seed: int

    def evaluation_block(self, length: int, block: int) -> Batch:
        """Block ``block`` of the evaluation examples of input length ``length``."""
        index = block_index(length, block)
        generator = stream(self.seed, "evaluation", index)
        rows = self.examples(length, BLOCK_EXAMPLES, generator)
        ids_BT = rows.ids_BT
        if ids_BT is None:
            draws = stream(self.seed, "evaluation positions", index)
            ids_BT = self.positions.evaluation_ids(rows.lengths_B, self.train_length, draws)
        return _trimmed(rows, ids_BT)

    def examples(self, length: int, count: int, generator: torch.Generator) -> Sequences:
        """Random examples of one input length, laid out."""
        inputs_BN, targets_BM = self.task.sample(length, count, generator)
        rows = self.format.lay_out(inputs_BN, targets_BM)
        if not self.positions.task_ids:
            return rows
        provided = self.task.position_ids(inputs_BN, targets_BM)
        ids = next(provided[kind] for kind in self.positions.task_ids if kind in provided)
        return replace(rows, ids_BT=self.format.lay_out_ids(ids, count))


class TrainingStream:
    """Batches of the training lengths.

    Args:
        source: what examples are made from.
        batch_size: rows per batch.
        batching: ``mixed``, each row draws its own length; ``single_length``, each batch draws one.
        name: ``training`` or ``validation``; their examples never meet.
    """

    def __init__(self, source: Source, batch_size: int, batching: str, name: str = "training"):
        self.source = source
        self.batch_size = batch_size
        self.batching = batching
        self.name = name
        self._draw: tuple[int, Sequences] | None = None

    def batch(self, index: int) -> Batch:
        """Batch ``index``, trimmed to its longest row."""
        draw, place = divmod(index, BATCHES_PER_DRAW)
        if self._draw is None or self._draw[0] != draw:
            self._draw = draw, self._sequences(draw)
        drawn, source = self._draw[1], self.source
        rows = slice(place * self.batch_size, (place + 1) * self.batch_size)
        chosen = Sequences(drawn.tokens_BT[rows], drawn.labels_BT[rows], drawn.lengths_B[rows])
        positions = stream(source.seed, f"{self.name} positions", index)
        if drawn.ids_BT is None:
            ids_BT = source.positions.training_ids(chosen.lengths_B, source.train_length, positions)
        else:
            ids_BT = source.positions.raised(drawn.ids_BT[rows], source.train_length, positions)
        return _trimmed(chosen, ids_BT)

    def _sequences(self, draw: int) -> Sequences:
        source = self.source
        generator = stream(source.seed, self.name, draw)
        lengths_R = self._lengths(generator)
        rows = len(lengths_R)
        tokens_RT = torch.full((rows, source.train_length), source.format.eos)
        labels_RT = torch.full((rows, source.train_length), IGNORE)
        tokens_R = torch.zeros(rows, dtype=torch.long)
        ids_RT = torch.zeros_like(tokens_RT) if source.positions.task_ids else None
        for length in lengths_R.unique().tolist():
            where = (lengths_R == length).nonzero()[:, 0]
            made = source.examples(length, len(where), generator)
            width = made.tokens_BT.shape[1]
            tokens_RT[where, :width] = made.tokens_BT
            labels_RT[where, :width] = made.labels_BT
            tokens_R[where] = made.lengths_B
            if ids_RT is not None and made.ids_BT is not None:
                ids_RT[where, :width] = made.ids_BT
        return Sequences(tokens_RT, labels_RT, tokens_R, ids_RT)

    def _lengths(self, generator: torch.Generator) -> Tensor:
        """Input length of every row of a draw."""
        choices = torch.tensor(self.source.train_lengths)
        if self.batching == "mixed":
            rows = BATCHES_PER_DRAW * self.batch_size
            return choices[torch.randint(len(choices), (rows,), generator=generator)]
        drawn = choices[torch.randint(len(choices), (BATCHES_PER_DRAW,), generator=generator)]
        return drawn.repeat_interleave(self.batch_size)

    def inputs(self, draw: int, longest: int) -> Iterator[tuple[int, Tensor, Tensor]]:
        """The inputs of a draw as the task made them, not laid out, by length up to ``longest``.

        Yields:
            A length, the rows of the draw that have it, and their symbols [rows, N].
        """
        generator = stream(self.source.seed, self.name, draw)
        lengths_R = self._lengths(generator)
        for length in lengths_R[lengths_R <= longest].unique().tolist():
            where = (lengths_R == length).nonzero()[:, 0]
            yield length, where, self.source.task.sample(length, len(where), generator)[0]


def micro_batches(batch: Batch, train_length: int) -> list[Batch]:
    """The batch in parts of similar lengths, which waste little on padding.

    Rows are sorted by length and cut; each part is as wide as its longest row, rounded up to a multiple of 8.
    The sum of the losses over the parts is that of the batch.

    Args:
        batch: of mixed lengths; one of a single length is left whole.
        train_length: tokens of the longest sequence there can be, which settles the rows of a part.
    """
    rows = rounded_up(MICRO_BATCH_TOKENS // train_length + 1, WIDTH_STEP)
    if rows >= len(batch.lengths_B) or batch.lengths_B.min() == batch.lengths_B.max():
        return [batch]
    order_B = batch.lengths_B.argsort(descending=True, stable=True)
    return [_part(batch, chosen_b) for chosen_b in order_B.split(rows)]


def rounded_up(count: int, step: int) -> int:
    """The smallest multiple of ``step`` that is at least ``count``."""
    return -(-count // step) * step


def _part(batch: Batch, rows_b: Tensor) -> Batch:
    """These rows, longest first."""
    lengths_b = batch.lengths_B[rows_b]
    places_t = torch.arange(rounded_up(int(lengths_b[0]), WIDTH_STEP)).clamp(max=batch.tokens_BT.shape[1] - 1)
    inside_bt = torch.arange(len(places_t)) < lengths_b[:, None]
    shared = len(batch.positions_BT) == 1
    return Batch(
        batch.tokens_BT[rows_b][:, places_t],
        batch.labels_BT[rows_b][:, places_t].masked_fill(~inside_bt, IGNORE),
        lengths_b,
        (batch.positions_BT if shared else batch.positions_BT[rows_b])[:, places_t],
    )


def _trimmed(rows: Sequences, ids_BT: Tensor) -> Batch:
    """As wide as the longest row: answers may all be shorter than there is room for."""
    longest = int(rows.lengths_B.max())
    return Batch(
        rows.tokens_BT[:, :longest], rows.labels_BT[:, :longest], rows.lengths_B, ids_BT[:, :longest]
    )
