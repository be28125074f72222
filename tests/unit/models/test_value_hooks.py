"""Encodings that act on values: what attention reads, in every implementation and in mixtures."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from pe_experiments.checking.subject import draw_inputs, perturbed
from pe_experiments.encodings import AttentionContext, ModelShape, PositionalEncoding
from pe_experiments.encodings.alibi import Alibi
from pe_experiments.encodings.mixtures import ByHead, ByLayer, Composition
from pe_experiments.encodings.rope import Rope
from pe_experiments.encodings.rope_values import RopeValues
from pe_experiments.encodings.shaw import Shaw
from pe_experiments.models import Transformer, attention
from pe_experiments.models.attention_scores import attention_outputs
from pe_experiments.terminal.errors import NotApplicable

SHAPE = ModelShape(32, 4, 2, True, 12, 64)
WORDS = torch.randint(9, (3, 40), generator=torch.Generator().manual_seed(0))
VALUES = torch.randn(1, 4, 20, 8, generator=torch.Generator().manual_seed(1))
ShawValues = partial(Shaw, values=True)


class Doubled(PositionalEncoding):
    """Reads twice the values and halves what is read."""

    def values(self, v_BHSK: Tensor, at: AttentionContext) -> Tensor:
        return 2 * v_BHSK

    def outputs(self, o_BHTK: Tensor, at: AttentionContext) -> Tensor:
        return o_BHTK / 2


class Raised(PositionalEncoding):
    """Adds 1 to the values and takes it off what is read."""

    def values(self, v_BHSK: Tensor, at: AttentionContext) -> Tensor:
        return v_BHSK + 1

    def outputs(self, o_BHTK: Tensor, at: AttentionContext) -> Tensor:
        return o_BHTK - 1


def outputs(encoding: PositionalEncoding, layer: int = 0) -> Tensor:
    return attention_outputs(encoding, draw_inputs(SHAPE, 20, 20, seed=0), VALUES, layer)


def test_weights_are_read_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "BLOCK_LOGITS", 1)  # blocks of 16 queries
    eager, blocked = (
        Transformer(9, SHAPE, ShawValues, attention_implementation=name)  # type: ignore[arg-type]
        for name in ("eager", "blocked")
    )
    blocked.load_state_dict(eager.state_dict())
    torch.testing.assert_close(blocked(WORDS), eager(WORDS), rtol=0, atol=1e-5)


def test_the_fused_kernel_is_kept_unless_the_weights_are_read() -> None:
    fused = Transformer(9, SHAPE, RopeValues, attention_implementation="sdpa")
    assert not attention.needs_weights(fused.encoding(0))
    assert not attention.needs_weights(Shaw(SHAPE))
    refusal = "model.attention_implementation=sdpa computes no attention weights, which Shaw reads; take auto"
    for make in (ShawValues, partial(ByLayer, encodings=[Rope, ShawValues])):
        with pytest.raises(NotApplicable, match=refusal):
            Transformer(9, SHAPE, make, attention_implementation="sdpa")


def test_a_composition_undoes_the_last_change_of_values_first() -> None:
    plain = outputs(PositionalEncoding(SHAPE))
    composed = outputs(Composition(SHAPE, encodings=[Doubled, Raised]))
    torch.testing.assert_close(composed, plain, rtol=0, atol=1e-5)


def test_each_head_and_layer_of_a_mixture_has_its_own_values() -> None:
    mixed = ByHead(SHAPE, encodings=[RopeValues, Alibi], heads=[1, 3])
    torch.testing.assert_close(outputs(mixed)[:, :1], outputs(RopeValues(SHAPE))[:, :1])
    torch.testing.assert_close(outputs(mixed)[:, 1:], outputs(Alibi(SHAPE))[:, 1:])
    by_layer = ByLayer(SHAPE, encodings=[Rope, RopeValues])
    torch.testing.assert_close(outputs(by_layer, 0), outputs(Rope(SHAPE)))
    torch.testing.assert_close(outputs(by_layer, 1), outputs(RopeValues(SHAPE)))
    shaw = perturbed(ByLayer(SHAPE, encodings=[Rope, ShawValues]))
    assert not torch.allclose(outputs(shaw, 1), outputs(perturbed(ByLayer(SHAPE, encodings=[Rope, Shaw])), 1))
