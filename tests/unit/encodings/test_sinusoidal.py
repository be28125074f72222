"""Concatenated sinusoids and refused arguments; tests/oracles has the formula."""

from __future__ import annotations

import pytest
import torch

from pe_experiments.checking import small_shape
from pe_experiments.encodings.sinusoidal import Sinusoidal, sinusoid_vectors


def test_concatenation_fills_its_columns() -> None:
    encoding = Sinusoidal(small_shape(), combine="concat", width=9)
    assert encoding.position_width == 9
    joined = encoding.embed(torch.ones(2, 5, 23), torch.arange(5)[None])
    assert joined.shape == (2, 5, 32)
    assert (joined[..., :23] == 1).all()
    torch.testing.assert_close(joined[0, :, 23:], sinusoid_vectors(torch.arange(5), 9, 10_000.0).float())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"base": 1.0}, "base=1.0"),
        ({"combine": "concat", "width": 32}, "width=32"),
        ({"width": 4}, "width=4"),
    ],
)
def test_impossible_arguments_are_refused(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sinusoidal(small_shape(), **arguments)
