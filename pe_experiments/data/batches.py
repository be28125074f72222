"""Seeded, counter-based streams of batches: batch i is a pure function of (seed, stream, i).

With the same seed every encoding sees the same batches, and so does a resumed run. An evaluation draws the
training inputs again to count those of its own that occurred in training.

Shapes: B rows, T tokens, P position ids (as many as declared tokens, so P >= T).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
BLOCK_EXAMPLES = 100  # evaluation examples per block, independent of the batch size
MOST_COMPARED = 200_000  # training examples that `seen_in_training` draws again, in about a second


class Batch(NamedTuple):
    """The input of one forward pass: `formats.Sequences` and position ids (B may be 1)."""

    tokens_BT: Tensor
    labels_BT: Tensor
    lengths_B: Tensor
    declared_B: Tensor
    positions_BP: Tensor

    def rows(self, index: slice | Tensor) -> Batch:
        """Return the selected rows. A single row of position ids applies to all rows and is kept."""
        tokens_BT, labels_BT, lengths_B, declared_B, ids_BP = self
        ids_BP = ids_BP if len(ids_BP) == 1 else ids_BP[index]
        return Batch(tokens_BT[index], labels_BT[index], lengths_B[index], declared_B[index], ids_BP)

    def trimmed(self) -> Batch:
        """Return a batch as wide as its longest row; all answers may be shorter than the longest possible."""
        longest = int(self.lengths_B.max())
        return self._replace(tokens_BT=self.tokens_BT[:, :longest], labels_BT=self.labels_BT[:, :longest])

    @property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The arguments of `Backbone.hidden`."""
        return self.tokens_BT, self.positions_BP, self.lengths_B, self.declared_B

    def to(self, device: torch.device) -> Batch:
        return Batch(*(to_device(tensor, device) for tensor in self))


@dataclass(frozen=True)
class Source:
    """Make sequences from a task, a format and a position policy."""

    task: Task
    format: Format
    positions: PositionPolicy
    train_lengths: tuple[int, ...]  # in input symbols
    train_length: int  # tokens of the longest training sequence
    seed: int

    def evaluation_block(self, length: int, block: int, window: int | None = None) -> Batch:
        """Return block number ``block`` of the evaluation examples of input length ``length``.

        With a window, declared lengths and position ids are those of BOS and at most ``window`` tokens
        (`evaluation.curve.last_tokens_hidden`).
        """
        index = block_index(length, block)
        generator = stream(self.seed, "evaluation", index)
        examples = self.task.for_split("evaluation").sample(length, BLOCK_EXAMPLES, generator)
        return self.batch(*examples, stream(self.seed, "evaluation positions", index), window).trimmed()

    def batch(
        self, inputs_BN: Tensor, targets_BM: Tensor, generator: torch.Generator, window: int | None = None
    ) -> Batch:
        """Return examples for an evaluation, whose position ids may be drawn from the generator."""
        tokens_BT, labels_BT, lengths_B, declared_B, ids_BP = self.sequences(inputs_BN, targets_BM)
        if window is not None:
            declared_B = declared_B.clamp(max=window + 1)
        if ids_BP is None:
            ids_BP = self.positions.evaluation_ids(declared_B, self.train_length, generator)
        return Batch(tokens_BT, labels_BT, lengths_B, declared_B, ids_BP)

    def evaluation_blocks(self, length: int, examples: int, window: int | None = None) -> Iterator[Batch]:
        """Yield the first ``examples`` evaluation examples of an input length, block by block."""
        for block, start in enumerate(range(0, examples, BLOCK_EXAMPLES)):
            yield self.evaluation_block(length, block, window).rows(slice(examples - start))

    def sequences(self, inputs_BN: Tensor, targets_BM: Tensor) -> Sequences:
        """Return examples as sequences, with the task's position ids if the policy uses them."""
        rows = self.format.lay_out(inputs_BN, targets_BM)
        if not self.positions.task_ids:
            return rows
        provided = self.task.position_ids(inputs_BN, targets_BM)
        ids = next(provided[kind] for kind in self.positions.task_ids if kind in provided)
        return rows._replace(ids_BT=self.format.lay_out_ids(ids, len(inputs_BN)))


