"""The effect of a scheme on attention over distance, measured through its hooks.

Shapes: H heads, C channels of a head, N distances 0 .. N-1 between a query and the keys before it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pe_experiments.analysis.audit import Criterion, pairwise_distances
from pe_experiments.checking.agreement import Inputs, attention_scores
from pe_experiments.encodings import AttentionContext, PositionalEncoding
from pe_experiments.encodings.base import MASKED, is_masked
from pe_experiments.models.attention import makes_weights

DRAWS = 16  # random queries averaged over
EXACT = 1e-5  # of the largest value


@dataclass(frozen=True)
class Response:
    """Attention over distance to a key that has the query's own content.

    Attributes:
        scores_HN: change of the logit by the scheme (the log weight, where it computes its own), mean over
            queries.
        channels_CN: product of one channel with itself after rotation, 1 where it is not rotated; None where
            no rotation depends on the distance.
    """

    scores_HN: Tensor
    channels_CN: Tensor | None


@torch.no_grad()
def response(scheme: PositionalEncoding, distances: int, offset: int = 0) -> Response:
    """Measure a scheme in its first layer.

    Args:
        scheme: any.
        distances: N; the query has id ``offset + N - 1``.
        offset: id of the farthest key.
    """
    shape = scheme.shape
    generator = torch.Generator().manual_seed(0)
    positions = torch.arange(distances)[None] + offset
    total = torch.zeros(shape.num_heads, distances, dtype=torch.float64)
    for _ in range(DRAWS):
        query = torch.randn(1, shape.num_heads, 1, shape.head_dim, generator=generator)
        alike = query.expand(-1, -1, distances, -1)
        x = torch.randn(1, distances, shape.d_model, generator=generator)
        scores_HN = attention_scores(scheme, Inputs(alike, alike, x, positions))[0, :, -1].double()
        if makes_weights(scheme.for_layer(0)):
            total += scores_HN.clamp(min=1e-12).log()
        else:
            total += scores_HN - query.double().square().sum(-1)[0] * shape.head_dim**-0.5
    mean_HN = total / DRAWS
    mean_HN[mean_HN.abs() < EXACT] = 0  # what is left is the rounding of the query's own product
    return Response(mean_HN.flip(-1), _channels(scheme, positions))


def _channels(scheme: PositionalEncoding, positions_BT: Tensor) -> Tensor | None:
    part, shape = scheme.for_layer(0), scheme.shape
    tokens = positions_BT.shape[1]
    visible = torch.ones(1, tokens, tokens, dtype=torch.bool).tril()
    at = AttentionContext(positions_BT, positions_BT, visible, None, torch.zeros(1, tokens, shape.d_model))
    rows = []
    for channel in range(shape.head_dim):
        unit = torch.zeros(1, shape.num_heads, tokens, shape.head_dim)
        unit[..., channel] = 1
        q, k = part.rotate(unit, unit, at)
        rows.append((k[0, 0] @ q[0, 0, -1]).flip(-1))
    channels_CN = torch.stack(rows)
    rotates = (channels_CN - channels_CN[:, :1]).abs().max() > 1e-6
    return channels_CN if rotates else None


@torch.no_grad()
def audit_distances(scheme: PositionalEncoding, distances: int) -> list[Criterion]:
    """Shift invariance, recency, uniqueness and range of the response."""
    here, moved = (response(scheme, distances, offset).scores_HN for offset in (0, 4095 - distances))
    far = response(scheme, 4 * distances).scores_HN
    nearer, farther = (float(scores[~is_masked(scores)].abs().max()) for scores in (here, far))
    masked = "; some keys are masked" if is_masked(here).any() else ""
    here, moved = (scores.masked_fill(is_masked(scores), MASKED) for scores in (here, moved))
    rise = float(here.diff(dim=-1).max())
    apart = float(pairwise_distances(here.T).fill_diagonal_(torch.inf).min())
    shift = float((moved - here).abs().max()) / max(nearer, 1e-9)
    return [
        Criterion("a common shift (to 4,095) changes nothing", f"{shift:.1e} of the largest", shift < EXACT),
        Criterion(
            "nearer keys never score lower",
            f"largest rise with distance {rise:.2g}",
            rise <= EXACT * max(1.0, nearer),
        ),
        Criterion(f"{distances} distances told apart", f"closest two {apart:.2g} apart", apart > 1e-4),
        Criterion(
            "same range at four times the distance",
            f"{nearer:.3g} and {farther:.3g}{masked}",
            farther <= 1.05 * nearer,
        ),
        Criterion("trainable parameters", f"{sum(p.numel() for p in scheme.parameters()):,}", None),
    ]
