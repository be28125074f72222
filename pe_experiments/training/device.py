"""The device a run computes on, and a description of it for the run's directory."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from pe_experiments.configuration.schema import Config
from pe_experiments.terminal import process
from pe_experiments.terminal.errors import UserError
from pe_experiments.training import matmul

LIBRARIES = ("torch", "pytorch-lightning", "hydra-core", "omegaconf", "numpy", "wandb")


def prepare_device(config: Config) -> str:
    """Set the threads and the matmul backend of this process; returns the device: cuda, mps or cpu."""
    trainer, training = config.trainer, config.training
    cores = os.cpu_count() or 1
    if trainer.threads > cores:
        has = f"this machine has {cores} cores; allowed: 1 to {cores}"
        raise UserError(f"trainer.threads={trainer.threads}: {has}")
    torch.set_num_threads(trainer.threads)
    if trainer.accelerator in ("auto", "gpu") and torch.cuda.is_available():
        return "cuda"
    if trainer.accelerator == "gpu":
        raise UserError("trainer.accelerator=gpu: PyTorch finds no CUDA device here; allowed: cpu or auto")
    if trainer.accelerator == "mps":
        if not torch.backends.mps.is_available():
            raise UserError(
                "trainer.accelerator=mps: PyTorch finds no GPU of Apple's here; allowed: cpu or auto"
            )
        return "mps"
    matmul.select(trainer.matmul, training.batch_size * training.max_length * config.model.d_model**2)
    return "cpu"


@contextmanager
def use_device(config: Config) -> Iterator[str]:
    """As `prepare_device`, inside a with block: a notebook's own threads and backend come back after it."""
    threads, backend = torch.get_num_threads(), matmul.current_backend()
    try:
        yield prepare_device(config)
    finally:
        torch.set_num_threads(threads)
        matmul.set_backend(backend)


def describe_environment(device: str) -> dict[str, Any]:
    """The content of ``environment.json``."""
    return {
        "pe_experiments": metadata.version("pe_experiments"),
        "source": _source_revision(),
        "python": platform.python_version(),
        "libraries": {name: metadata.version(name) for name in LIBRARIES},
        "platform": platform.platform(),
        "processor": processor(),
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "threads": torch.get_num_threads(),
        "matmul": matmul.current_backend(),
        "command": process.command or [Path(sys.argv[0]).name, *sys.argv[1:]],
    }


def _source_revision() -> str | None:
    """Commit of the checkout, ``+edited`` where files differ from it; None outside a checkout of ours."""
    folder = Path(__file__).parents[1]

    def git(*words: str) -> str:
        command = ["git", "-C", str(folder), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=5).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")  # no copy in somebody's repository
        commit, edited = git("rev-parse", "HEAD"), git("status", "--porcelain", ".")
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{commit}+edited" if edited else commit


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()
