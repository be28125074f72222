"""The machine a run computes on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from pe_experiments.configuration.schema import Config
from pe_experiments.terminal.errors import UserError
from pe_experiments.training import matmul


def prepare_hardware(config: Config) -> str:
    """Set the threads and the matmul backend of this process; returns the device."""
    hardware, training = config.hardware, config.training
    cores = os.cpu_count() or 1
    if hardware.threads > cores:
        has = f"this machine has {cores} cores; allowed: 1 to {cores}"
        raise UserError(f"hardware.threads={hardware.threads}: {has}")
    torch.set_num_threads(hardware.threads)
    if hardware.accelerator != "cpu" and torch.cuda.is_available():
        return "cuda"
    if hardware.accelerator == "gpu":
        raise UserError("hardware.accelerator=gpu: PyTorch finds no CUDA device here; allowed: cpu or auto")
    matmul.select(hardware.matmul, training.batch_size * training.max_length * config.model.d_model**2)
    return "cpu"


@contextmanager
def on_hardware(config: Config) -> Iterator[str]:
    """As `prepare_hardware`, inside a with block: a notebook's own threads and backend come back after it."""
    threads, backend = torch.get_num_threads(), matmul.current_backend()
    try:
        yield prepare_hardware(config)
    finally:
        torch.set_num_threads(threads)
        matmul.set_backend(backend)
