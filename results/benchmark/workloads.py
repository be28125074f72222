"""Define the workloads of the benchmark: training steps and whole trainings."""

import tempfile
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR

from pe_experiments.configuration.compose import config_from_python
from pe_experiments.configuration.experiment import Experiment
from pe_experiments.configuration.schema import Config, validated
from pe_experiments.models import Backbone
from pe_experiments.terminal.console import Observer
from pe_experiments.training import cpu
from pe_experiments.training.cpu import Route
from pe_experiments.training.loop import batch_loss, fit
from pe_experiments.training.optimizer import TrainingOptimizer, learning_rate_factor
from results.benchmark.timing import Step, seconds_per_step

Batches = list[tuple[Tensor, Tensor]]  # tokens and labels [B, T]


def experiment(**keys: object) -> Experiment:
    """Return the experiment that train.py would resolve from these overrides, on the CPU without a logger."""
    config = config_from_python({**keys, "trainer.accelerator": "cpu", "logger": "none"})
    return Experiment(validated(Config, config))


def random_batches(vocabulary: int, rows: int, tokens: int) -> Batches:
    """Return four batches of random tokens with the next tokens as labels, the same in every call."""
    generator = torch.Generator().manual_seed(0)
    batches = torch.randint(vocabulary, (4, rows, tokens + 1), generator=generator)
    return [(tokens_BN[:, :-1], tokens_BN[:, 1:]) for tokens_BN in batches]


def next_token_step(model: nn.Module, batches: Batches, route: Route) -> Step:
    """Return a training step with cross entropy of the next token, AdamW and gradient clipping."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, fused=True)
    index = count()

    def step() -> None:
        cpu.use_route(route)
        tokens_BT, labels_BT = batches[next(index) % len(batches)]
        loss = F.cross_entropy(model(tokens_BT).flatten(0, 1).float(), labels_BT.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def training_step(model: Backbone, run: Experiment, route: Route) -> Step:
    """Return a training step of a run, data included, without the Lightning loop."""
    training = run.config.training
    optimizer = TrainingOptimizer(model, run.components["optimizer"], training)
    schedule = LambdaLR(optimizer, lambda step: learning_rate_factor(step, training))
    batches = run.batches
    index = count()

    def step() -> None:
        cpu.use_route(route)
        optimizer.zero_grad()
        batch_loss(model, batches.batch(next(index))).backward()
        optimizer.clip_gradients(training.clip_norm)
        optimizer.step()
        schedule.step()

    return step


def whole_training(
    run: Experiment, route: Route, device: str = "cpu", after_first_step: Callable[[], object] = lambda: None
) -> float:
    """Return the seconds per step of a whole training in the harness, without the time of the first step."""
    model = run.untrained_model()
    cpu.use_route(route)
    end_times: list[float] = []  # of every step
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "last.ckpt"

        class Clock(Observer):
            def step(self, done: int) -> None:
                if not end_times:
                    after_first_step()
                end_times.append(time.perf_counter())

        fit(model, run, device, checkpoint, [Clock()])
        end_times.append(time.perf_counter())
    return (end_times[-1] - end_times[0]) / (run.config.training.steps - 1)


def bare_training(step: Step, run: Experiment) -> float:
    """Return the seconds per step over as many steps as the run has, without the first."""
    step()
    return seconds_per_step(step, run.config.training.steps - 1)
