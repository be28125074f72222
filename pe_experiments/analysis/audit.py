"""Measure properties of encodings without training: vectors, effect of distance, sensitivity to word order.

Shapes: P positions, W columns of the vectors, H heads, C channels of a head, and N distances 0 .. N-1 from a
query back to its keys. In `read_both`, W is the number of words.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from pe_experiments.encodings import ModelShape, PositionalEncoding
from pe_experiments.encodings.absolute import AbsoluteEncoding
from pe_experiments.encodings.base import MakeEncoding
from pe_experiments.encodings.sinusoidal import Sinusoidal
from pe_experiments.encodings.softmax import MASKED, is_masked
from pe_experiments.models import Transformer
from pe_experiments.models.attention import makes_weights
from pe_experiments.models.attention_scores import Inputs, attention_scores

AUDITED = 1000  # number of positions at which uniqueness and bounds are measured
FITTED = 40  # number of positions to which the linear map is fitted; it is tested at later positions
OFFSET = 7  # positions by which the linear map shifts
DRAWS = 16  # number of random queries that are averaged
EXACT = 1e-5  # tolerance relative to the largest value
FLOAT64_TOLERANCE = 1e-6  # relative difference below which float64 outputs count as equal
EXAMPLE_WORDS = ("dog", "bites", "man")
SENTENCES = (("dog", "bites", "man"), ("man", "bites", "dog"))


class Criterion(NamedTuple):
    """A property that tutorials ask of encodings, and its measurement."""

    name: str
    measured: str
    holds: bool | None  # None if any vectors would pass
    problem: str  # the consequence if the criterion does not hold


@torch.no_grad()
def vectors_of(encoding: AbsoluteEncoding, positions: int) -> Tensor:
    """Return the vectors [P, W] of position ids 0 .. P-1 in float64."""
    return encoding.vectors(torch.arange(positions)[None])[0].double()


def pairwise_distances(vectors_PW: Tensor) -> Tensor:
    # From differences, because computing them from dot products loses seven digits for nearly equal vectors.
    return torch.cdist(vectors_PW, vectors_PW, compute_mode="donot_use_mm_for_euclid_dist")


def shift_matrix(width: int, base: float, offset: float) -> Tensor:
    """Return the matrix M_k [W, W] with PE(p + k) = M_k PE(p) for sinusoidal vectors; k is ``offset``."""
    if width % 2:
        raise ValueError(f"width={width}: the exact map needs pairs of columns, an even width")
    angles = offset * base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    blocks = torch.stack([angles.cos(), angles.sin(), -angles.sin(), angles.cos()], -1).view(-1, 2, 2)
    return torch.block_diag(*blocks)


def fitted_shift(vectors_PW: Tensor, offset: int, fitted: int) -> tuple[float, float]:
    """Return the largest errors of a linear map from v(p) to v(p + offset).

    The map is fitted at the first ``fitted`` positions. The errors are those there and at later positions.
    """
    inputs_PW = vectors_PW[:-offset]
    targets_PW = vectors_PW[offset:]
    matrix_WW = torch.linalg.lstsq(inputs_PW[:fitted], targets_PW[:fitted], driver="gelsd").solution
    errors_P = (inputs_PW @ matrix_WW - targets_PW).norm(dim=-1)
    return float(errors_P[:fitted].max()), float(errors_P[fitted:].max())


def audit(encoding: AbsoluteEncoding) -> Iterator[Criterion]:
    """Yield the criteria for the vectors of an encoding, in the order in which tutorials name them."""
    vectors_PW = vectors_of(encoding, AUDITED)
    largest = float(vectors_PW.abs().max())
    norms_P = vectors_PW.norm(dim=-1)
    rounding = 1e-5 * largest  # error of float32 vectors
    distances_PP = pairwise_distances(vectors_PW)
    by_offset = [distances_PP[:200, :200].diagonal(offset) for offset in range(1, 100)]
    spread = max(float(distances.max() - distances.min()) for distances in by_offset)
    margin = float(distances_PP.fill_diagonal_(torch.inf).min())
    first, second = divmod(int(distances_PP.argmin()), AUDITED)
    measured = f"closest pair {first} and {second}: {margin:.3g} apart"
    problem = "bad for every task: nothing tells these two positions apart"
    yield Criterion(f"unique over {AUDITED:,} positions", measured, margin > rounding, problem)

    # An unbounded encoding (an index) grows when the length doubles.
    bound = 1.5 * float(vectors_of(encoding, AUDITED // 2).abs().max())
    measured = f"largest value {largest:.3g}; norm {float(norms_P.min()):.3g} to {float(norms_P.max()):.3g}"
    problem = "bad past the training lengths: values larger than any in training"
    yield Criterion("bounded", measured, largest < bound, problem)

    measured = f"spread up to {spread:.2g} over offsets 1 to 99"
    problem = "bad for tasks about distances: each pair of positions is learned by itself; fine for others"
    name = "same distance for the same offset"
    yield Criterion(name, measured, spread < max(100 * rounding, 1e-4), problem)

    step_of_10, step_of_100 = (float(vectors_of(encoding, n)[:2].diff(dim=0).norm()) for n in (10, 100))
    measured = f"from position 0 to 1: {step_of_10:.3g} among 10 tokens, {step_of_100:.3g} among 100"
    problem = "bad for tasks about neighbours: one token further means another step in a longer input"
    yield Criterion("same step at any length", measured, abs(step_of_10 - step_of_100) <= rounding, problem)

    steps_P = vectors_PW.diff(dim=0).norm(dim=-1)
    jump = int(steps_P.argmax())
    ratio = float(steps_P.max() / steps_P.min().clamp(min=1e-12))
    measured = f"largest step ({jump} to {jump + 1}) is {ratio:.2f} times the smallest"
    problem = "bad for tasks about neighbours, which can look far apart; fine for telling positions apart"
    yield Criterion("no jumps between neighbours", measured, ratio < 2, problem)
    yield from _linear(encoding, vectors_PW)


def _linear(encoding: AbsoluteEncoding, vectors_PW: Tensor) -> Iterator[Criterion]:
    """Yield the criteria on whether a linear map shifts the vectors by `OFFSET` positions."""
    if isinstance(encoding, Sinusoidal) and encoding.width % 2 == 0:
        exact_WW = shift_matrix(encoding.width, encoding.base, OFFSET)
        error = float((vectors_PW[:-OFFSET] @ exact_WW.T - vectors_PW[OFFSET:]).norm(dim=-1).max())
        name = f"linear in the offset, exact map M_{OFFSET}"
        problem = "bad for everybody: the sinusoids are not those of the formula"
        yield Criterion(name, f"residual {error:.1e}", error < 1e-4, problem)
    fitted_error, later_error = fitted_shift(vectors_PW, OFFSET, FITTED)
    tolerance = 0.01 * float(vectors_PW.norm(dim=-1).mean())
    is_trivial = encoding.width >= FITTED
    measured = f"residual {fitted_error:.2g}"
    if is_trivial:
        measured += " (as any vectors would: more columns than positions)"
    problem = "bad for tasks that look a fixed distance back, from one layer; more layers can do better"
    name = f"best linear map, fitted below position {FITTED}: below it"
    yield Criterion(name, measured, None if is_trivial else fitted_error < tolerance, problem)
    problem = "bad past the training lengths: what is learned on short inputs need not hold there"
    measured = f"residual {later_error:.2g}"
    yield Criterion("the same fitted map past it", measured, later_error < tolerance, problem)


@torch.no_grad()
def scores_over_distance(encoding: PositionalEncoding, distances: int, offset: int = 0) -> Tensor:
    """Return how the first layer changes the logit of a key that is equal to the query, [H, N].

    The result is a mean over random queries. For an encoding that computes attention weights it is the mean
    of their logarithms. The farthest of the N keys has position id ``offset``, the query ``offset + N - 1``.
    """
    shape = encoding.shape
    computes_weights = makes_weights(encoding.for_layer(0))
    generator = torch.Generator().manual_seed(0)
    positions = torch.arange(distances)[None] + offset
    total = torch.zeros(shape.num_heads, distances, dtype=torch.float64)
    for _ in range(DRAWS):
        query = torch.randn(1, shape.num_heads, 1, shape.head_dim, generator=generator)
        equal_keys = query.expand(-1, -1, distances, -1)
        x = torch.randn(1, distances, shape.d_model, generator=generator)
        scores = attention_scores(encoding, Inputs(equal_keys, equal_keys, x, positions))
        scores_HN = scores[0, :, -1].double()
        unchanged_logit = query.double().square().sum(-1)[0] * shape.head_dim**-0.5
        total += scores_HN.clamp(min=1e-12).log() if computes_weights else scores_HN - unchanged_logit
    mean_HN = total / DRAWS
    mean_HN[mean_HN.abs() < EXACT] = 0  # rounding error of the dot product of the query with itself
    return mean_HN.flip(-1)


@torch.no_grad()
def rotated_channels(encoding: PositionalEncoding, distances: int) -> Tensor | None:
    """Return the product [C, N] of each rotated channel with itself in the first layer; None if constant."""
    shape = encoding.shape
    units = torch.eye(shape.head_dim)[:, None, None].expand(-1, shape.num_heads, distances, -1)
    x = torch.zeros(1, distances, shape.d_model)
    at = Inputs(units, units, x, torch.arange(distances)[None]).context(causal=True)
    q, k = encoding.for_layer(0).rotate(units, units, at)
    channels_CN = (k[:, 0] @ q[:, 0, -1, :, None])[..., 0].flip(-1)
    rotates = (channels_CN - channels_CN[:, :1]).abs().max() > 1e-6
    return channels_CN if rotates else None


@torch.no_grad()
def audit_distances(encoding: PositionalEncoding, distances: int) -> Iterator[Criterion]:
    """Yield criteria of shift invariance, recency, uniqueness and range of the response."""
    scores_HN = scores_over_distance(encoding, distances)
    shifted_HN = scores_over_distance(encoding, distances, 4095 - distances)
    far_scores = scores_over_distance(encoding, 4 * distances)
    largest = float(scores_HN[~is_masked(scores_HN)].abs().max())
    largest_far = float(far_scores[~is_masked(far_scores)].abs().max())
    mask_note = "; some keys are masked" if is_masked(scores_HN).any() else ""
    scores_HN = scores_HN.masked_fill(is_masked(scores_HN), MASKED)
    shifted_HN = shifted_HN.masked_fill(is_masked(shifted_HN), MASKED)

    shift = float((shifted_HN - scores_HN).abs().max()) / max(largest, 1e-9)
    name = "a common shift (to 4,095) changes nothing"
    problem = "bad past the training lengths: a distance means something else further on"
    yield Criterion(name, f"{shift:.1e} of the largest", shift < EXACT, problem)

    rise = float(scores_HN.diff(dim=-1).max())
    measured = f"largest rise with distance {rise:.2g}"
    falls_with_distance = rise <= EXACT * max(1.0, largest)
    problem = "bad for favouring near keys whatever they say; fine where a fixed offset or a far key counts"
    yield Criterion("nearer keys never score lower", measured, falls_with_distance, problem)

    closest = float(pairwise_distances(scores_HN.T).fill_diagonal_(torch.inf).min())
    problem = "bad for tasks about exact distances; fine where far keys may look alike"
    measured = f"closest two {closest:.2g} apart"
    yield Criterion(f"{distances} distances told apart", measured, closest > 1e-4, problem)

    measured = f"{largest:.3g} and {largest_far:.3g}{mask_note}"
    problem = "bad past the training lengths where far keys must count: values never seen in training"
    yield Criterion("same range at four times the distance", measured, largest_far <= 1.05 * largest, problem)


def order_blindness(make_encoding: MakeEncoding, shape: ModelShape, seed: int = 0) -> tuple[float, float]:
    """Return how much the outputs of an untrained encoder differ between the two `SENTENCES`.

    Both are relative: the difference of the mean over words, and of the word "dog".
    """
    hidden_2WD = read_both(make_encoding, shape, seed)
    mean_2D = hidden_2WD.mean(dim=1)
    dog_2D = hidden_2WD[:, EXAMPLE_WORDS.index("dog")]
    mean_difference, dog_difference = (
        float(pair_2D.diff(dim=0).abs().max() / pair_2D.abs().max()) for pair_2D in (mean_2D, dog_2D)
    )
    return mean_difference, dog_difference


@torch.no_grad()
def read_both(make_encoding: MakeEncoding, shape: ModelShape, seed: int = 0) -> Tensor:
    """Return outputs [2, W, d_model] of an untrained transformer for both `SENTENCES`, as `EXAMPLE_WORDS`."""
    model = Transformer(
        len(EXAMPLE_WORDS), shape, make_encoding, initialisation="pytorch", seed=seed
    ).double()
    tokens_2T = torch.tensor([[EXAMPLE_WORDS.index(word) for word in sentence] for sentence in SENTENCES])
    hidden_2TD = model.hidden(tokens_2T)
    return hidden_2TD.take_along_dim(tokens_2T.argsort(dim=1)[..., None], dim=1)
