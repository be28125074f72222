"""Count the evaluation inputs that occurred in training, by drawing the training inputs again."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pe_experiments.data.batches import BATCHES_PER_DRAW, BLOCK_EXAMPLES, Source, TrainingStream
from pe_experiments.data.randomness import block_index, stream

MOST_EXAMPLES = 200_000  # training examples drawn, which takes about a second


def seen_in_training(
    batches: TrainingStream, steps: int, source: Source, lengths: Sequence[int], examples: int
) -> dict[int, int]:
    """Return, for each input length, how many evaluation examples have an input that occurred in training.

    With more than 200,000 training examples only the first of them are compared, so that the counts are lower
    bounds.
    """
    counts = dict.fromkeys(lengths, 0)
    trained = [length for length in counts if length in batches.source.train_lengths]
    if not trained:
        return counts
    wanted = {length: _evaluation_inputs(source, length, examples) for length in trained}
    sought = {length: set(inputs) for length, inputs in wanted.items()}
    inputs_of: dict[int, set[bytes]] = {length: set() for length in trained}
    rows = min(steps * batches.batch_size, MOST_EXAMPLES)
    per_draw = BATCHES_PER_DRAW * batches.batch_size
    for draw in range(-(-rows // per_draw)):
        for length, where, inputs_RN in batches.inputs(draw, max(trained)):
            if keys := sought.get(length):
                trained_on = inputs_RN[where < rows - draw * per_draw]
                inputs_of[length] |= keys.intersection(map(bytes, trained_on.numpy()))
    return counts | {length: sum(key in inputs_of[length] for key in keys) for length, keys in wanted.items()}


def _evaluation_inputs(source: Source, length: int, examples: int) -> list[bytes]:
    """Return the inputs of `Source.evaluation_block` before layout."""
    task, blocks = source.task.for_split("evaluation"), []
    for block in range(-(-examples // BLOCK_EXAMPLES)):
        generator = stream(source.seed, "evaluation", block_index(length, block))
        blocks.append(task.sample(length, BLOCK_EXAMPLES, generator)[0])
    return list(map(bytes, torch.cat(blocks)[:examples].numpy()))
