"""The optimizer, on parameters that lie end to end in memory: few kernels measure, clip and update them."""

from __future__ import annotations

import inspect
import math

import torch
from torch import Tensor, nn, optim

from pe_experiments.configuration.parts import load_component
from pe_experiments.configuration.schema import TrainingConfig, warmup_steps
from pe_experiments.models import Backbone


class FlatOptimizer:
    """``training.optimizer`` with clipping and schedule; of Muon and AdamW, where it is Muon.

    The parameters of the model, on the device it is trained on, become views of one tensor. Weight decay is
    decoupled (Loshchilov and Hutter 2019, arXiv:1711.05101) unless an argument of Adam, say, is against it.
    """

    def __init__(self, model: Backbone, config: TrainingConfig):
        self.config = config
        decayed, exempt = split_parameters(model)
        self.parameters = [*decayed, *exempt]
        sizes = [one.numel() for one in self.parameters]
        self.whole = nn.Parameter(torch.cat([one.detach().flatten() for one in self.parameters]))
        self.decayed = self.whole.detach()[: sum(sizes[: len(decayed)])]
        self.whole.grad = torch.zeros_like(self.whole)
        for one, part in zip(self.parameters, self.whole.detach().split(sizes), strict=True):
            one.data = part.view_as(one)
        chosen = load_component("training.optimizer", config.optimizer)
        self.coupled = chosen.arguments.get("decoupled_weight_decay") is False
        hidden = hidden_matrices(model) if chosen.target == "torch.optim.Muon" else []
        by_matrix = ("torch.optim.Adafactor", "torch.optim.Muon")  # PyTorch's others take number by number
        alike = chosen.target.startswith("torch.optim.") and chosen.target not in by_matrix
        self.apart = [] if alike else list(zip(self.parameters, self.whole.grad.split(sizes), strict=True))
        said = {"lr": config.learning_rate, "weight_decay": 0.0, "fused": True}
        given = {name: said[name] for name in inspect.signature(chosen.cls).parameters if name in said}
        others = [one for one in self.parameters if all(one is not matrix for matrix in hidden)]
        rest = [optim.AdamW(others, weight_decay=0.0, fused=True)] if hidden else []
        mine = hidden or ([self.whole] if alike else self.parameters)
        self.optimizers = [chosen.build(mine, **given), *rest]

    def step(self, loss: Tensor, step: int) -> Tensor:
        """One step (from 0) down the gradient of a loss; returns the gradient's norm before clipping."""
        found = torch.autograd.grad(loss, self.parameters, materialize_grads=True)  # zeros where unused
        assert self.whole.grad is not None
        torch.cat([part.reshape(-1) for part in found], out=self.whole.grad)
        norm = torch.linalg.vector_norm(self.whole.grad)
        if self.config.clip_norm is not None:
            self.whole.grad.mul_((self.config.clip_norm / (norm + 1e-6)).clamp(max=1.0))
        rate = learning_rate_factor(step, self.config) * self.config.learning_rate
        if self.coupled:
            self.whole.grad[: len(self.decayed)].add_(self.decayed, alpha=self.config.weight_decay)
        else:
            self.decayed.mul_(1 - rate * self.config.weight_decay)
        for one, gradient in self.apart:
            one.grad = gradient.view_as(one)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
        return norm


def split_parameters(model: Backbone) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Parameters with weight decay, and those without: norms, biases and everything of the encoding.

    Decay would take rows of a position table that no batch has touched towards zero.
    """
    decayed: list[nn.Parameter] = []
    exempt: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            (exempt if parameter.ndim < 2 or name.startswith("encodings") else decayed).append(parameter)
    return decayed, exempt


def hidden_matrices(model: Backbone) -> list[nn.Parameter]:
    """The weights between embedding and head: those that Muon is for (Jordan et al. 2024)."""
    outer = {id(parameter) for part in (model.embedding, model.head) for parameter in part.parameters()}
    return [one for one in split_parameters(model)[0] if one.ndim == 2 and id(one) not in outer]


def learning_rate_factor(step: int, config: TrainingConfig) -> float:
    """Fraction of the learning rate at a step (from 0): linear warm-up, then the schedule."""
    warmup = warmup_steps(config)
    if step < warmup:
        return (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, config.steps - warmup))
    end = config.final_learning_rate
    if config.schedule == "constant":
        return 1.0
    if config.schedule == "linear":
        return 1 - (1 - end) * progress
    return end + (1 - end) * 0.5 * (1 + math.cos(math.pi * progress))
