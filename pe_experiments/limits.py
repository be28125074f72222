"""What cannot fit is refused at once, from an estimate, before it fills the machine or runs for days."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from pe_experiments.config import Experiment
from pe_experiments.errors import UserError

PARAMETER_BYTES = 16  # weight, gradient and AdamW's two averages
DRAWN_BYTES = 16 * 24  # a token drawn: 16 batches at once, with label and position
OPERATIONS_PER_SECOND = {"cpu": 1e10, "cuda": 1e13}  # per thread of a processor; on the low side
LONGEST_HOURS = 24.0  # that measuring a model may take by this estimate


def refuse_large_training(experiment: Experiment) -> None:
    """Hold the memory that training needs, to a factor of two or three, against this machine's.

    Raises:
        UserError: it cannot fit.
    """
    need, have = training_bytes(experiment), memory_bytes(_on_gpu(experiment))
    if have is not None and need > have:
        of_parameters = _size(PARAMETER_BYTES * parameters(experiment))
        raise UserError(
            f"training needs about {_size(need)} of memory ({of_parameters} for the parameters, the rest for "
            f"a batch) and this machine has {_size(have)}; lower model.d_model, model.num_layers, "
            f"task.vocab_size, training.batch_size or training.max_length"
        )


def refuse_long_measurements(experiment: Experiment) -> None:
    """Hold the time of each evaluation against a day; training may take as long as it likes.

    Raises:
        UserError: one would take longer.
    """
    config = experiment.config
    threads = config.hardware.threads
    speed = OPERATIONS_PER_SECOND["cuda"] if _on_gpu(experiment) else OPERATIONS_PER_SECOND["cpu"] * threads
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
    """Of the backbone: embedding and head, attention and MLP of every layer."""
    shape, vocabulary = experiment.shape, experiment.format.vocab_size
    return 2 * vocabulary * shape.d_model + shape.num_layers * 12 * shape.d_model**2


def training_bytes(experiment: Experiment) -> int:
    """Memory of parameters, optimiser, batches, and what is kept for the backward pass."""
    shape, batch_size = experiment.shape, experiment.config.training.batch_size
    tokens = shape.train_length / 2  # of a row, on average over mixed lengths
    kept = shape.num_layers * (20 * shape.d_model + 6 * shape.num_heads * tokens) * 4  # per token
    return round(PARAMETER_BYTES * parameters(experiment) + batch_size * tokens * (kept + DRAWN_BYTES))


def forward_operations(experiment: Experiment, lengths: Sequence[int]) -> float:
    """Floating-point operations of one forward pass over one example of each length."""
    shape, task, total = experiment.shape, experiment.task, 0.0
    for length in lengths:
        tokens = experiment.format.tokens(length, task.target_length(task.nearest_length(length) or length))
        total += 2 * tokens * parameters(experiment)
        total += 4 * tokens**2 * shape.d_model * shape.num_layers
    return total


def memory_bytes(on_gpu: bool) -> int | None:
    """Of the GPU or of the machine; None where the system does not say."""
    if on_gpu:
        return torch.cuda.get_device_properties(0).total_memory
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            break
        count /= 1000
    return f"{count:.3g} {unit}"
