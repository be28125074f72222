"""Seeded, counter-based streams of batches: batch i is a pure function of (seed, stream, i).

With the same seed every encoding sees the same batches, and so does a resumed run.

Shapes: B rows, T tokens, P position ids (as many as declared tokens, so P >= T).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from pe_experiments.data.formats import Format, Sequences
from pe_experiments.data.randomness import block_index, stream
from pe_experiments.encodings.tensors import to_device
from pe_experiments.positions.base import PositionPolicy
from pe_experiments.tasks import IGNORE, Task
from pe_experiments.tasks.base import Split

BATCHES_PER_DRAW = 16  # drawn together, so that a task is called once per length and not per batch
MICRO_BATCH_TOKENS = 1300  # smaller parts of a batch cost more time than the padding they save
WIDTH_STEP = 8  # widths and rows are multiples of it, because every new shape sets up kernels
BLOCK_EXAMPLES = 100  # evaluation examples per block, independent of the batch size


class Batch(NamedTuple):
    """The input of one forward pass: `formats.Sequences` and position ids (B may be 1)."""

    tokens_BT: Tensor
    labels_BT: Tensor
    lengths_B: Tensor
    declared_B: Tensor
    positions_BP: Tensor

    def rows(self, chosen: slice | Tensor) -> Batch:
        """Return these rows; a single row of position ids, which all rows share, stays."""
        tokens_BT, labels_BT, lengths_B, declared_B, ids_BP = self
        ids_BP = ids_BP if len(ids_BP) == 1 else ids_BP[chosen]
        return Batch(tokens_BT[chosen], labels_BT[chosen], lengths_B[chosen], declared_B[chosen], ids_BP)

    def to(self, device: torch.device) -> Batch:
        return Batch(*(to_device(tensor, device) for tensor in self))


@dataclass(frozen=True)
class Source:
    """Make examples of a task in a format, with position ids."""

    task: Task
    format: Format
    positions: PositionPolicy
    train_lengths: tuple[int, ...]  # in input symbols
    train_length: int  # tokens of the longest training sequence
    seed: int

    def evaluation_block(self, length: int, block: int) -> Batch:
        """Return block ``block`` of the evaluation examples of input length ``length``."""
        index = block_index(length, block)
        generator = stream(self.seed, "evaluation", index)
        rows = self.sequences(*self.task.for_split("evaluation").sample(length, BLOCK_EXAMPLES, generator))
        ids_BP = rows.ids_BT
        if ids_BP is None:
            draws = stream(self.seed, "evaluation positions", index)
            ids_BP = self.positions.evaluation_ids(rows.declared_B, self.train_length, draws)
        return _trimmed(rows, ids_BP)

    def sequences(self, inputs_BN: Tensor, targets_BM: Tensor) -> Sequences:
        """Return examples as sequences, with the task's ids if the policy takes them."""
        rows = self.format.lay_out(inputs_BN, targets_BM)
        if not self.positions.task_ids:
            return rows
        provided = self.task.position_ids(inputs_BN, targets_BM)
        ids = next(provided[kind] for kind in self.positions.task_ids if kind in provided)
        return replace(rows, ids_BT=self.format.lay_out_ids(ids, len(inputs_BN)))


