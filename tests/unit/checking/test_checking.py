"""Test that the checker finds and names every known mistake."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from torch import Tensor

from pe_experiments.checking import CHECKS, Subject, compare, small_shape
from pe_experiments.checking.components import reference_of
from pe_experiments.checking.identify import equal_encodings, known_mistakes
from pe_experiments.checking.known_mistakes import MISTAKES
from pe_experiments.checking.wrapping import by_offset, from_start, pairs
from pe_experiments.encodings import AttentionContext
from pe_experiments.encodings.alibi import Alibi, alibi_slopes
from pe_experiments.encodings.rope import Rope
from pe_experiments.encodings.rope_extension import RopeLinear

# A base that is not passed on shows at a base other than the default.
ARGUMENTS = {"rope: the base is not passed on (10,000 stays)": {"base": 500.0}}


@pytest.mark.slow
@pytest.mark.parametrize("name", MISTAKES)
def test_every_mistake_is_caught_and_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mistake = MISTAKES[name]
    component = reference_of(mistake.encoding, **ARGUMENTS.get(name, {}))
    wrong = mistake.make_in(component.build)
    forms = [True, False]

    def named_mistakes() -> list[str]:
        matches = known_mistakes(wrong, [component], forms)
        return [match.mistake.name for match in matches if match.mistake]

    with monkeypatch.context() as patch:  # quicker: most differ already in models of the usual sizes
        patch.setattr(compare, "difference_in_other_models", lambda *_: "")
        if equal_encodings(wrong, [component], forms) == [] and named_mistakes() == [name]:
            return
    assert equal_encodings(wrong, [component], forms) == []
    assert named_mistakes() == [name]


class DividedByTokensSoFar(Rope):
    """Linear interpolation by the number of tokens, which grows while decoding."""

    def frequencies_BR(self, at: AttentionContext) -> Tensor:
        return super().frequencies_BR(at) / (at.k_positions_BS.shape[1] / self.shape.train_length)


def test_dependence_on_the_number_of_tokens_so_far_is_found() -> None:
    assert CHECKS["decoding"](Subject(DividedByTokensSoFar)).holds is False
    assert CHECKS["decoding"](Subject(RopeLinear)).holds is True


class SeedsItself(Rope):
    def rotate(self, q: Tensor, k: Tensor, at: AttentionContext) -> tuple[Tensor, Tensor]:
        torch.manual_seed(0)
        return super().rotate(q, k, at)


def test_a_module_that_seeds_in_every_call_is_found() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        result = CHECKS["repeatable"](Subject(SeedsItself))
    assert result.measured == "a call draws from or seeds torch's global generator"


class SlopesCachedByLength(Alibi):
    """A cache of the class that has no key for the number of heads."""

    cache: ClassVar[dict[int, Tensor]] = {}

    def bias(self, q: Tensor, k: Tensor, at: AttentionContext) -> Tensor:
        heads = q.shape[1]
        slopes = self.cache.setdefault(k.shape[2], alibi_slopes(heads))[:heads, None, None]
        return -(slopes * at.relative_positions_BTS.abs()[:, None]).float()


def test_a_cache_that_instances_share_is_found() -> None:
    assert CHECKS["instances"](Subject(SlopesCachedByLength)).holds is False
    assert CHECKS["instances"](Subject(Alibi)).holds is True


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
