"""Optimizers: their steps, their part in the identity of a run, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn, optim

from pe_experiments.configuration.choices import shipped
from pe_experiments.data.batches import TrainingStream
from pe_experiments.models import Backbone
from pe_experiments.run import run_experiment
from pe_experiments.terminal.errors import UserError
from pe_experiments.training.loop import batch_loss
from pe_experiments.training.optimizer import TrainingOptimizer, learning_rate_factor, split_parameters
from tests.conftest import Tiny

STEPS = ("training.clip_norm=0.5", "training.weight_decay=0.3", "training.steps=20")


class Slowed(optim.Optimizer):
    """A user's optimizer: gradient descent, scaled by the largest entry of each gradient."""

    def __init__(self, params: Any, lr: float, slower: float = 1.0):
        super().__init__(params, {"lr": lr, "slower": slower})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                largest = parameter.grad.abs().max().clamp(min=1e-9)
                parameter.data -= group["lr"] / group["slower"] * parameter.grad / largest


def reference(name: str, model: Backbone) -> list[optim.Optimizer]:
    """Return optimizers of PyTorch on the unflattened parameters. Only that of Adam decays weights."""
    decayed, exempt = split_parameters(model)
    settings = {key: value for key, value in shipped("optimizer")[name].items() if key != "_target_"}
    if name == "adam":
        groups = [{"params": decayed, "weight_decay": 0.3}, {"params": exempt}]
        return [optim.Adam(groups, **settings)]
    optimizer = getattr(optim, shipped("optimizer")[name]["_target_"].rpartition(".")[2])
    if name != "muon":
        return [optimizer([*decayed, *exempt], weight_decay=0.0, **settings)]
    matrices = [p for key, p in model.named_parameters() if key.startswith("layers") and p.ndim == 2]
    remaining = [p for p in model.parameters() if all(p is not matrix for matrix in matrices)]
    return [optimizer(matrices, weight_decay=0.0, **settings), optim.AdamW(remaining, weight_decay=0.0)]


@pytest.mark.slow
@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("name", shipped("optimizer"))
def test_steps_equal_those_of_pytorch(name: str, flat: bool, tiny: Tiny) -> None:
    experiment = tiny("pe=t5", f"optimizer={name}", *STEPS)
    config = experiment.config.training
    stream = TrainingStream(experiment.source, 8, "mixed")
    model, expected = experiment.untrained_model().double(), experiment.untrained_model().double()
    optimizer = TrainingOptimizer(model, experiment.components["optimizer"], config, flat)
    torch_optimizers = reference(name, expected)
    decayed, _ = split_parameters(expected)
    for step in range(20):
        rate = learning_rate_factor(step, config) * config.learning_rate
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        batch_loss(model, stream.batch(step)).backward()
        optimizer.clip_gradients(0.5)
        optimizer.step()
        expected.zero_grad()
        batch_loss(expected, stream.batch(step)).backward()
        nn.utils.clip_grad_norm_(expected.parameters(), 0.5)
        if name != "adam":
            for parameter in decayed:
                parameter.data *= 1 - rate * 0.3
        for torch_optimizer in torch_optimizers:
            for group in torch_optimizer.param_groups:
                group["lr"] = rate
            torch_optimizer.step()
    # Muon iterates in bfloat16. Adafactor normalises the gradient of the keys' bias, which is rounding error.
    tolerance = {"muon": 1e-2, "adafactor": 1e-3}.get(name, 1e-5)
    for key, parameter in expected.named_parameters():
        torch.testing.assert_close(model.get_parameter(key), parameter, rtol=tolerance, atol=tolerance / 100)


@pytest.mark.parametrize(
    "options",
    [
        ("optimizer=torch.optim.Rprop", "+optimizer.step_sizes=[0,1]"),  # has no YAML
        (f"optimizer={__name__}.Slowed", "+optimizer.slower=2.0"),
    ],
)
def test_other_optimizers_train(options: tuple[str, ...], tiny: Tiny) -> None:
    run = run_experiment(tiny(*options).config)
    assert run.status == "completed", run.result["reason"]


@pytest.mark.parametrize("name", ["LBFGS", "SparseAdam"])
def test_an_optimizer_that_needs_more_than_gradients_is_refused_before_training(
    name: str, tiny: Tiny, results: Path
) -> None:
    with pytest.raises(UserError, match=rf"optimizer._target_=torch.optim.{name}: .*; allowed: ") as refusal:
        run_experiment(tiny(f"optimizer=torch.optim.{name}").config)
    assert "\n" not in str(refusal.value)
    assert not list(results.glob("runs/*"))