class TrainingStream:
    """Batches of the training lengths, with one length per row (``mixed``) or batch (``single_length``).

    The examples of the two splits, ``training`` and ``validation``, are drawn independently.

    A stream whose ``first`` batch is not 0 leaves out so many, rounded up to whole draws: a run that
    continues another does not see the same examples again.
    """

    def __init__(
        self, source: Source, batch_size: int, batching: str, split: Split = "training", first: int = 0
    ):
        self.source = source
        self.batch_size = batch_size
        self.batching = batching
        self.split: Split = split
        self.first_draw = -(-first // BATCHES_PER_DRAW)
        self._draw: tuple[int, Sequences] | None = None

    def batch(self, index: int) -> Batch:
        """Return batch ``index``, trimmed to its longest row."""
        draw, within = divmod(index, BATCHES_PER_DRAW)
        if self._draw is None or self._draw[0] != draw:
            self._draw = draw, self._sequences(draw)
        drawn = self._draw[1]
        source = self.source
        rows = slice(within * self.batch_size, (within + 1) * self.batch_size)
        declared_B = drawn.declared_B[rows]
        chosen = Sequences(drawn.tokens_BT[rows], drawn.labels_BT[rows], drawn.lengths_B[rows], declared_B)
        index += self.first_draw * BATCHES_PER_DRAW
        positions = stream(source.seed, f"{self.split} positions", index)
        if drawn.ids_BT is None:
            ids_BP = source.positions.training_ids(declared_B, source.train_length, positions)
        else:
            ids_BP = source.positions.raised(drawn.ids_BT[rows], source.train_length, positions)
        return _trimmed(chosen, ids_BP)

    def _sequences(self, draw: int) -> Sequences:
        source = self.source
        rows = BATCHES_PER_DRAW * self.batch_size
        tokens_RT = torch.full((rows, source.train_length), source.format.eos)
        labels_RT = torch.full((rows, source.train_length), IGNORE)
        tokens_R, declared_R = torch.zeros(2, rows, dtype=torch.long)
        ids_RT = torch.zeros_like(tokens_RT) if source.positions.task_ids else None
        for of_length, inputs_BN, targets_BM in self.examples(draw):
            sequences = source.sequences(inputs_BN, targets_BM)
            width = sequences.tokens_BT.shape[1]
            tokens_RT[of_length, :width] = sequences.tokens_BT
            labels_RT[of_length, :width] = sequences.labels_BT
            tokens_R[of_length] = sequences.lengths_B
            declared_R[of_length] = sequences.declared_B
            if ids_RT is not None and sequences.ids_BT is not None:
                ids_RT[of_length, :width] = sequences.ids_BT
        return Sequences(tokens_RT, labels_RT, tokens_R, declared_R, ids_RT)

    def _lengths(self, generator: torch.Generator) -> Tensor:
        """Return the input length of every row of a draw."""
        choices = torch.tensor(self.source.train_lengths)
        if self.batching == "mixed":
            rows = BATCHES_PER_DRAW * self.batch_size
            return choices[torch.randint(len(choices), (rows,), generator=generator)]
        drawn = choices[torch.randint(len(choices), (BATCHES_PER_DRAW,), generator=generator)]
        return drawn.repeat_interleave(self.batch_size)

    def examples(self, draw: int, longest: int | None = None) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield the rows [B] of each input length, up to ``longest``, in a draw, with inputs and targets."""
        generator = stream(self.source.seed, self.split, self.first_draw + draw)
        lengths_R = self._lengths(generator)
        task = self.source.task.for_split(self.split)
        for length in lengths_R.unique().tolist():
            if longest is None or length <= longest:
                rows_B = (lengths_R == length).nonzero()[:, 0]
                yield rows_B, *task.sample(length, len(rows_B), generator)


def micro_batches(batch: Batch, train_length: int) -> list[Batch]:
    """Split a batch into parts of similar lengths to save padding; keep a batch of a single length whole.

    Rows are sorted by length and cut; each part is as wide as its longest row, rounded up to a multiple of 8.
    The summed losses of the parts add up to that of the batch.
    """
    rows = rounded_up(MICRO_BATCH_TOKENS // train_length + 1, WIDTH_STEP)
    if rows >= len(batch.lengths_B) or batch.lengths_B.min() == batch.lengths_B.max():
        return [batch]
    order_B = batch.lengths_B.argsort(descending=True, stable=True)
    return [_part(batch, chosen_b) for chosen_b in order_B.split(rows)]


def rounded_up(count: int, step: int) -> int:
    """Return the smallest multiple of ``step`` that is at least ``count``."""
    return -(-count // step) * step


def _part(batch: Batch, rows_b: Tensor) -> Batch:
    """Return these rows, longest first."""
    chosen = batch.rows(rows_b)
    lengths_b = chosen.lengths_B
    index_t = torch.arange(rounded_up(int(lengths_b[0]), WIDTH_STEP)).clamp(max=batch.tokens_BT.shape[1] - 1)
    real_bt = torch.arange(len(index_t)) < lengths_b[:, None]
    declared_b, positions_bP = chosen.declared_B, chosen.positions_BP
    index_p = torch.arange(max(len(index_t), int(declared_b.max()))).clamp(max=positions_bP.shape[1] - 1)
    return Batch(
        chosen.tokens_BT[:, index_t],
        chosen.labels_BT[:, index_t].masked_fill(~real_bt, IGNORE),
        lengths_b,
        declared_b,
        positions_bP[:, index_p],
    )


def _trimmed(rows: Sequences, ids_BP: Tensor) -> Batch:
    """Return tokens cut to the longest row, since all answers may be shorter than the longest possible."""
    longest = int(rows.lengths_B.max())
    tokens_BT, labels_BT = rows.tokens_BT[:, :longest], rows.labels_BT[:, :longest]
    return Batch(tokens_BT, labels_BT, rows.lengths_B, rows.declared_B, ids_BP)
