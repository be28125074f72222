"""Draw the weights of a model on the CPU, from one named stream per parameter of the backbone."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import count
from typing import Literal

import torch
from torch import nn

from pe_experiments.data.randomness import named_seed
from pe_experiments.encodings import ModelShape, PositionalEncoding
from pe_experiments.models.backbone import Backbone
from pe_experiments.terminal.errors import one_of

Initialisation = Literal["gpt2", "pytorch"]


def seeded_model(
    build_model: Callable[..., Backbone],
    build_encoding: Callable[[ModelShape], PositionalEncoding],
    vocab_size: int,
    shape: ModelShape,
    seed: int,
) -> Backbone:
    """Build an untrained model; PyTorch's generator is seeded for the backbone and for each encoding."""
    index = count()

    def make_encoding(shape: ModelShape) -> PositionalEncoding:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(named_seed(seed, f"encoding {next(index)}"))
            return build_encoding(shape)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(named_seed(seed, "backbone"))
        return build_model(vocab_size, shape, make_encoding, seed)


def initialise_backbone(model: nn.Module, style: Initialisation, num_layers: int, seed: int) -> None:
    """Draw all weights of the model except the parameters of its encodings.

    Each parameter has its own stream, named by (seed, parameter), and does not depend on the others: the same
    seed gives the same backbone with every encoding.

    Styles:
        ``gpt2``     weights N(0, 0.02^2), divided by sqrt(2 num_layers) where they write to the residual
                     stream; biases 0 (Radford et al. 2019, section 2.3).
        ``pytorch``  embeddings N(0, 1), weights and biases U(-1/sqrt(fan in), 1/sqrt(fan in)), as in
                     `torch.nn`.
    """
    one_of(Initialisation, "initialisation", style)
    initialised: set[int] = set()
    for name, module in model.named_modules():
        if name.startswith("encodings") or not isinstance(module, nn.Linear | nn.Embedding | nn.Conv1d):
            continue
        for kind, parameter in module.named_parameters(recurse=False):
            if id(parameter) in initialised:
                continue  # a tied head shares the embedding's weights
            initialised.add(id(parameter))
            generator = torch.Generator().manual_seed(named_seed(seed, f"backbone {name}.{kind}"))
            with torch.no_grad():
                if style == "pytorch" and isinstance(module, nn.Embedding):
                    parameter.normal_(0.0, 1.0, generator=generator)
                elif style == "pytorch":
                    bound = 1 / math.sqrt(module.weight[0].numel())
                    parameter.uniform_(-bound, bound, generator=generator)
                elif kind == "bias":
                    parameter.zero_()
                else:
                    residual = name.endswith(("attention.output", "mlp_out"))
                    std = 0.02 / (math.sqrt(2 * num_layers) if residual else 1.0)
                    parameter.normal_(0.0, std, generator=generator)
