"""The Transformer: what it can see, what it gives to encodings, and its initial weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from pe_experiments.checking import small_shape
from pe_experiments.configuration.experiment import Experiment
from pe_experiments.encodings import AttentionContext, ModelShape, PositionalEncoding
from pe_experiments.encodings.learned import Learned
from pe_experiments.encodings.rope import Rope
from pe_experiments.encodings.sinusoidal import Sinusoidal
from pe_experiments.models import Transformer, attention
from pe_experiments.models.attention import Attention

WORDS = torch.randint(9, (3, 10), generator=torch.Generator().manual_seed(0))


def transformer(
    causal: bool, encoding: type[PositionalEncoding] = PositionalEncoding, layers: int = 2
) -> Transformer:
    shape = small_shape(causal, num_layers=layers)
    return Transformer(9, shape, encoding, initialisation="pytorch").double()


class PerLayer(PositionalEncoding):
    """Records the context that each layer's instance gets."""

    per_layer = True

    def __init__(self, shape: ModelShape):
        super().__init__(shape)
        self.strength = torch.nn.Parameter(torch.tensor(0.1))
        self.layers: list[int] = []

    def bias(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor:
        assert at.x_BSD is not None
        assert at.x_BSD.shape == (3, 10, 32)
        self.layers.append(at.layer)
        steps = at.once(distance)
        assert steps is at.once(distance)
        return self.strength * steps[:, None]


def distance(at: AttentionContext) -> Tensor:
    return (at.k_positions_BS[:, None] - at.q_positions_BT[..., None]).double()


def test_per_layer_encodings_get_an_instance_per_layer_and_their_context() -> None:
    model = transformer(True, PerLayer, layers=3)
    model(WORDS)
    assert [encoding.layers for encoding in model.encodings] == [[0], [1], [2]]  # type: ignore[union-attr]


@pytest.mark.parametrize("style", ["gpt2", "pytorch"])
def test_initial_backbone_weights_do_not_depend_on_the_encoding(style: str) -> None:
    def backbone(encoding: type[PositionalEncoding], seed: int = 3) -> dict[str, Tensor]:
        model = Transformer(9, small_shape(), encoding, initialisation=style, seed=seed)  # type: ignore[arg-type]
        return {name: p for name, p in model.named_parameters() if not name.startswith("encodings")}

    reference = backbone(PositionalEncoding)
    for encoding in (Sinusoidal, Learned):
        for name, parameter in backbone(encoding).items():
            assert torch.equal(parameter, reference[name]), name
    assert not torch.equal(backbone(Learned, seed=4)["embedding.weight"], reference["embedding.weight"])


def test_gpt2_initialisation_has_the_published_standard_deviations() -> None:
    shape = small_shape(d_model=128, num_layers=4)
    model = Transformer(500, shape, PositionalEncoding, initialisation="gpt2", output_head="tied")
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    assert float(weights["embedding.weight"].std()) == pytest.approx(0.02, rel=0.02)
    assert float(weights["layers.0.mlp_out.weight"].std()) == pytest.approx(0.02 / 8**0.5, rel=0.02)
    assert float(weights["layers.0.attention.qkv.bias"].abs().max()) == 0
    assert model.head.weight is model.embedding.weight


def test_concatenation_narrows_only_the_token_embedding() -> None:
    model = Transformer(9, small_shape(), lambda shape: Sinusoidal(shape, combine="concat"))
    assert model.embedding.weight.shape == (9, 16)
    assert model(WORDS).shape == (3, 10, 9)
    with pytest.raises(ValueError, match="output_head=tied"):
        Transformer(9, small_shape(), lambda shape: Sinusoidal(shape, combine="concat"), output_head="tied")


@pytest.mark.parametrize("implementation", ["eager", "sdpa", "blocked"])
def test_the_output_of_a_layer_is_the_values_mixed_by_its_weights(implementation: str) -> None:
    shape = ModelShape(32, 4, 2, True, 12, 12)
    layer = Attention(shape, implementation)
    encoding = Rope(shape)
    x_BTD = torch.randn(2, 12, 32, generator=torch.Generator().manual_seed(0))
    ids = torch.arange(12)[None]
    at = AttentionContext(ids, ids, torch.ones(1, 12, 12, dtype=torch.bool).tril(), None, x_BTD)
    values_BHTK = layer.qkv(x_BTD)[..., 64:].unflatten(-1, (4, 8)).transpose(1, 2)
    mixed_BHTK = layer.weights(x_BTD, encoding, at) @ values_BHTK
    expected = layer.output(mixed_BHTK.transpose(1, 2).flatten(-2))
    torch.testing.assert_close(layer(x_BTD, encoding, at), expected)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", ["rope", "alibi", "t5", "fox", "stick_breaking", "selective_rope"])
def test_long_rows_are_computed_in_blocks_with_the_same_result(
    name: str, batch: int, tiny: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Encodings: no bias, a fixed one, a trained one, one of content, own weights, whole rows."""
    model = tiny(f"pe={name}", "model.sinks=" + str(name != "stick_breaking")).untrained_model().eval()
    words = torch.randint(9, (batch, attention.LONG + 3), generator=torch.Generator().manual_seed(0))
    lengths = torch.tensor([words.shape[1] - 5 * row for row in range(batch)])
    called: list[str] = []
    monkeypatch.setattr(attention, "BLOCK_LOGITS", 100 * words.numel() * 4)  # 100 queries, or more
    for function in (attention.blocked, attention.eager):
        monkeypatch.setattr(attention, function.__name__, _recorded(function, called))
    with torch.no_grad():
        in_blocks = model.hidden(words, None, lengths)
        assert set(called) == {"blocked"}
        monkeypatch.setattr(attention, "LONG", words.shape[1] + 1)
        monkeypatch.setattr(attention, "FUSED", words.shape[1] + 1)
        at_once = model.hidden(words, None, lengths)
    assert set(called) == {"blocked", "eager"}
    for row, length in enumerate(lengths):
        torch.testing.assert_close(in_blocks[row, :length], at_once[row, :length], atol=2e-5, rtol=0)


def _recorded(function: Callable[..., Tensor], called: list[str]) -> Callable[..., Tensor]:
    def recorded(*arguments: Any) -> Tensor:
        called.append(function.__name__)
        return function(*arguments)

    return recorded