class TrainingStream:
    """Batches of the training lengths, with one length per row (``mixed``) or batch (``single_length``).

    The examples of the two splits, ``training`` and ``validation``, are drawn independently. The first
    ``first`` batches are skipped, rounded up to whole draws, so that a run that continues another one does
    not repeat its examples.
    """

    def __init__(
        self, source: Source, batch_size: int, batching: str, split: Split = "training", first: int = 0
    ):
        self.source = source
        self.batch_size = batch_size
        self.batching = batching
        self.split: Split = split
        self.first_draw = -(-first // BATCHES_PER_DRAW)
        self._latest_draw: tuple[int, Sequences] | None = None  # its number and its rows

    def batch(self, index: int) -> Batch:
        """Return batch ``index``, trimmed to its longest row."""
        draw, within = divmod(index, BATCHES_PER_DRAW)
        if self._latest_draw is None or self._latest_draw[0] != draw:
            self._latest_draw = draw, self._sequences(draw)
        source = self.source
        rows = slice(within * self.batch_size, (within + 1) * self.batch_size)
        tensors = self._latest_draw[1]._asdict().items()
        batch = Sequences(**{name: tensor[rows] for name, tensor in tensors if tensor is not None})
        stream_index = self.first_draw * BATCHES_PER_DRAW + index
        generator = stream(source.seed, f"{self.split} positions", stream_index)
        if batch.ids_BT is None:
            ids_BP = source.positions.training_ids(batch.declared_B, source.train_length, generator)
        else:
            ids_BP = source.positions.raised(batch.ids_BT, source.train_length, generator)
        return Batch(*batch[:4], ids_BP).trimmed()

    def _sequences(self, draw: int) -> Sequences:
        """Return the rows [R] of all batches of a draw, padded to the longest training sequence."""
        source = self.source
        rows = BATCHES_PER_DRAW * self.batch_size
        tokens_RT = torch.full((rows, source.train_length), source.format.eos)
        labels_RT = torch.full((rows, source.train_length), IGNORE)
        lengths_R, declared_R = torch.zeros(2, rows, dtype=torch.long)
        ids_RT = torch.zeros_like(tokens_RT) if source.positions.task_ids else None
        for _, rows_B, inputs_BN, targets_BM in self.examples(draw):
            sequences = source.sequences(inputs_BN, targets_BM)
            width = sequences.tokens_BT.shape[1]
            tokens_RT[rows_B, :width] = sequences.tokens_BT
            labels_RT[rows_B, :width] = sequences.labels_BT
            lengths_R[rows_B] = sequences.lengths_B
            declared_R[rows_B] = sequences.declared_B
            if ids_RT is not None and sequences.ids_BT is not None:
                ids_RT[rows_B, :width] = sequences.ids_BT
        return Sequences(tokens_RT, labels_RT, lengths_R, declared_R, ids_RT)

    def examples(self, draw: int, longest: int | None = None) -> Iterator[tuple[int, Tensor, Tensor, Tensor]]:
        """Yield length, row indices, inputs and targets of a draw for each length up to ``longest``."""
        generator = stream(self.source.seed, self.split, self.first_draw + draw)
        rows_per_length = 1 if self.batching == "mixed" else self.batch_size
        choices = torch.tensor(self.source.train_lengths)
        draws = (BATCHES_PER_DRAW * self.batch_size // rows_per_length,)
        lengths = choices[torch.randint(len(choices), draws, generator=generator)]
        lengths_R = lengths.repeat_interleave(rows_per_length)
        task = self.source.task.for_split(self.split)
        for length in lengths_R.unique().tolist():
            if longest is None or length <= longest:
                rows_B = (lengths_R == length).nonzero()[:, 0]
                yield length, rows_B, *task.sample(length, len(rows_B), generator)


def seen_in_training(
    batches: TrainingStream, trained_batches: int, source: Source, lengths: Sequence[int], examples: int
) -> dict[int, int]:
    """Return, for each input length, how many evaluation examples have an input that occurred in training.

    The counts are lower bounds if there are more than 200,000 training examples, because only the first are
    compared, and for a run that continues another one, because only its own batches are compared.
    """
    counts = dict.fromkeys(lengths, 0)
    trained_lengths = [length for length in counts if length in batches.source.train_lengths]
    if not trained_lengths:
        return counts
    evaluation_inputs: dict[int, list[bytes]] = {}
    for length in trained_lengths:
        blocks = source.evaluation_blocks(length, examples)
        inputs = [source.format.inputs(block.tokens_BT, source.task.input_length(length)) for block in blocks]
        evaluation_inputs[length] = [*map(bytes, torch.cat(inputs).numpy())]
    distinct_inputs = {length: set(inputs) for length, inputs in evaluation_inputs.items()}
    seen_inputs: dict[int, set[bytes]] = {length: set() for length in trained_lengths}
    training_examples = min(trained_batches * batches.batch_size, MOST_COMPARED)
    per_draw = BATCHES_PER_DRAW * batches.batch_size
    for draw in range(-(-training_examples // per_draw)):
        for length, rows_B, inputs_BN, _ in batches.examples(draw, max(trained_lengths)):
            if length in distinct_inputs:
                compared_BN = inputs_BN[rows_B < training_examples - draw * per_draw]
                training_inputs = map(bytes, compared_BN.numpy())
                seen_inputs[length] |= distinct_inputs[length].intersection(training_inputs)
    for length, contents in evaluation_inputs.items():
        counts[length] = sum(content in seen_inputs[length] for content in contents)
    return counts
