"""configs/pe/README.md is generated from the encodings, and the equalities it states are true."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from pe_experiments.checking.compare import reference_of
from pe_experiments.checking.instances import build, draw_inputs, perturbed
from pe_experiments.encodings import ModelShape, PositionalEncoding
from pe_experiments.encodings.alibi import alibi_slopes
from pe_experiments.models.attention_scores import attention_scores
from pe_experiments.terminal.files import CONFIG_DIR
from scripts.catalogue import encodings

SHAPE = ModelShape(32, 4, 2, True, 100, 100)


def test_the_cards_are_up_to_date() -> None:
    assert (CONFIG_DIR / "pe" / "README.md").read_text() == encodings(), "run python scripts/catalogue.py"


def encoding_of(choice: str, **arguments: Any) -> PositionalEncoding:
    return build(reference_of(choice, **arguments).build, SHAPE)


def constant_gates(encoding: Any) -> None:
    """Gates of exp(-m), m being ALiBi's slope: -m = ln sigmoid(b)."""
    encoding.gate.weight.zero_()
    encoding.gate.bias.copy_(-torch.expm1(alibi_slopes(SHAPE.num_heads)).log())


def open_gates(encoding: Any) -> None:
    encoding.gate.weight.zero_()
    encoding.gate.bias.fill_(math.inf)


def as_alibi(encoding: Any) -> None:
    """g = 1: omega compensates for softplus(0) = ln 2."""
    encoding.u_HK.zero_()
    encoding.omega_H.fill_(math.log(math.expm1(1 / math.log(2))))


@pytest.mark.parametrize(
    ("choice", "change", "equal"),
    [
        ("grape_m", None, "rope"),
        ("fox", constant_gates, "alibi"),
        ("grape_a", as_alibi, "alibi"),
        ("wall", open_gates, "none"),
        ("repo", lambda encoding: encoding.position.weight.zero_(), "none"),
        ("rope_hf", None, "rope"),
    ],
)
@torch.no_grad()
def test_equalities_on_the_cards(
    choice: str, change: Callable[[PositionalEncoding], None] | None, equal: str
) -> None:
    encoding = encoding_of(choice)
    expected = weights(encoding_of(equal))
    if change is not None:
        assert (weights(perturbed(encoding)) - expected).abs().max() > 0.01
        change(encoding)
    torch.testing.assert_close(weights(encoding), expected, rtol=0, atol=1e-6)


def weights(encoding: PositionalEncoding) -> torch.Tensor:
    """Attention weights of random content at consecutive positions."""
    inputs = replace(draw_inputs(SHAPE, 30, 30, seed=0), positions_BT=torch.arange(30)[None])
    scores = attention_scores(encoding, inputs)
    return scores.masked_fill(scores.isnan(), -math.inf).softmax(-1)
