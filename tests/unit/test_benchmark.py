"""The benchmark measures what it says: cases in turn, equal shapes, tables that keep what is not measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import torch

from pe_experiments import matmul
from pe_experiments.benchmark import parts, workloads
from pe_experiments.benchmark.longest import measure_apart
from pe_experiments.benchmark.parts import Bench
from pe_experiments.benchmark.peers import PEERS, Peer
from pe_experiments.benchmark.timing import compare, fastest, interleave
from pe_experiments.console import Display
from pe_experiments.encodings import ModelShape
from pe_experiments.models import Transformer
from tests.conftest import Outcome

SHAPE = ModelShape(32, 4, 2, True, 12, 12)


def test_cases_take_turns_and_warm_ups_do_not_count() -> None:
    order: list[str] = []
    seconds = interleave(
        {"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 3, 2, Display(), ""
    )
    assert order == ["a", "b"] * 5
    assert [len(taken) for taken in seconds.values()] == [3, 3]


def test_ratios_are_of_neighbours() -> None:
    seconds = {"a": [1.0, 10.0, 2.0], "b": [2.0, 20.0, 5.0]}  # the machine was ten times slower for a while
    rows = {row.case: row for row in compare("part", "setting", seconds, "a")}
    assert rows["b"].ratio == 2.0
    assert rows["b"].milliseconds == 5000
    assert (rows["a"].ratio, rows["b"].against) == (1.0, "a")
    assert fastest(seconds, ["a", "b"]) == "a"


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_peers_have_our_size_and_are_causal(peer: Peer) -> None:
    if peer.name.startswith(("x-", "transformers")):
        pytest.importorskip(peer.name.partition(" ")[0].replace("-", "_"))
    ours = Transformer(14, SHAPE, workloads.experiment("pe=learned").components["pe"].build)
    sizes = {}
    for attention in peer.attention:
        model, forward = peer.make(SHAPE, 14, attention)
        model.eval()
        tokens = torch.randint(14, (3, 12), generator=torch.Generator().manual_seed(0))
        changed = tokens.clone()
        changed[:, -1] = (changed[:, -1] + 1) % 14
        with torch.no_grad():
            logits, other = forward(tokens), forward(changed)
        assert logits.shape == (3, 12, 14)
        torch.testing.assert_close(logits[:, :-1], other[:, :-1], rtol=0, atol=1e-4)
        sizes[attention] = sum(p.numel() for p in model.parameters())
    expected = sum(p.numel() for p in ours.parameters())
    assert all(abs(size / expected - 1) < 0.06 for size in sizes.values()), (sizes, expected)


def test_the_bare_loop_trains_as_the_harness_does() -> None:
    """What is compared is the same work: both end with the same weights."""
    made = workloads.experiment(
        "model.d_model=16", "training.steps=6", "training.max_length=30", "training.batch_size=32"
    )
    modules = []

    class Kept(workloads.TrainingModule):
        def __init__(self, *args: object) -> None:
            super().__init__(*args)  # type: ignore[arg-type]
            modules.append(self)

    original, workloads.TrainingModule = workloads.TrainingModule, Kept  # type: ignore[misc]
    try:
        workloads.bare_training(made, "default")()
        workloads.whole_training(made, "default")()
    finally:
        workloads.TrainingModule = original  # type: ignore[misc]
    for bare, whole in zip(modules[0].model.parameters(), modules[1].model.parameters(), strict=True):
        torch.testing.assert_close(bare, whole, rtol=0, atol=0)


def test_memory_is_that_of_the_evaluation_alone() -> None:
    ballast = torch.ones(64 << 20)  # 256 MB of this process must not show in the other
    found = measure_apart(200, "pe=alibi")
    assert ballast.numel()
    assert 0 <= found["above"] < 200
    assert found["baseline"] > 100
    assert found["seconds"] > 0


def test_a_part_measured_anew_leaves_the_others(
    script: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "SIZES", {"tiny": (4, 16, 1)})
    monkeypatch.setattr(parts, "TOKENS", 8)
    monkeypatch.setattr(parts, "PEERS", PEERS[:1])
    monkeypatch.setattr(parts, "LENGTHS", (64,))
    monkeypatch.setattr(parts, "LONG_SCHEMES", ("none",))
    before = matmul.current_backend()
    done = script("benchmark", "parts=[lengths,peers]", "repeats=2", f"out={tmp_path}")
    assert done.code == 0, done.err
    first = pd.read_csv(tmp_path / "table.csv")
    assert {"peers", "lengths", "peers: fastest at its default", "share of peak"} <= set(first["part"])
    done = script("benchmark", "parts=[peers]", "repeats=2", f"out={tmp_path}")
    assert done.code == 0, done.err
    second = pd.read_csv(tmp_path / "table.csv")
    assert len(second) == len(first)
    kept = [table[table["part"] == "lengths"].reset_index(drop=True) for table in (first, second)]
    pd.testing.assert_frame_equal(*kept)
    assert json.loads((tmp_path / "machine.json").read_text())["threads"] == 1
    assert (tmp_path / "benchmark.png").stat().st_size > 10_000
    matmul.set_backend(before)


def test_an_unknown_part_is_one_sentence(script: Callable[..., Outcome], tmp_path: Path) -> None:
    done = script("benchmark", "parts=[speed]", f"out={tmp_path / 'out'}")
    assert done.code == 1
    assert done.err.strip().startswith("error: parts: speed is not one of the choices: peers, schemes")
    assert not (tmp_path / "out").exists()


def test_missing_peers_are_left_out_and_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(*args: object) -> None:
        raise ImportError("no such library")

    monkeypatch.setattr(parts, "SIZES", {"tiny": (4, 16, 1)})
    monkeypatch.setattr(parts, "TOKENS", 8)
    monkeypatch.setattr(parts, "PEERS", (Peer("elsewhere", missing),))  # type: ignore[arg-type]
    rows = list(parts.peers(Bench(1, 0, Display())))
    assert {row.case for row in rows} == {"pe_experiments", "pe_experiments, gelu"}
    assert "elsewhere is left out: pip install" in capsys.readouterr().out
