"""Layers that skip padding: loss and gradients stay the same for every encoding."""

from __future__ import annotations

import pytest
import torch

from pe_experiments.configuration.choices import shipped
from pe_experiments.data.batches import TrainingStream
from pe_experiments.models import Backbone, Transformer, cpu
from pe_experiments.training.loop import batch_loss
from tests.conftest import Tiny

FORMS = [(name, "decoder") for name in shipped("pe")]
# These compute something else in an encoder.
FORMS += [(name, "encoder") for name in ("alibi_asymmetric", "shaw", "t5", "transformer_xl")]


@pytest.mark.slow
@pytest.mark.parametrize(("encoding", "model"), FORMS)
def test_packing_changes_no_loss_and_no_gradient(
    encoding: str, model: str, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = tiny(f"pe={encoding}", f"model={model}", "training.max_length=12")
    network = experiment.untrained_model().double()
    batch = TrainingStream(experiment.source, 8, "mixed").batch(0)
    assert batch.lengths_B.sum() < cpu.PADDED * batch.tokens_BT.numel()
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    results = []
    packs, skips, computes_all = cpu.PADDED, Transformer.selected_tokens, Backbone.selected_tokens
    for share, selected_tokens in ((packs, skips), (0.0, skips), (0.0, computes_all)):
        monkeypatch.setattr(cpu, "PADDED", share)
        monkeypatch.setattr(Transformer, "selected_tokens", selected_tokens)
        loss = batch_loss(network, batch)
        gradients = torch.autograd.grad(loss, trained, materialize_grads=True)
        results.append([loss, *gradients])
    packed, padded, whole = results
    torch.testing.assert_close(packed, whole, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(padded, whole, rtol=1e-6, atol=1e-9)
