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

    The counts are lower bounds if there are more than 200,000 training examples, because only the first are
    compared, and for a run that continues another one, because only its own batches are compared.
    """
    counts = dict.fromkeys(lengths, 0)
    trained_lengths = [length for length in counts if length in batches.source.train_lengths]
    if not trained_lengths:
        return counts
    evaluation_inputs = {length: _evaluation_inputs(source, length, examples) for length in trained_lengths}
    distinct_inputs = {length: set(inputs) for length, inputs in evaluation_inputs.items()}
    seen_inputs: dict[int, set[bytes]] = {length: set() for length in trained_lengths}
    training_examples = min(trained_batches * batches.batch_size, MOST_EXAMPLES)
    per_draw = BATCHES_PER_DRAW * batches.batch_size
    for draw in range(-(-training_examples // per_draw)):
        for length, rows_B, inputs_BN, _ in batches.examples(draw, max(trained_lengths)):
            if length in distinct_inputs:
                compared_BN = inputs_BN[rows_B < training_examples - draw * per_draw]
                training_inputs = map(bytes, compared_BN.numpy())
                seen_inputs[length] |= distinct_inputs[length].intersection(training_inputs)
    for length, inputs in evaluation_inputs.items():
        counts[length] = sum(content in seen_inputs[length] for content in inputs)
    return counts


def _evaluation_inputs(source: Source, length: int, examples: int) -> list[bytes]:
    """Return the bytes of the input of each evaluation example."""
    blocks = [source.evaluation_block(length, block) for block in range(-(-examples // BLOCK_EXAMPLES))]
    input_length = source.task.input_length(length)
    inputs_EN = torch.cat([source.format.inputs(block.tokens_BT, input_length) for block in blocks])
    return list(map(bytes, inputs_EN[:examples].numpy()))
