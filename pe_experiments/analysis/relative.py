"""The effect of a scheme on attention over distance, measured through its hooks.

Shapes: H heads, C channels of a head, N distances 0 .. N-1 between a query and the keys before it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pe_experiments.analysis.audit import Criterion, pairwise_distances
from pe_experiments.encodings import AttentionContext, PositionalEncoding
from pe_experiments.encodings.base import MASKED, is_masked
from pe_experiments.models.attention import makes_weights
from pe_experiments.models.scores import Inputs, attention_scores

DRAWS = 16  # random queries averaged over
EXACT = 1e-5  # of the largest value


@torch.no_grad()
def scores_over_distance(scheme: PositionalEncoding, distances: int, offset: int = 0) -> Tensor:
    """Change by the scheme [H, N] of the logit of a key like the query, in the first layer.

    The mean over random queries; of a scheme that computes its own weights, their logarithm.

    Args:
        scheme: any.
        distances: N; the query has id ``offset + N - 1``.
        offset: id of the farthest key.
    """
    shape, own_weights = scheme.shape, makes_weights(scheme.for_layer(0))
    generator = torch.Generator().manual_seed(0)
    positions = torch.arange(distances)[None] + offset
    total = torch.zeros(shape.num_heads, distances, dtype=torch.float64)
    for _ in range(DRAWS):
        query = torch.randn(1, shape.num_heads, 1, shape.head_dim, generator=generator)
        alike = query.expand(-1, -1, distances, -1)
        x = torch.randn(1, distances, shape.d_model, generator=generator)
        scores_HN = attention_scores(scheme, Inputs(alike, alike, x, positions))[0, :, -1].double()
        content = query.double().square().sum(-1)[0] * shape.head_dim**-0.5
        total += scores_HN.clamp(min=1e-12).log() if own_weights else scores_HN - content
    mean_HN = total / DRAWS
    mean_HN[mean_HN.abs() < EXACT] = 0  # what is left is the rounding of the query's own product
    return mean_HN.flip(-1)


def causal_context(x_1SD: Tensor) -> AttentionContext:
    """Of one sequence of hidden states with ids 0 .. S-1, each of which sees itself and those before it."""
    positions_1S = torch.arange(x_1SD.shape[1])[None]
    visible_1SS = torch.ones(1, x_1SD.shape[1], x_1SD.shape[1], dtype=torch.bool).tril()
    return AttentionContext(positions_1S, positions_1S, visible_1SS, None, x_1SD)


@torch.no_grad()
def rotated_channels(scheme: PositionalEncoding, distances: int) -> Tensor | None:
    """Product [C, N] of one channel with itself after rotation in the first layer, 1 where it is not rotated.

    None where no rotation depends on the distance.
    """
    shape = scheme.shape
    at = causal_context(torch.zeros(1, distances, shape.d_model))
    units = torch.eye(shape.head_dim)[:, None, None].expand(-1, shape.num_heads, distances, -1)
    q, k = scheme.for_layer(0).rotate(units, units, at)
    channels_CN = (k[:, 0] @ q[:, 0, -1, :, None])[..., 0].flip(-1)
    rotates = (channels_CN - channels_CN[:, :1]).abs().max() > 1e-6
    return channels_CN if rotates else None


@torch.no_grad()
def audit_distances(scheme: PositionalEncoding, distances: int) -> list[Criterion]:
    """Shift invariance, recency, uniqueness and range of the response."""
    here, moved = (scores_over_distance(scheme, distances, offset) for offset in (0, 4095 - distances))
    far = scores_over_distance(scheme, 4 * distances)
    nearer, farther = (float(scores[~is_masked(scores)].abs().max()) for scores in (here, far))
    masked = "; some keys are masked" if is_masked(here).any() else ""
    here, moved = (scores.masked_fill(is_masked(scores), MASKED) for scores in (here, moved))
    shift = float((moved - here).abs().max()) / max(nearer, 1e-9)
    rise = float(here.diff(dim=-1).max())
    apart = float(pairwise_distances(here.T).fill_diagonal_(torch.inf).min())
    recent, same_range = rise <= EXACT * max(1.0, nearer), farther <= 1.05 * nearer
    return [
        Criterion(
            "a common shift (to 4,095) changes nothing",
            f"{shift:.1e} of the largest",
            shift < EXACT,
            "bad past the training lengths: a distance means something else further on",
        ),
        Criterion(
            "nearer keys never score lower",
            f"largest rise with distance {rise:.2g}",
            recent,
            "bad for tasks about what is near; fine for copying, which looks far back",
        ),
        Criterion(
            f"{distances} distances told apart",
            f"closest two {apart:.2g} apart",
            apart > 1e-4,
            "bad for tasks about exact distances; fine where far keys may look alike",
        ),
        Criterion(
            "same range at four times the distance",
            f"{nearer:.3g} and {farther:.3g}{masked}",
            same_range,
            "bad past the training lengths where far keys must count: values never seen in training",
        ),
    ]
