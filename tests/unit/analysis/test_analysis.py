"""The audit tells good encodings from bad ones, and order-blindness is exact."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from pe_experiments.analysis.audit import ROUNDING, audit, audit_distances, order_blindness, rotated_channels
from pe_experiments.checking import small_shape
from pe_experiments.checking.compare import reference_of
from pe_experiments.checking.instances import build
from pe_experiments.configuration.experiment import Experiment
from pe_experiments.encodings import AttentionContext, PositionalEncoding
from pe_experiments.encodings.absolute import AbsoluteEncoding
from pe_experiments.encodings.learned import Learned
from pe_experiments.encodings.sinusoidal import Sinusoidal
from pe_experiments.encodings.teaching import BinaryCounter, RawIndex, ScaledIndex
from pe_experiments.models import Backbone
from pe_experiments.store.trained_model import TrainedModel
from pe_experiments.terminal.errors import UserError


class Periodic(AbsoluteEncoding):
    """Period 64: not unique."""

    def vectors(self, positions_BT: Tensor) -> Tensor:
        angle = positions_BT.double() * (2 * torch.pi / 64)
        return torch.stack([angle.sin(), angle.cos()], -1).repeat(1, 1, self.width // 2).float()


CRITERIA = ("unique", "bounded", "same distance", "same step", "no jumps")


def broken(encoding: AbsoluteEncoding) -> set[str]:
    """Criteria that do not hold."""
    found = list(audit(encoding))[: len(CRITERIA)]
    assert all("bad for" in f.problem or "bad past" in f.problem for f in found)
    assert all(f.name.startswith(name) for f, name in zip(found, CRITERIA, strict=True))
    return {name for f, name in zip(found, CRITERIA, strict=True) if f.holds is False}


@pytest.mark.parametrize(
    ("encoding", "breaks"),
    [
        (Sinusoidal, set()),
        (RawIndex, {"bounded"}),
        (ScaledIndex, {"same step"}),
        (BinaryCounter, {"same distance", "no jumps"}),
        (Periodic, {"unique"}),
        (Learned, {"same distance"}),
    ],
)
def test_criteria_tell_encodings_apart(encoding: type[AbsoluteEncoding], breaks: set[str]) -> None:
    torch.manual_seed(0)
    assert broken(encoding(small_shape(d_model=64, train_positions=1000))) == breaks


@pytest.mark.parametrize(
    ("name", "breaks"),
    [
        ("alibi", {"same range"}),
        ("rope", {"nearer keys", "same range"}),
        ("fire", {"a common shift"}),
        ("hard_alibi", {"60 distances"}),
        ("t5", {"60 distances"}),  # a table of zeros, before training
    ],
)
def test_what_distances_do_is_measured(name: str, breaks: set[str]) -> None:
    encoding = build(reference_of(name).build, small_shape(d_model=64, train_length=30))
    found = list(audit_distances(encoding, 60))
    missed = {finding.name for finding in found if finding.holds is False}
    assert all(finding.problem.startswith("bad ") for finding in found if finding.holds is False)
    assert {criterion for criterion in missed if not criterion.startswith(tuple(breaks))} <= NOT_ASKED[name]
    assert all(any(criterion.startswith(start) for criterion in missed) for start in breaks)


NOT_ASKED = {name: set[str]() for name in ("alibi", "rope", "hard_alibi", "t5")} | {
    "fire": {"nearer keys never score lower"}  # as its random network falls out
}


def test_rotated_channels_of_rope_are_the_cosine_of_the_angle() -> None:
    channels_CN = rotated_channels(build(reference_of("rope").build, small_shape()), 20)
    assert channels_CN is not None
    distance = torch.arange(20).double()
    for channel, frequency in enumerate([1.0, 0.1, 0.01, 0.001] * 2):
        expected = (distance * frequency).cos().float()
        torch.testing.assert_close(channels_CN[channel], expected, rtol=0, atol=1e-5)
    assert rotated_channels(build(reference_of("alibi").build, small_shape()), 20) is None


def test_linear_in_the_offset_exactly_but_not_when_fitted() -> None:
    findings = {finding.name: finding.holds for finding in audit(Sinusoidal(small_shape(d_model=32)))}
    assert findings["linear in the offset, exact map M_7"] is True
    assert findings["the same fitted map past it"] is False


@pytest.mark.parametrize(
    ("encoding", "blind"), [(PositionalEncoding, True), (Sinusoidal, False), (Learned, False)]
)
def test_dog_bites_man(encoding: type[PositionalEncoding], blind: bool) -> None:
    assert (max(order_blindness(encoding, small_shape(causal=False))) < ROUNDING) is blind


@pytest.mark.parametrize("model", ["decoder", "encoder"])
def test_attention_without_queries_is_equal(tiny: Callable[..., Experiment], model: str) -> None:
    """Every visible key gets the same weight; the model answers as before."""
    experiment = tiny("pe=none", f"model={model}")
    network = experiment.untrained_model()
    for layer in network.layers:
        nn.init.zeros_(layer.attention.qkv.weight)  # type: ignore[union-attr, arg-type]
        nn.init.zeros_(layer.attention.qkv.bias)  # type: ignore[union-attr, arg-type]
    before = network(torch.zeros(1, 5, dtype=torch.long))
    found = TrainedModel(experiment, network).attention_weights(torch.tensor([[3, 1, 4]]))
    tokens = experiment.format.tokens(3, 3)
    seen_TS = torch.ones(tokens, tokens)
    seen_TS = seen_TS.tril() if model == "decoder" else seen_TS
    expected_HTS = (seen_TS / seen_TS.sum(1, keepdim=True)).expand(experiment.shape.num_heads, -1, -1)
    assert len(found) == experiment.shape.num_layers
    for weights_HTS in found.values():
        torch.testing.assert_close(weights_HTS, expected_HTS)
    assert torch.equal(network(torch.zeros(1, 5, dtype=torch.long)), before)


@pytest.mark.parametrize("encoding", ["rope_nope", "stick_breaking"])
def test_attention_of_mixtures_and_of_own_weights_is_recorded(
    tiny: Callable[..., Experiment], encoding: str
) -> None:
    """In every layer, whichever encoding serves it."""
    experiment = tiny(f"pe={encoding}")
    trained = TrainedModel(experiment, experiment.untrained_model())
    found = trained.attention_weights(torch.tensor([[3, 1, 4]]))
    assert set(found) == {0, 1}
    assert all((weights > 0).any() for weights in found.values())


class Kernel(Backbone):
    """Attends in a way of its own."""

    def layers_of(self, x_BTD: Tensor, at: AttentionContext) -> Tensor:
        return x_BTD


def test_a_model_that_hides_its_attention_is_refused(tiny: Callable[..., Experiment]) -> None:
    experiment = tiny()
    model = Kernel(experiment.format.vocab_size, experiment.shape, PositionalEncoding)
    with pytest.raises(UserError, match="Kernel has no layer whose attention weights can be read"):
        TrainedModel(experiment, model).attention_weights(torch.tensor([[3, 1, 4]]))
