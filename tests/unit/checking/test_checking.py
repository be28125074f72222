"""Test that the checker finds and names known mistakes, in every stage."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from pe_experiments.checking import CHECKS, Subject, small_shape
from pe_experiments.checking.comparison import EncodingComparison, common_forms
from pe_experiments.checking.explanations import Verdict, known_mistake
from pe_experiments.checking.known_mistakes import (
    GENERIC,
    NO_EFFECT,
    REPORTED,
    Change,
)
from pe_experiments.checking.subject import SizedComponent, reference_of
from pe_experiments.checking.wrapping import by_offset, from_start, pairs
from pe_experiments.encodings import AttentionContext, PositionalEncoding
from pe_experiments.encodings.alibi import Alibi, alibi_slopes
from pe_experiments.encodings.learned import Learned
from pe_experiments.encodings.rope import Rope
from pe_experiments.encodings.sinusoidal import Sinusoidal

INDICES = "position ids are ignored, indices in memory read"
REPORTED_MISTAKES = [(choice, name) for choice, mistakes in REPORTED.items() for name in mistakes]


def comparison_with(reference: SizedComponent, change: Change) -> EncodingComparison:
    forms = common_forms(reference, [True, False])
    right = EncodingComparison(reference.build, reference, forms, named=True)
    return replace(right, candidate=right.changed(change).make_reference)


@pytest.mark.slow
@pytest.mark.parametrize(("choice", "name"), REPORTED_MISTAKES)
def test_every_reported_mistake_is_caught_and_named(choice: str, name: str) -> None:
    change = REPORTED[choice][name]
    comparison = comparison_with(reference_of(choice), change)
    assert comparison.first_difference is not None
    explanation = known_mistake(comparison)
    assert explanation is not None
    assert name in explanation.text
    assert (explanation.verdict is Verdict.RIGHT) == change.convention


GENERIC_MISTAKES = [
    *product(("rope", "sinusoidal"), ("positions are doubled", "positions in bfloat16", NO_EFFECT)),
    *product(["rope"], ("the sign of the keys' positions", INDICES)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("choice", "name"), GENERIC_MISTAKES)
def test_a_generic_mistake_is_named(choice: str, name: str) -> None:
    explanation = known_mistake(comparison_with(reference_of(choice), GENERIC[name]))
    assert explanation is not None
    assert name in explanation.text


class DistancesInMemory(PositionalEncoding):
    """Its distances are those of indices in memory, whatever the ids."""

    def bias(self, q: Tensor, k: Tensor, at: AttentionContext) -> Tensor:
        queries = torch.arange(q.shape[2])[:, None] + at.first_query
        return -0.1 * (queries - torch.arange(k.shape[2])).abs().float()


class ClampedChunks(Rope):
    """Chunks of 8,192 tokens as in Llama 4, with ids that end at 131,071."""

    def rotate(self, q: Tensor, k: Tensor, at: AttentionContext) -> tuple[Tensor, Tensor]:
        last = 131_071
        ids = {"q_positions_BT": at.q_positions_BT, "k_positions_BS": at.k_positions_BS}
        return super().rotate(q, k, replace(at, **{name: x.clamp(max=last) for name, x in ids.items()}))

    def bias(self, q: Tensor, k: Tensor, at: AttentionContext) -> Tensor:
        hidden = (at.q_positions_BT // 8192)[:, :, None] != (at.k_positions_BS // 8192)[:, None]
        return torch.zeros(hidden[:, None].shape).masked_fill(hidden[:, None], -1e9)


class TokensSoFar(PositionalEncoding):
    """It divides queries by the number of tokens so far and keeps nothing."""

    def rotate(self, q: Tensor, k: Tensor, at: AttentionContext) -> tuple[Tensor, Tensor]:
        return q / k.shape[2], k


class RoundedByAutocast(PositionalEncoding):
    """Its vectors are a product of matrices, which autocast rounds."""

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        angles = positions[..., None].double() * torch.logspace(0, -3, x.shape[-1]).double()
        return x + torch.nn.functional.linear(angles.sin().float(), torch.eye(x.shape[-1]))


class WithDropout(Sinusoidal):
    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        noise = torch.linspace(0.5, 1.5, x.shape[-1])  # the same in every call
        vectors = super().embed(torch.zeros_like(x), positions)
        return x + vectors * (noise if self.training else 1)


class UntrainedPadding(Learned):
    """Its first vector is not trained, as with ``padding_idx``."""

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        vectors = super().embed(torch.zeros_like(x), positions)
        return x + torch.where(positions[..., None] == 0, vectors.detach(), vectors)


class SeedsItself(Rope):
    def rotate(self, q: Tensor, k: Tensor, at: AttentionContext) -> tuple[Tensor, Tensor]:
        torch.manual_seed(0)
        return super().rotate(q, k, at)


class SlopesCachedByLength(Alibi):
    """A cache of the class that has no key for the number of heads."""

    cache: ClassVar[dict[int, Tensor]] = {}

    def bias(self, q: Tensor, k: Tensor, at: AttentionContext) -> Tensor:
        heads = q.shape[1]
        slopes = self.cache.setdefault(k.shape[2], alibi_slopes(heads))[:heads, None, None]
        return -(slopes * at.relative_positions_BTS.abs()[:, None]).float()


@pytest.mark.parametrize(
    ("cls", "name", "causal"),
    [
        (DistancesInMemory, "order", False),
        (RoundedByAutocast, "autocast", True),
        (WithDropout, "modes", True),
        (UntrainedPadding, "vectors", True),
        (SeedsItself, "repeatable", True),
        (SlopesCachedByLength, "instances", True),
    ],
)
def test_a_mistake_that_only_one_check_finds(cls: type[PositionalEncoding], name: str, causal: bool) -> None:
    subject = Subject(cls, causal=causal)
    assert [check.name for check in CHECKS.values() if check(subject).holds is False] == [name]


def test_modules_without_position_ids_are_evaluated_at_any_ids() -> None:
    ids_BT = torch.tensor([[0, 3, 4, 9], [5, 5, 6, 2]])
    shape = small_shape()
    rope = Rope(shape)
    alibi = Alibi(shape)
    x_BHTK = torch.randn(2, 4, 4, shape.head_dim)

    def at(ids_BT: Tensor) -> AttentionContext:
        return AttentionContext(ids_BT, ids_BT, torch.ones(1, 1, 1, dtype=torch.bool))

    def rotate_range(x: Tensor, offset: int = 0) -> Tensor:
        return rope.rotate(x, x, at(torch.arange(offset, offset + x.shape[2])[None]))[0]

    expected = rope.rotate(x_BHTK, x_BHTK, at(ids_BT))[0]
    torch.testing.assert_close(by_offset(rotate_range, x_BHTK, ids_BT), expected)
    torch.testing.assert_close(from_start(rotate_range, x_BHTK, ids_BT), expected)
    bias = pairs(lambda n: alibi.bias(x_BHTK, x_BHTK, at(torch.arange(n)[None]))[0], at(ids_BT))
    torch.testing.assert_close(bias, alibi.bias(x_BHTK, x_BHTK, at(ids_BT)))


@pytest.mark.parametrize(
    ("cls", "name", "holds"), [(ClampedChunks, "far", False), (TokensSoFar, "instances", True)]
)
def test_a_check_is_not_misled(cls: type[PositionalEncoding], name: str, holds: bool) -> None:
    assert CHECKS[name](Subject(cls)).holds is holds
