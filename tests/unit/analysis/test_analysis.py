"""Test the audit of encodings, order blindness, and recorded attention weights."""

import pytest
import torch
from torch import Tensor, nn

from pe_experiments.analysis.audit import audit, audit_distances
from pe_experiments.analysis.trained_model import TrainedModel
from pe_experiments.checking import small_shape
from pe_experiments.checking.subject import build, reference_of
from pe_experiments.encodings.absolute import AbsoluteEncoding
from pe_experiments.encodings.learned import Learned
from pe_experiments.encodings.sinusoidal import Sinusoidal
from pe_experiments.encodings.teaching import BinaryCounter, RawIndex, ScaledIndex
from tests.conftest import Tiny


class Periodic(AbsoluteEncoding):
    def vectors(self, positions_BT: Tensor) -> Tensor:
        angle = positions_BT.double() * (2 * torch.pi / 64)
        return torch.stack([angle.sin(), angle.cos()], -1).repeat(1, 1, self.width // 2).float()


CRITERIA = ("unique", "bounded", "same distance", "same step", "no jumps")


@pytest.mark.parametrize(
    ("encoding", "failed"),
    [
        (Sinusoidal, set()),
        (RawIndex, {"bounded"}),
        (ScaledIndex, {"same step"}),
        (BinaryCounter, {"same distance", "no jumps"}),
        (Periodic, {"unique"}),
        (Learned, {"same distance"}),
    ],
)
def test_each_bad_encoding_fails_its_criterion(encoding: type[AbsoluteEncoding], failed: set[str]) -> None:
    torch.manual_seed(0)
    audited = list(audit(encoding(small_shape(d_model=64, train_positions=1000))))[: len(CRITERIA)]
    for criterion, name in zip(audited, CRITERIA, strict=True):
        assert criterion.name.startswith(name)
        assert criterion.holds == (name not in failed), name
        assert criterion.problem.startswith("bad ")


SHIFT = "a common shift (to 4,095) changes nothing"
RECENCY = "nearer keys never score lower"
UNIQUE = "60 distances told apart"
RANGE = "same range at four times the distance"


@pytest.mark.parametrize(
    ("name", "failed"),
    [
        ("alibi", {RANGE}),
        ("rope", {RECENCY, RANGE}),
        ("fire", {SHIFT, RECENCY}),  # recency: as its random network turns out
        ("hard_alibi", {UNIQUE}),
        ("t5", {UNIQUE}),  # a table of zeros, before training
    ],
)
def test_each_encoding_of_distances_fails_its_criteria(name: str, failed: set[str]) -> None:
    torch.manual_seed(0)
    encoding = build(reference_of(name).build, small_shape(d_model=64, train_length=30))
    audited = list(audit_distances(encoding, 60))
    assert {criterion.name for criterion in audited if criterion.holds is False} == failed
    assert all(criterion.problem.startswith("bad ") for criterion in audited)


@pytest.mark.parametrize("model", ["decoder", "encoder"])
def test_without_queries_every_visible_key_gets_the_same_weight(tiny: Tiny, model: str) -> None:
    """Reading the weights does not change the model."""
    experiment = tiny("pe=none", f"model={model}")
    network = experiment.untrained_model()
    for layer in network.layers:
        nn.init.zeros_(layer.attention.qkv.weight)  # type: ignore[union-attr, arg-type]
        nn.init.zeros_(layer.attention.qkv.bias)  # type: ignore[union-attr, arg-type]
    logits = network(torch.zeros(1, 5, dtype=torch.long))
    weights_by_layer = TrainedModel(experiment, network).attention_weights(torch.tensor([[3, 1, 4]]))
    tokens = experiment.format.tokens(3, 3)
    visible_TS = torch.ones(tokens, tokens)
    if model == "decoder":
        visible_TS = visible_TS.tril()
    expected_HTS = (visible_TS / visible_TS.sum(1, keepdim=True)).expand(experiment.shape.num_heads, -1, -1)
    assert len(weights_by_layer) == experiment.shape.num_layers
    for weights_HTS in weights_by_layer.values():
        torch.testing.assert_close(weights_HTS, expected_HTS)
    assert torch.equal(network(torch.zeros(1, 5, dtype=torch.long)), logits)
