"""How the backbone's weights are drawn: one named stream per parameter, on the CPU."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import nn

from pe_experiments.randomness import named_seed

if TYPE_CHECKING:
    from pe_experiments.models.transformer import Transformer

Initialisation = Literal["gpt2", "pytorch"]


def initialise_backbone(model: Transformer, style: Initialisation, seed: int) -> None:
    """Draw every weight of the model except those of its encodings.

    Each parameter has its own stream, named by (seed, parameter), so it does not depend on the other
    parameters: the same seed gives the same backbone under every encoding.

    Styles:
        ``gpt2``     weights N(0, 0.02^2), those that write to the residual stream divided by sqrt(2 layers),
        biases 0
                     (Radford et al. 2019, section 2.3).
        ``pytorch``  embeddings N(0, 1), weights and biases U(-1/sqrt(fan in), 1/sqrt(fan in)), as `torch.nn`
        does.

    Raises:
        ValueError: an unknown style.
    """
    if style not in get_args(Initialisation):
        raise ValueError(f"initialisation={style!r} is not one of {', '.join(get_args(Initialisation))}")
    for name, module in model.named_modules():
        if name.startswith("encodings") or not isinstance(module, nn.Linear | nn.Embedding):
            continue
        draw = _gpt2 if style == "gpt2" else _pytorch
        residual = name.endswith(("attention.output", "mlp_out"))
        for kind, parameter in module.named_parameters(recurse=False):
            if name == "head" and parameter is model.embedding.weight:
                continue  # tied: drawn once, as the embedding
            generator = torch.Generator().manual_seed(named_seed(seed, f"backbone {name}.{kind}"))
            shrink = math.sqrt(2 * model.shape.num_layers) if residual else 1.0
            with torch.no_grad():
                draw(module, kind, parameter, shrink, generator)


def _gpt2(
    module: nn.Module, kind: str, parameter: nn.Parameter, shrink: float, generator: torch.Generator
) -> None:
    if kind == "bias":
        parameter.zero_()
    else:
        parameter.normal_(0.0, 0.02 / shrink, generator=generator)


def _pytorch(
    module: nn.Module, kind: str, parameter: nn.Parameter, shrink: float, generator: torch.Generator
) -> None:
    if isinstance(module, nn.Embedding):
        parameter.normal_(0.0, 1.0, generator=generator)
    else:
        assert isinstance(module, nn.Linear)
        bound = 1 / math.sqrt(module.in_features)
        parameter.uniform_(-bound, bound, generator=generator)
