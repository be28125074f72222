"""``model.attention`` replaces softmax under any encoding, in every implementation of attention."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pe_experiments import compare
from pe_experiments.analysis.trained_model import load_model
from pe_experiments.configuration.experiment import Experiment
from pe_experiments.encodings.softmax import Softmax
from pe_experiments.models.attention import Attention
from pe_experiments.run import run_experiment
from pe_experiments.store.identity import identify
from pe_experiments.terminal.errors import UserError
from tests.conftest import Tiny

SOFTMAX1 = "model.attention=pe_experiments.encodings.softmax.Softmax1"
ENTMAX = "model.attention=pe_experiments.encodings.entmax.Entmax"
HERE = "tests.unit.models.test_softmax"


class Powers(Softmax):
    """Weights proportional to e^(power x); power 1 is softmax. Each layer learns its own power."""

    def __init__(self, shape, *, power: float = 1.0):
        super().__init__(shape)
        self.power = torch.nn.Parameter(torch.tensor(power))

    def forward(self, logits_BHTS):
        weights_BHTS = (self.power * (logits_BHTS - logits_BHTS.amax(dim=-1, keepdim=True))).exp()
        return weights_BHTS / weights_BHTS.sum(dim=-1, keepdim=True)


def logits_of(experiment: Experiment, **inputs: str) -> torch.Tensor:
    """Return the logits of a training batch, with padding, of the untrained model in float64."""
    model = experiment.untrained_model().double()
    for layer in model.modules():
        if isinstance(layer, Attention) and inputs:
            layer.implementation = inputs["implementation"]
    tokens_BT, _, lengths_B, declared_B, ids_BP = experiment.batches.batch(0)
    with torch.no_grad():
        logits_BTV = model(tokens_BT, ids_BP, lengths_B, declared_B)
    return logits_BTV[torch.arange(tokens_BT.shape[1]) < lengths_B[:, None]]


@pytest.mark.parametrize("model", ["decoder", "encoder"])
@pytest.mark.parametrize("pe", ["rope", "t5", "fox"])
@pytest.mark.parametrize(
    ("option", "same_as"),
    [
        (f"model.attention={HERE}.Powers", ""),
        (SOFTMAX1, "model.sinks=true"),  # whose logit starts at 0
    ],
)
def test_it_equals_what_it_generalises(tiny: Tiny, model: str, pe: str, option: str, same_as: str) -> None:
    if (model, pe) == ("encoder", "fox"):
        pytest.skip("FoX is causal")
    parts = (f"model={model}", f"pe={pe}")
    expected = logits_of(tiny(*parts, *filter(None, [same_as])))
    for implementation in ("eager", "blocked", "sdpa", "auto"):
        result = logits_of(tiny(*parts, option), implementation=implementation)
        torch.testing.assert_close(result, expected, rtol=1e-6, atol=1e-7)
    other = logits_of(tiny(*parts, f"model.attention={{_target_: {HERE}.Powers, power: 2.0}}"))
    assert not torch.allclose(other, expected, atol=1e-4)


def test_entmax_equals_the_encoding_that_brings_it(tiny: Tiny) -> None:
    expected = logits_of(tiny("pe=asentmax", "pe.scale=none"))  # with the bias of NAPE
    torch.testing.assert_close(logits_of(tiny("pe=nape", ENTMAX)), expected, rtol=1e-6, atol=1e-7)
    assert not torch.allclose(logits_of(tiny("pe=nape")), expected, atol=1e-4)


def test_a_run_with_a_softmax_of_its_own(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It trains the parameters of every layer, belongs to the identity and is loaded with trust."""
    own = tiny(f"model.attention={HERE}.Powers", "training.learning_rate=0.01")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "relu").touch()  # an argument of our class around it
    assert identify(own).data == {}
    assert "test_softmax" in str(identify(own).classes["model"])
    assert identify(own).hash != identify(tiny("training.learning_rate=0.01")).hash
    run = run_experiment(own.config).directory
    (protocol,) = compare(run.path.parents[1]).protocols
    assert protocol.settings["model.attention"] == "Powers(power=1.0)"
    with pytest.raises(UserError, match=r"Powers, from outside this package.*trust=true"):
        load_model(run.path)
    trained = load_model(run.path, trust=True).model
    powers = [layer.softmax.power.detach() for layer in trained.modules() if isinstance(layer, Attention)]
    assert len(powers) == 2
    assert len({1.0, *map(float, powers)}) == 3
