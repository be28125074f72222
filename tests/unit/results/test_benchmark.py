"""Test the benchmark: equal shapes, the same work on both sides."""

from pathlib import Path

import pytest
import torch

from pe_experiments.encodings import ModelShape
from pe_experiments.encodings.learned import Learned
from pe_experiments.models import Transformer
from pe_experiments.terminal.console import Observer
from pe_experiments.training.cpu import DEFAULT
from pe_experiments.training.loop import fit
from results.benchmark.peers import PEERS
from results.benchmark.workloads import bare_training, experiment, training_step, whole_training

SHAPE = ModelShape(32, 4, 2, True, 12, 12)


@pytest.mark.parametrize("name", PEERS)
def test_peers_have_the_same_size_and_are_causal(name: str) -> None:
    if name.startswith(("x-", "transformers")):
        pytest.importorskip(name.partition(" ")[0].replace("-", "_"))
    expected = sum(p.numel() for p in Transformer(14, SHAPE, Learned).parameters())
    make, attentions = PEERS[name]
    for attention in attentions:
        model = make(SHAPE, 14, attention).eval()
        tokens = torch.randint(14, (3, 12), generator=torch.Generator().manual_seed(0))
        changed = tokens.clone()
        changed[:, -1] = (changed[:, -1] + 1) % 14
        with torch.no_grad():
            logits, logits_of_changed = model(tokens), model(changed)
        assert logits.shape == (3, 12, 14)
        torch.testing.assert_close(logits[:, :-1], logits_of_changed[:, :-1], rtol=0, atol=1e-4)
        assert sum(p.numel() for p in model.parameters()) == pytest.approx(expected, rel=0.06), attention


def test_the_bare_loop_trains_as_the_harness_does(tmp_path: Path) -> None:
    """Both end with the same weights, so the benchmark compares the same work."""
    sizes = {"model.d_model": 16, "training.steps": 6, "training.max_length": 30, "training.batch_size": 32}
    tiny = experiment(**sizes)
    bare, whole = tiny.untrained_model(), tiny.untrained_model()
    assert bare_training(training_step(bare, tiny, DEFAULT), tiny) > 0
    fit(whole, tiny, "cpu", tmp_path / "last.ckpt", [Observer()])
    assert whole_training(tiny, DEFAULT) > 0
    for bare_weights, whole_weights in zip(bare.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(bare_weights, whole_weights, rtol=0, atol=0)
