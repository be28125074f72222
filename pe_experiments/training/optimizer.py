"""AdamW on parameters that lie end to end in memory: few kernels measure, clip and update them all."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pe_experiments.configuration.schema import TrainingConfig, warmup_steps
from pe_experiments.models import Backbone


class FlatAdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019, arXiv:1711.05101), clipping and schedule.

    The parameters of the model, on the device it is trained on, become views of one tensor.
    """

    def __init__(self, model: Backbone, config: TrainingConfig):
        self.config = config
        decayed, exempt = split_parameters(model)
        self.parameters = [*decayed, *exempt]
        sizes = [one.numel() for one in self.parameters]
        self.whole = nn.Parameter(torch.cat([one.detach().flatten() for one in self.parameters]))
        self.decayed = self.whole.detach()[: sum(sizes[: len(decayed)])]
        self.whole.grad = torch.zeros_like(self.whole)
        self.gradients = self._parts(self.whole.grad, sizes)
        for one, part in zip(self.parameters, self._parts(self.whole.detach(), sizes), strict=True):
            one.data = part
        self.optimizer = torch.optim.AdamW([self.whole], weight_decay=0.0, fused=True)

    def _parts(self, whole: Tensor, sizes: Sequence[int]) -> list[Tensor]:
        pairs = zip(whole.split(sizes), self.parameters, strict=True)
        return [part.view_as(parameter) for part, parameter in pairs]

    def step(self, loss: Tensor, step: int) -> Tensor:
        """One step (from 0) down the gradient of a loss; returns the gradient's norm before clipping."""
        found = torch.autograd.grad(loss, self.parameters, allow_unused=True)
        parts = [
            (torch.zeros_like(one) if part is None else part).reshape(-1)
            for one, part in zip(self.parameters, found, strict=True)
        ]
        assert self.whole.grad is not None
        torch.cat(parts, out=self.whole.grad)
        norm = torch.linalg.vector_norm(self.whole.grad)
        if self.config.clip_norm is not None:
            self.whole.grad.mul_((self.config.clip_norm / (norm + 1e-6)).clamp(max=1.0))
        rate = learning_rate_factor(step, self.config) * self.config.learning_rate
        self.decayed.mul_(1 - rate * self.config.weight_decay)
        self.optimizer.param_groups[0]["lr"] = rate
        self.optimizer.step()
        return norm


def split_parameters(model: Backbone) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Parameters with weight decay, and those without: norms, biases and everything of the encoding.

    AdamW would decay rows of a position table that no batch has touched towards zero.
    """
    decayed: list[nn.Parameter] = []
    exempt: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            (exempt if parameter.ndim < 2 or name.startswith("encodings") else decayed).append(parameter)
    return decayed, exempt


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
