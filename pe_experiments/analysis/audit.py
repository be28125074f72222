"""The criteria of tutorials for a good encoding, measured on the vectors of any absolute encoding.

Shapes: P positions, W columns of the vectors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from pe_experiments.encodings.absolute import AbsoluteEncoding
from pe_experiments.encodings.sinusoidal import Sinusoidal

AUDITED = 1000  # positions over which uniqueness and bounds are measured
FITTED = 40  # positions the best linear map is fitted on; it is tested past them
OFFSET = 7  # tokens between the two positions of the linear criterion


@dataclass(frozen=True)
class Criterion:
    """A criterion, its measurement in words, whether it holds, and for whom it is bad if it does not.

    ``holds`` is None where any vectors would pass.
    """

    name: str
    measured: str
    holds: bool | None
    otherwise: str = ""


@torch.no_grad()
def vectors_of(encoding: AbsoluteEncoding, positions: int) -> Tensor:
    """The vectors [P, W] of ids 0 .. P-1 in float64."""
    return encoding.vectors(torch.arange(positions)[None])[0].double()


def pairwise_distances(vectors_PW: Tensor) -> Tensor:
    """Euclidean distances [P, P] between all pairs of vectors."""
    # By differences, not through the scalar product: that loses seven digits where vectors nearly coincide.
    return torch.cdist(vectors_PW, vectors_PW, compute_mode="donot_use_mm_for_euclid_dist")


def shift_matrix(width: int, base: float, offset: float) -> Tensor:
    """The matrix M_k [W, W] with PE(p + k) = M_k PE(p) for sinusoids: a rotation per pair of columns.

    Raises:
        ValueError: an odd width, whose last sine has no cosine to rotate with.
    """
    if width % 2:
        raise ValueError(f"width={width}: the exact map needs pairs of columns, an even width")
    angles = offset * base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    blocks = torch.stack(
        [torch.stack([angles.cos(), angles.sin()], -1), torch.stack([-angles.sin(), angles.cos()], -1)], -2
    )
    return torch.block_diag(*blocks)


def fitted_shift(vectors_PW: Tensor, offset: int, fitted: int) -> tuple[float, float]:
    """Errors of the best linear map from v(p) to v(p + offset), fitted on p < ``fitted``.

    Returns:
        The largest distance between mapped and true vector over p < ``fitted``, and over p >= ``fitted``.
    """
    here_PW, there_PW = vectors_PW[:-offset], vectors_PW[offset:]
    matrix_WW = torch.linalg.lstsq(here_PW[:fitted], there_PW[:fitted], driver="gelsd").solution
    errors_P = (here_PW @ matrix_WW - there_PW).norm(dim=-1)
    return float(errors_P[:fitted].max()), float(errors_P[fitted:].max())


def audit(encoding: AbsoluteEncoding) -> list[Criterion]:
    """All criteria for one encoding, in the order of tutorials."""
    vectors_PW = vectors_of(encoding, AUDITED)
    largest, norms_P = float(vectors_PW.abs().max()), vectors_PW.norm(dim=-1)
    rounding = 1e-5 * largest  # of float32 vectors
    apart_PP = pairwise_distances(vectors_PW)
    spread = max(float(d.max() - d.min()) for d in (apart_PP[:200, :200].diagonal(k) for k in range(1, 100)))
    margin = float(apart_PP.fill_diagonal_(torch.inf).min())
    first, second = divmod(int(apart_PP.argmin()), AUDITED)
    # An unbounded code (an index) grows between a sequence and one of twice its length.
    bound = 1.5 * float(vectors_of(encoding, AUDITED // 2).abs().max())
    short, long = (float(vectors_of(encoding, n)[:2].diff(dim=0).norm()) for n in (10, 100))
    steps_P = vectors_PW.diff(dim=0).norm(dim=-1)
    jump, ratio = int(steps_P.argmax()), float(steps_P.max() / steps_P.min().clamp(min=1e-12))
    return [
        Criterion(
            f"unique over {AUDITED:,} positions",
            f"closest pair {first} and {second}: {margin:.3g} apart",
            margin > rounding,
            "bad for every task: nothing tells these two positions apart",
        ),
        Criterion(
            "bounded",
            f"largest value {largest:.3g}; norm {float(norms_P.min()):.3g} to {float(norms_P.max()):.3g}",
            largest < bound,
            "bad past the training lengths: values larger than any in training",
        ),
        Criterion(
            "same distance for the same offset",
            f"spread up to {spread:.2g} over offsets 1 to 99",
            spread < max(100 * rounding, 1e-4),
            "bad for tasks about distances: each pair of positions is learned by itself; fine for others",
        ),
        Criterion(
            "same step at any length",
            f"from position 0 to 1: {short:.3g} among 10 tokens, {long:.3g} among 100",
            abs(short - long) <= rounding,
            "bad for tasks about neighbours: one token further means another step in a longer input",
        ),
        Criterion(
            "no jumps between neighbours",
            f"largest step ({jump} to {jump + 1}) is {ratio:.2f} times the smallest",
            ratio < 2,
            "bad for tasks about neighbours, which can look far apart; fine for telling positions apart",
        ),
        *_linear(encoding, vectors_PW),
    ]


def _linear(encoding: AbsoluteEncoding, vectors_PW: Tensor) -> Iterator[Criterion]:
    if isinstance(encoding, Sinusoidal) and encoding.width % 2 == 0:
        exact_WW = shift_matrix(encoding.width, encoding.base, OFFSET)
        error = float((vectors_PW[:-OFFSET] @ exact_WW.T - vectors_PW[OFFSET:]).norm(dim=-1).max())
        name = f"linear in the offset, exact map M_{OFFSET}"
        wrong = "bad for everybody: the sinusoids are not those of the formula"
        yield Criterion(name, f"residual {error:.1e}", error < 1e-4, wrong)
    below, past = fitted_shift(vectors_PW, OFFSET, FITTED)
    tolerance = 0.01 * float(vectors_PW.norm(dim=-1).mean())
    fits: bool | None = below < tolerance
    trivial = ""
    if encoding.width >= FITTED:
        fits, trivial = None, " (as any vectors would: more columns than positions)"
    name = f"best linear map, fitted below position {FITTED}: below it"
    unfit = "bad for tasks that look a fixed distance back, from one layer; more layers can do better"
    yield Criterion(name, f"residual {below:.2g}{trivial}", fits, unfit)
    name = "the same fitted map past it"
    forgot = "bad past the training lengths: what is learned on short inputs need not hold there"
    yield Criterion(name, f"residual {past:.2g}", past < tolerance, forgot)
