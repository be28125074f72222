"""What a run would need in memory and time, estimated from its sizes before anything is built."""

from __future__ import annotations

import os
from contextlib import suppress

import torch

from pe_experiments.configuration.experiment import Experiment
from pe_experiments.terminal.errors import UserError

PARAMETER_BYTES = 16  # weight, gradient and AdamW's two averages
FORWARD_BYTES = 4  # the weight alone
DRAWN_BYTES = 16 * 24  # a token drawn: 16 batches at once, with label and position


def refuse_large_training(experiment: Experiment) -> None:
    """Refuse a training whose memory, estimated to a factor of two or three, exceeds this machine's."""
    _refuse(experiment, "training", PARAMETER_BYTES, experiment.shape.num_layers, _on_gpu(experiment))


def refuse_large_model(experiment: Experiment) -> None:
    """Refuse a model that cannot be tried on a batch, without gradients."""
    _refuse(experiment, "the model", FORWARD_BYTES, 1, on_gpu=False)


def refuse_long_measurements(experiment: Experiment) -> None:
    """Refuse an evaluation estimated to take more than a day; training has no limit."""
    config, shape, task, size = experiment.config, experiment.shape, experiment.task, parameters(experiment)
    speed = 1e13 if _on_gpu(experiment) else 1e10 * config.trainer.threads  # operations a second, or more
    looks = config.training.check_examples, experiment.train_lengths[-1:]
    said = {"evaluation.examples": "evaluation.lengths", "training.check_examples": "training.max_length"}
    for name, examples, lengths in (
        ("evaluation.examples", config.evaluation.examples, experiment.evaluation_lengths),
        ("training.check_examples", *looks),
    ):
        rows = (experiment.format.tokens(n, task.target_length(task.nearest_length(n) or n)) for n in lengths)
        work = sum(2 * t * size + 4 * t**2 * shape.d_model * shape.num_layers for t in rows)
        if (hours := examples * work / speed / 3600) > 24:
            over = f"with {said[name]} up to {max(lengths)} takes about {hours:.2g} hours by an estimate"
            raise UserError(f"{name}={examples} {over}, and the limit is 24; lower either")


def _refuse(experiment: Experiment, what: str, per_parameter: int, layers: int, on_gpu: bool) -> None:
    need, have = needed_bytes(experiment, per_parameter, layers), memory_bytes(on_gpu)
    if have is not None and need > have:
        of_parameters = per_parameter * parameters(experiment)
        raise UserError(
            f"{what} needs about {need / 1e9:,.1f} GB of memory ({of_parameters / 1e9:,.1f} for the "
            f"parameters, the rest for a batch), this machine has {have / 1e9:,.1f}; lower model.d_model, "
            f"model.num_layers, task.vocab_size, training.batch_size, training.max_length or pe's own sizes"
        )


def _on_gpu(experiment: Experiment) -> bool:
    return experiment.config.trainer.accelerator in ("auto", "gpu") and torch.cuda.is_available()


def parameters(experiment: Experiment) -> int:
    """Number of parameters: embedding and head, attention and MLP of every layer, and the scheme's."""
    shape, vocabulary, scheme = experiment.shape, experiment.format.vocab_size, experiment.components["pe"]
    of_backbone = 2 * vocabulary * shape.d_model + shape.num_layers * 12 * shape.d_model**2
    with suppress(Exception), torch.device("meta"):  # where nothing is allocated; not every scheme can
        made = scheme.build(shape)
        of_scheme = sum(values.numel() for values in (*made.parameters(), *made.buffers()))
        return of_backbone + of_scheme * (shape.num_layers if made.per_layer else 1)
    return of_backbone


def needed_bytes(experiment: Experiment, per_parameter: int, layers: int) -> int:
    """Memory of parameters, optimiser, batches, and what is kept of so many layers."""
    shape, batch_size = experiment.shape, experiment.config.training.batch_size
    tokens = shape.train_length / 2  # of a row, on average over mixed lengths
    kept = layers * (20 * shape.d_model + 6 * shape.num_heads * tokens) * 4  # per token
    kept += experiment.format.vocab_size * 8  # logits and probabilities where tokens are scored: half of them
    return round(per_parameter * parameters(experiment) + batch_size * tokens * (kept + DRAWN_BYTES))


def memory_bytes(on_gpu: bool) -> int | None:
    """Memory of the GPU or of the machine, in bytes; None where the system does not say."""
    if on_gpu:
        return torch.cuda.get_device_properties(0).total_memory
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None
