"""Test the benchmark: equal shapes, the same work on both sides."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import torch

from pe_experiments.encodings import ModelShape
from pe_experiments.encodings.learned import Learned
from pe_experiments.models import Transformer
from pe_experiments.training import matmul
from results.benchmark import report
from results.benchmark.peers import PEERS
from results.benchmark.timing import Row
from results.benchmark.workloads import bare_training, experiment, whole_training
from tests.conftest import Outcome

SHAPE = ModelShape(32, 4, 2, True, 12, 12)
TINY = {"tiny": (4, 8, 14, 16, 1)}


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


def test_the_bare_loop_trains_as_the_harness_does() -> None:
    """Both end with the same weights, so the benchmark compares the same work."""
    sizes = {"model.d_model": 16, "training.steps": 6, "training.max_length": 30, "training.batch_size": 32}
    tiny = experiment(**sizes)
    bare, whole = tiny.untrained_model(), tiny.untrained_model()
    assert bare_training(bare, tiny, "default") > 0
    assert whole_training(whole, tiny, "default") > 0
    for bare_weights, whole_weights in zip(bare.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(bare_weights, whole_weights, rtol=0, atol=0)


@pytest.mark.slow
def test_every_measured_part_is_in_the_table(
    script: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "SIZES", TINY)
    monkeypatch.setattr(report, "PEERS", {"nn.TransformerEncoder": PEERS["nn.TransformerEncoder"]})
    monkeypatch.setattr(report, "long_evaluation", lambda tokens, encoding: (1.5, 20.0))
    before = matmul.current_backend()
    first = script("benchmark", "parts=[lengths,peers]", "repeats=2", f"out={tmp_path}")
    second = script("benchmark", "parts=[lengths]", "repeats=2", f"out={tmp_path}")  # replaces its rows
    matmul.set_backend(before)
    assert first.code == 0, first.err
    assert second.code == 0, second.err
    table = pd.read_csv(tmp_path / "table.csv", keep_default_na=False, na_values=[""])
    assert list(table) == list(Row.__dataclass_fields__)
    fastest = {"peers: fastest at its default", "peers: fastest at its best float32"}
    assert set(table["part"]) == {"lengths", "peers"} | fastest
    assert not table.duplicated(["part", "setting", "case"]).any()
    fire = table[(table["case"] == "fire") & (table["setting"] == "16384 tokens")]
    assert fire[["milliseconds", "value", "unit"]].values.tolist() == [[1.5, 20.0, "MB above the imports"]]
    assert (tmp_path / "table.md").read_text().count("\n") == 4 + len(table)
    assert json.loads((tmp_path / "machine.json").read_text())["threads"] == 1
