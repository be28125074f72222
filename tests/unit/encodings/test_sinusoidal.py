"""Sinusoids against their formula; results/tutorial_claims measures what tutorials claim of them."""

from __future__ import annotations

import math

import pytest
import torch

from pe_experiments.checking import small_shape
from pe_experiments.encodings.sinusoidal import Sinusoidal, sinusoid_vectors


def scalar_loop(position: float, width: int, base: float) -> list[float]:
    """The paper's formula, one number at a time."""
    row = []
    for column in range(width):
        angle = position / math.pow(base, 2 * (column // 2) / width)
        row.append(math.sin(angle) if column % 2 == 0 else math.cos(angle))
    return row


@pytest.mark.parametrize("width", [1, 2, 4, 7, 64, 129])
@pytest.mark.parametrize("base", [10_000.0, 500.0])
def test_vectors_equal_the_formula(width: int, base: float) -> None:
    positions = [0, 1, 2, 17, 4095, 0.5, 1234.25]
    expected = torch.tensor([scalar_loop(p, width, base) for p in positions], dtype=torch.float64)
    vectors = sinusoid_vectors(torch.tensor(positions, dtype=torch.float64), width, base)
    torch.testing.assert_close(vectors, expected, rtol=0, atol=1e-11)


def test_angles_are_precise_at_large_positions() -> None:
    encoding = Sinusoidal(small_shape(d_model=64, num_heads=1))
    far = torch.tensor([[4095, 100_003]])
    expected = torch.tensor([scalar_loop(p, 64, 10_000.0) for p in far[0].tolist()])
    torch.testing.assert_close(encoding.vectors(far)[0], expected, rtol=0, atol=1e-7)


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
