"""Count the evaluation inputs that occurred in training, by drawing the training inputs again."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pe_experiments.data.batches import BATCHES_PER_DRAW, BLOCK_EXAMPLES, Source, TrainingStream

MOST_EXAMPLES = 200_000  # training examples drawn, which takes about a second


def seen_in_training(
    batches: TrainingStream, trained_batches: int, source: Source, lengths: Sequence[int], examples: int
) -> dict[int, int]:
    """Return, for each input length, how many evaluation examples have an input that occurred in training.

    With more than 200,000 training examples only the first of them are compared, so that the counts are lower
    bounds. So they are for a run that continues another one: its own batches count.
    """
    counts = dict.fromkeys(lengths, 0)
    trained = [length for length in counts if length in batches.source.train_lengths]
    if not trained:
        return counts
    evaluated = {length: _evaluation_inputs(source, length, examples) for length in trained}
    sought = {length: set(inputs) for length, inputs in evaluated.items()}
    inputs_of: dict[int, set[bytes]] = {length: set() for length in trained}
    rows = min(trained_batches * batches.batch_size, MOST_EXAMPLES)
    per_draw = BATCHES_PER_DRAW * batches.batch_size
    for draw in range(-(-rows // per_draw)):
        for rows_B, inputs_BN, _ in batches.examples(draw, max(trained)):
            length = inputs_BN.shape[1]
            if keys := sought.get(length):
                trained_on = inputs_BN[rows_B < rows - draw * per_draw]
                inputs_of[length] |= keys.intersection(map(bytes, trained_on.numpy()))
    return counts | {
        length: sum(key in inputs_of[length] for key in keys) for length, keys in evaluated.items()
    }


def _evaluation_inputs(source: Source, length: int, examples: int) -> list[bytes]:
    blocks = [source.evaluation_block(length, block) for block in range(-(-examples // BLOCK_EXAMPLES))]
    inputs_EN = torch.cat([source.format.inputs(block.tokens_BT, length) for block in blocks])
    return list(map(bytes, inputs_EN[:examples].numpy()))
