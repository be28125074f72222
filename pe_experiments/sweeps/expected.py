"""Estimate the duration of a sweep from the operations of its runs and a few timed training steps."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from pe_experiments.configuration.experiment import Experiment
from pe_experiments.training.device import use_device
from pe_experiments.training.preflight import forward_operations, parameters

TIMED_STEPS = 3  # after one warm-up step


def operations(experiment: Experiment) -> float:
    """Return operations of one training step, up to a factor; the backward pass takes two forward passes."""
    size, lengths = parameters(experiment), experiment.train_lengths
    forward = sum(forward_operations(experiment, size, length) for length in lengths) / len(lengths)
    return 3 * experiment.config.training.batch_size * forward


def seconds_per_step(experiment: Experiment) -> float:
    """Return the time of a training step on this machine, without the optimizer."""
    from pe_experiments.training.loop import batch_loss

    with use_device(experiment.config) as device:
        model, batches = experiment.untrained_model().to(device), experiment.batches
        times = []
        for index in range(1 + TIMED_STEPS):
            batch = batches.batch(index)
            started = time.perf_counter()
            batch_loss(model, batch.to(torch.device(device))).backward()
            times.append(time.perf_counter() - started)
        return min(times[1:])


def expected_seconds(experiments: Sequence[Experiment], at_once: int) -> float:
    """Return the expected time of these runs with ``at_once`` in parallel, scaled from a timed first one."""
    work = [experiment.config.training.steps * operations(experiment) for experiment in experiments]
    speed = operations(experiments[0]) / seconds_per_step(experiments[0])
    return sum(work) / speed / at_once
