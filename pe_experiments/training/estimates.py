"""How large a model and how long its evaluation will be, estimated before anything is allocated."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import torch

from pe_experiments.configuration.experiment import Experiment
from pe_experiments.terminal.errors import UserError

PARAMETER_BYTES = 16  # weight, gradient and AdamW's two averages
FORWARD_BYTES = 4  # the weight alone
DRAWN_BYTES = 16 * 24  # a token drawn: 16 batches at once, with label and position
CPU_SPEED, CUDA_SPEED = 1e10, 1e13  # operations per second, of a CPU per thread; on the low side
LONGEST_HOURS = 24.0  # that measuring a model may take by this estimate


def refuse_large_training(experiment: Experiment) -> None:
    """Refuse a training whose memory, estimated to a factor of two or three, exceeds this machine's."""
    _refuse(experiment, "training", PARAMETER_BYTES, experiment.shape.num_layers, _on_gpu(experiment))


def refuse_large_model(experiment: Experiment) -> None:
    """Refuse a model that cannot be tried out here on a batch, without gradients, as an evaluation does."""
    _refuse(experiment, "the model", FORWARD_BYTES, 1, on_gpu=False)


def _refuse(experiment: Experiment, what: str, per_parameter: int, layers: int, on_gpu: bool) -> None:
    need, have = needed_bytes(experiment, per_parameter, layers), memory_bytes(on_gpu)
    if have is not None and need > have:
        of_parameters = _size(per_parameter * parameters(experiment))
        raise UserError(
            f"{what} needs about {_size(need)} of memory ({of_parameters} for the parameters, the rest for "
            f"a batch) and this machine has {_size(have)}; lower model.d_model, model.num_layers, "
            f"task.vocab_size, training.batch_size or training.max_length"
        )


def refuse_long_measurements(experiment: Experiment) -> None:
    """Refuse an evaluation estimated to take more than a day; training has no limit."""
    config = experiment.config
    speed = CUDA_SPEED if _on_gpu(experiment) else CPU_SPEED * config.hardware.threads
    evaluated, checked = config.evaluation.examples, config.training.check_examples
    for examples, lengths, keys in (
        (evaluated, experiment.evaluation_lengths, ("evaluation.examples", "evaluation.lengths")),
        (checked, experiment.train_lengths[-1:], ("training.check_examples", "training.max_length")),
    ):
        hours = examples * forward_operations(experiment, lengths) / speed / 3600
        if hours > LONGEST_HOURS:
            raise UserError(
                f"{keys[0]}={examples} with {keys[1]} up to {max(lengths)} takes about {hours:.2g} hours by "
                f"an estimate, and the limit is {LONGEST_HOURS:.0f}; lower either"
            )


def _on_gpu(experiment: Experiment) -> bool:
    return experiment.config.hardware.accelerator != "cpu" and torch.cuda.is_available()


def parameters(experiment: Experiment) -> int:
    """Number of parameters of the backbone: embedding and head, attention and MLP of every layer."""
    shape, vocabulary = experiment.shape, experiment.format.vocab_size
    return 2 * vocabulary * shape.d_model + shape.num_layers * 12 * shape.d_model**2


def needed_bytes(experiment: Experiment, per_parameter: int, layers: int) -> int:
    """Memory of parameters, optimiser, batches, and what is kept of so many layers."""
    shape, batch_size = experiment.shape, experiment.config.training.batch_size
    tokens = shape.train_length / 2  # of a row, on average over mixed lengths
    kept = layers * (20 * shape.d_model + 6 * shape.num_heads * tokens) * 4  # per token
    kept += experiment.format.vocab_size * 8  # logits and probabilities where tokens are scored: half of them
    return round(per_parameter * parameters(experiment) + batch_size * tokens * (kept + DRAWN_BYTES))


def forward_operations(experiment: Experiment, lengths: Sequence[int]) -> float:
    """Floating-point operations of one forward pass over one example of each length."""
    shape, task, size = experiment.shape, experiment.task, parameters(experiment)
    targets = (task.target_length(task.nearest_length(length) or length) for length in lengths)
    rows = map(experiment.format.tokens, lengths, targets)
    return sum(2 * tokens * size + 4 * tokens**2 * shape.d_model * shape.num_layers for tokens in rows)


def memory_bytes(on_gpu: bool) -> int | None:
    """Memory of the GPU or of the machine, in bytes; None where the system does not say."""
    if on_gpu:
        return torch.cuda.get_device_properties(0).total_memory
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _size(count: float) -> str:
    thousands = min(4, int(math.log10(count) // 3))
    return f"{count / 1000**thousands:.3g} {('B', 'kB', 'MB', 'GB', 'TB')[thousands]}"
