"""Choose and prepare the device on which a run computes."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from pe_experiments.configuration.schema import Config
from pe_experiments.terminal.errors import UserError
from pe_experiments.training import cpu


def prepare_device(config: Config) -> str:
    """Set the threads and the route of this process (`cpu.Route`); return the device: cuda, mps or cpu.

    Raises:
        UserError: this machine lacks the device, or a run cannot use as many devices.
    """
    trainer, training = config.trainer, config.training
    cores = os.cpu_count() or 1
    if trainer.threads > cores:
        raise UserError(
            f"trainer.threads={trainer.threads}: this machine has {cores} cores; allowed: 1 to {cores}"
        )
    torch.set_num_threads(trainer.threads)
    cpu.keep_freed_memory()
    on_gpu = trainer.accelerator in ("auto", "gpu") and torch.cuda.is_available()
    devices, rows = trainer.devices, training.batch_size
    ranks = devices * trainer.num_nodes
    if on_gpu and devices > (available := torch.cuda.device_count()):
        raise UserError(f"trainer.devices={devices}: PyTorch finds {available}; allowed: 1 to {available}")
    if trainer.accelerator == "mps" and ranks > 1:
        raise UserError(f"trainer.devices={devices}: a Mac has one GPU; allowed: 1")
    if trainer.strategy == "fsdp" and not on_gpu:
        raise UserError("trainer.strategy=fsdp needs CUDA devices; allowed without them: auto or ddp")
    if trainer.strategy == "fsdp" and training.weight_decay:
        raise UserError(
            "trainer.strategy=fsdp: sharded parameters lose the shapes that exempt some of them from weight "
            "decay; allowed: training.weight_decay=0, or trainer=ddp"
        )
    if ranks > rows:
        raise UserError(f"training.batch_size={rows} is shared by {ranks} devices; allowed: {ranks} or more")
    if on_gpu:
        return "cuda"
    if trainer.accelerator == "gpu":
        raise UserError("trainer.accelerator=gpu: PyTorch finds no CUDA device; allowed: cpu or auto")
    if trainer.accelerator == "mps":
        if not torch.backends.mps.is_available():
            raise UserError("trainer.accelerator=mps: PyTorch finds no Apple GPU; allowed: cpu or auto")
        if trainer.precision == "64-true":
            raise UserError(
                "trainer.precision=64-true: Apple's GPU has no float64; allowed: 32-true or bf16-mixed"
            )
        return "mps"
    cpu.select(trainer.matmul, training.batch_size * training.max_length * config.model.d_model**2)
    return "cpu"


def check_process_group(config: Config) -> None:
    """Raise a UserError if this process has trained on several devices: the others ended with that run."""
    devices = config.trainer.devices
    ranks = devices * config.trainer.num_nodes
    if ranks > 1 and torch.distributed.is_available() and torch.distributed.is_initialized():
        problem = f"trainer.devices={devices}: this process has trained on several devices before"
        raise UserError(f"{problem}; allowed: one such run in a process, as with scripts/train.py")


@contextmanager
def use_device(config: Config) -> Iterator[str]:
    """Call `prepare_device` for a block; afterwards restore the threads and the route."""
    threads = torch.get_num_threads()
    route = cpu.route
    try:
        yield prepare_device(config)
    finally:
        torch.set_num_threads(threads)
        cpu.use_route(route)
