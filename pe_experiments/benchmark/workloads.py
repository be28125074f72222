"""What is timed: training steps of ours and of others, from the same configurations that train."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pe_experiments import matmul
from pe_experiments.benchmark.timing import Step
from pe_experiments.composition import composed
from pe_experiments.config import Experiment, check, resolve
from pe_experiments.data import TrainingStream
from pe_experiments.instantiation import build_model, source_of
from pe_experiments.matmul import Backend
from pe_experiments.training import (
    Checkpointer,
    Recorder,
    StreamDataModule,
    TrainingModule,
    batch_loss,
    train,
)

UNIQUE_COPY = (
    "task=unique_copy", "task.vocab_size=150", "pe=learned", "positions=random_offset",
    "model.num_heads=1", "training.max_length=50", "training.learning_rate=0.001",
)  # fmt: skip


def experiment(*overrides: str) -> Experiment:
    """A resolved experiment, as train.py would have it."""
    return resolve(check(composed("config", [*overrides, "logger.mode=disabled"])))


def stream(made: Experiment) -> TrainingStream:
    training = made.config.training
    return TrainingStream(source_of(made), training.batch_size, training.batching)


def plain_step(
    model: nn.Module,
    forward: Callable[[Tensor], Tensor],
    batches: list[tuple[Tensor, Tensor]],
    backend: Backend,
) -> Callable[[], float]:
    """A training step on full rows: cross entropy of the next token, AdamW, clipping; returns the loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, fused=True)
    turn = count()

    def step() -> float:
        matmul.set_backend(backend)
        tokens_BT, labels_BT = batches[next(turn) % len(batches)]
        loss = F.cross_entropy(forward(tokens_BT).flatten(0, 1).float(), labels_BT.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return float(loss.detach())

    return step


def training_step(made: Experiment, backend: Backend) -> Step:
    """A step of a run as it is trained, data included, without the Lightning loop."""
    module = TrainingModule(build_model(made), made.config.training, made.config.seed)
    parts = module.configure_optimizers()
    optimizer, schedule = parts["optimizer"], parts["lr_scheduler"]["scheduler"]
    batches, turn = stream(made), count()

    def step() -> None:
        matmul.set_backend(backend)
        optimizer.zero_grad()
        batch_loss(module.model, batches.batch(next(turn))).backward()
        nn.utils.clip_grad_norm_(module.model.parameters(), 1.0)
        optimizer.step()
        schedule.step()

    return step


def data_step(made: Experiment) -> Step:
    """The making of one batch, those drawn ahead included."""
    batches, turn = stream(made), count()
    return lambda: batches.batch(next(turn))


def bare_training(made: Experiment, backend: Backend) -> Step:
    """All steps of a run in a loop of six lines."""

    def run() -> None:
        step = training_step(made, backend)
        for _ in range(made.config.training.steps):
            step()

    return run


def whole_training(made: Experiment, backend: Backend) -> Step:
    """The same run as the harness trains it: Lightning, recording, checks and checkpoints."""

    def run() -> None:
        matmul.set_backend(backend)
        module = TrainingModule(build_model(made), made.config.training, made.config.seed)
        validation = TrainingStream(source_of(made), made.config.training.batch_size, "mixed", "validation")
        with tempfile.TemporaryDirectory() as folder:
            recorder = Recorder(validation, lambda row: None, lambda step: None)
            keeper = Checkpointer(Path(folder) / "last.ckpt")
            train(module, StreamDataModule(stream(made)), "cpu", [recorder, keeper], None)

    return run


def random_batches(vocabulary: int, rows: int, tokens: int, number: int = 4) -> list[tuple[Tensor, Tensor]]:
    """The same tokens for everybody: each predicts the next."""
    generator = torch.Generator().manual_seed(0)
    drawn = (torch.randint(vocabulary, (rows, tokens + 1), generator=generator) for _ in range(number))
    return [(tokens_BN[:, :-1], tokens_BN[:, 1:]) for tokens_BN in drawn]


def products(model: nn.Module, rows: int, tokens: int) -> Iterator[float]:
    """Multiplications and additions of a step's matrix products: three times those of the forward pass."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            yield 3 * 2 * rows * tokens * module.weight.numel()
