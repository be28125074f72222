"""Golden and exact facts of sinusoids: what tutorials claim, and the mistakes their code makes."""

from __future__ import annotations

import math

import pytest
import torch

from pe_experiments.analysis.audit import fitted_shift, pairwise_distances, shift_matrix, vectors_of
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
def test_equals_the_formula_at_gaps_and_fractions(width: int, base: float) -> None:
    positions = [0, 1, 2, 17, 4095, 0.5, 1234.25]
    expected = torch.tensor([scalar_loop(p, width, base) for p in positions], dtype=torch.float64)
    got = sinusoid_vectors(torch.tensor(positions, dtype=torch.float64), width, base)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-11)


def test_worked_table_of_the_tutorials() -> None:
    rows = sinusoid_vectors(torch.arange(3), 4, 10_000.0)
    table = [[0, 1, 0, 1], [0.8415, 0.5403, 0.0100, 1.0000], [0.9093, -0.4161, 0.0200, 0.9998]]
    torch.testing.assert_close(rows, torch.tensor(table, dtype=torch.float64), rtol=0, atol=1e-4)


def test_angles_keep_their_precision_far_out() -> None:
    encoding = Sinusoidal(small_shape(d_model=64, num_heads=1))
    far = torch.tensor([[4095, 100_003]])
    expected = torch.tensor([scalar_loop(p, 64, 10_000.0) for p in far[0].tolist()])
    torch.testing.assert_close(encoding.vectors(far)[0], expected, rtol=0, atol=1e-7)


def test_frequency_falls_with_the_dimension() -> None:
    """The first dimensions oscillate fastest, whatever some texts say."""
    slopes = sinusoid_vectors(torch.tensor([1e-6], dtype=torch.float64), 64, 10_000.0)[0, 0::2] / 1e-6
    assert (slopes[:-1] > slopes[1:]).all()
    periods = 2 * math.pi / slopes
    assert periods[0] == pytest.approx(6.283, abs=0.001)
    assert periods[-1] == pytest.approx(47_117, rel=1e-3)


def test_nothing_is_learned_and_nothing_is_stored() -> None:
    encoding = Sinusoidal(small_shape())
    assert list(encoding.parameters()) == []
    assert encoding.state_dict() == {}


def test_norm_is_the_square_root_of_half_the_width() -> None:
    norms = vectors_of(Sinusoidal(small_shape(d_model=64)), 500).norm(dim=-1)
    torch.testing.assert_close(norms, torch.full_like(norms, math.sqrt(32)), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("width", "margin"), [(2, 6e-5), (4, 0.044), (8, 0.645), (16, 1.01), (64, 1.47)])
def test_uniqueness_margin_over_5000_positions_depends_on_the_width(width: int, margin: float) -> None:
    apart = pairwise_distances(sinusoid_vectors(torch.arange(5000), width, 10_000.0))
    assert float(apart.fill_diagonal_(torch.inf).min()) == pytest.approx(margin, rel=0.02)


def test_similarity_depends_on_distance_only_and_is_not_monotone() -> None:
    apart = pairwise_distances(sinusoid_vectors(torch.arange(200), 64, 10_000.0))
    for offset in (1, 7, 50):
        diagonal = apart.diagonal(offset)
        assert float(diagonal.max() - diagonal.min()) < 1e-9
    curve = torch.stack([apart.diagonal(k).mean() for k in range(1, 60)])
    assert (curve[1:] < curve[:-1]).any()


@pytest.mark.parametrize("offset", [1, 7, 100])
def test_a_shift_is_an_exact_linear_map(offset: int) -> None:
    rows = sinusoid_vectors(torch.arange(3000), 64, 10_000.0)
    matrix = shift_matrix(64, 10_000.0, offset)
    torch.testing.assert_close(rows[:-offset] @ matrix.T, rows[offset:], rtol=0, atol=1e-9)
    torch.testing.assert_close(matrix @ matrix.T, torch.eye(64, dtype=torch.float64), rtol=0, atol=1e-12)


def test_a_map_fitted_on_short_positions_fails_beyond_them() -> None:
    """The exact map exists, but forty positions do not determine it: no ground for extrapolation."""
    within, past = fitted_shift(sinusoid_vectors(torch.arange(1000), 64, 10_000.0), 7, 40)
    assert within < 1e-6
    assert past > 1.0


def test_batch_first_input_gets_a_different_vector_per_position() -> None:
    """The sequence-first sample code, fed [batch, length, d], adds one constant vector per sequence."""
    embedded = Sinusoidal(small_shape()).embed(torch.zeros(2, 5, 32), torch.arange(5)[None])
    assert float((embedded[0, 1:] - embedded[0, :-1]).norm(dim=-1).min()) > 0.5
    torch.testing.assert_close(embedded[0], embedded[1], rtol=0, atol=0)


def test_no_length_is_too_long() -> None:
    assert (
        Sinusoidal(small_shape()).embed(torch.zeros(1, 6000, 32), torch.arange(6000)[None]).isfinite().all()
    )


def test_concatenation_fills_the_columns_it_announces() -> None:
    encoding = Sinusoidal(small_shape(), combine="concat", width=9)
    assert encoding.position_width == 9
    joined = encoding.embed(torch.ones(2, 5, 23), torch.arange(5)[None])
    assert joined.shape == (2, 5, 32)
    assert (joined[..., :23] == 1).all()
    torch.testing.assert_close(joined[0, :, 23:], sinusoid_vectors(torch.arange(5), 9, 10_000.0).float())


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"base": 1.0}, "base=1.0"),
        ({"combine": "concat", "width": 32}, "width=32"),
        ({"width": 4}, "width=4"),
    ],
)
def test_impossible_arguments_are_named(arguments: dict, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Sinusoidal(small_shape(), **arguments)
