"""Build reproducible instances of encodings and random inputs."""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

from pe_experiments.encodings import ModelShape, PositionalEncoding
from pe_experiments.models.attention_scores import Inputs

LENGTH = 12  # training length
Module = TypeVar("Module", bound=nn.Module)


def small_shape(causal: bool = True, **changes: int) -> ModelShape:
    """Return the shape of a small model: 32 wide, 4 heads, 2 layers, trained on 12 tokens."""
    sizes = {"d_model": 32, "num_heads": 4, "num_layers": 2, "train_length": LENGTH}
    return ModelShape(causal=causal, **{"train_positions": LENGTH, **sizes, **changes})


def build(make: Callable[[ModelShape], Module], shape: ModelShape, seed: int = 0) -> Module:
    """Return an instance with the parameters that ``seed`` determines."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # `torch.manual_seed` formats a traceback for each device
        return make(shape)


def trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that require a gradient, by name; others are constants."""
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}


def perturbed(module: Module, by: float = 0.3) -> Module:
    """Add noise to every trainable parameter, since zeros would have no effect, and return the module."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in trainable(module).values():
            parameter.add_(by * torch.randn(parameter.shape, generator=generator))
    return module


def draw_content(
    shape: ModelShape, positions_BT: Tensor, seed: int = 5, key_heads: int | None = None
) -> Inputs:
    """Return random queries, keys and hidden states at the given positions.

    With ``key_heads``, the heads are divided into that number of groups that share their keys.
    """
    generator = torch.Generator().manual_seed(seed)
    rows, tokens = positions_BT.shape
    sizes = (rows, shape.num_heads, tokens, shape.head_dim)
    q = torch.randn(sizes, generator=generator)
    k = torch.randn(sizes, generator=generator)
    if key_heads and shape.num_heads % key_heads == 0:
        group_size = shape.num_heads // key_heads
        k = k[:, ::group_size].repeat_interleave(group_size, dim=1)
    return Inputs(q, k, torch.randn(rows, tokens, shape.d_model, generator=generator), positions_BT)


def draw_inputs(shape: ModelShape, tokens: int, span: int, seed: int, key_heads: int | None = None) -> Inputs:
    """Return random content at random distinct positions below ``span``, sorted and starting at 0."""
    positions = torch.randperm(span, generator=torch.Generator().manual_seed(seed))[:tokens].sort().values
    positions[0] = 0
    return draw_content(shape, positions[None], seed, key_heads)


def embed(encoding: PositionalEncoding, inputs: Inputs) -> Tensor:
    """Return the hidden states [B, T, D] from `embed_sequence`, with tokens from columns of ``x``."""
    tokens_BTD = inputs.x_BTD[..., encoding.position_width :]
    return encoding.embed_sequence(tokens_BTD, inputs.positions_BT, None)


def vectors_at(encoding: PositionalEncoding, ids_T: Tensor) -> Tensor:
    """Return the vectors [T, D] of these positions: the embeddings of tokens that are zero."""
    width = encoding.shape.d_model - encoding.position_width
    return encoding.embed_sequence(torch.zeros(1, len(ids_T), width), ids_T[None], None)[0]


def relative_difference(values: Tensor, expected: Tensor, largest: float | None = None) -> float:
    """Return the largest difference divided by ``largest``, by default the largest expected value.

    It is infinite if either tensor has a value that is not finite.
    """
    if not (values.isfinite().all() and expected.isfinite().all()):
        return float("inf")
    values, expected = values.detach().double(), expected.detach().double()
    difference = float((values - expected).abs().max())
    largest = float(expected.abs().max()) if largest is None else largest
    if largest == 0:
        return 0.0 if difference == 0 else float("inf")
    return difference / largest


def masked_difference(scores: Tensor, expected: Tensor, largest: float | None = None) -> float:
    """Return the `relative_difference` of the finite scores; infinite if shapes or masks differ."""
    if scores.shape != expected.shape or not torch.equal(scores.isinf(), expected.isinf()):
        return float("inf")
    return relative_difference(unmasked(scores), unmasked(expected), largest)


def unmasked(scores: Tensor) -> Tensor:
    """Return the scores with 0 in place of infinite values."""
    return scores.masked_fill(scores.isinf(), 0.0)
