"""Instances of encodings and random inputs for them, the same at every call."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

from pe_experiments.encodings import ModelShape
from pe_experiments.models.attention_scores import Inputs

LENGTH = 12  # of training
Module = TypeVar("Module", bound=nn.Module)


def small_shape(causal: bool = True, **changes: int) -> ModelShape:
    """A model to try an encoding in: 32 wide, 4 heads, 2 layers, trained on 12 tokens."""
    sizes = {"d_model": 32, "num_heads": 4, "num_layers": 2, "train_length": LENGTH}
    return ModelShape(causal=causal, **{"train_positions": LENGTH, **sizes, **changes})


def build(make: Callable[[ModelShape], Module], shape: ModelShape, seed: int = 0) -> Module:
    """An instance, the same at every call with the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # `torch.manual_seed` formats a traceback for each device
        return make(shape)


def trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that training changes, by name; a constant may be stored as a frozen one."""
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}


def perturbed(module: Module, by: float = 0.3) -> Module:
    """The module with noise in every trainable parameter: one that starts at 0 would have no effect."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in trainable(module).values():
            parameter.add_(by * torch.randn(parameter.shape, generator=generator))
    return module


def draw_content(
    shape: ModelShape, positions_BT: Tensor, seed: int = 5, key_heads: int | None = None
) -> Inputs:
    """Random queries, keys and hidden states; with ``key_heads`` each key serves a group of heads."""
    generator = torch.Generator().manual_seed(seed)
    rows, tokens = positions_BT.shape
    heads = (rows, shape.num_heads, tokens, shape.head_dim)
    q, k = (torch.randn(heads, generator=generator) for _ in range(2))
    if key_heads and shape.num_heads % key_heads == 0:
        group = shape.num_heads // key_heads
        k = k[:, ::group].repeat_interleave(group, dim=1)
    return Inputs(q, k, torch.randn(rows, tokens, shape.d_model, generator=generator), positions_BT)


def draw_inputs(shape: ModelShape, tokens: int, span: int, seed: int, key_heads: int | None = None) -> Inputs:
    """Random content at sorted distinct positions below ``span``, 0 among them."""
    positions = torch.randperm(span, generator=torch.Generator().manual_seed(seed))[:tokens].sort().values
    positions[0] = 0
    return draw_content(shape, positions[None], seed, key_heads)


def relative_difference(values: Tensor, expected: Tensor) -> float:
    """The largest difference as a share of the largest value; infinite where either is not finite."""
    if not (values.isfinite().all() and expected.isfinite().all()):
        return float("inf")
    values, expected = values.detach().double(), expected.detach().double()
    difference, largest = float((values - expected).abs().max()), float(expected.abs().max())
    if largest == 0:
        return 0.0 if difference == 0 else float("inf")
    return difference / largest
