"""``init_from`` continues a trained model: from the command line, resumed, in sweeps, without its parent."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pe_experiments.analysis.trained_model import load_model
from pe_experiments.encodings.rope_extension import RopeYarn
from pe_experiments.run import Result, run_experiment
from pe_experiments.store.directory import RunDirectory
from pe_experiments.terminal import console
from tests.conftest import TINY, Script, Tiny, assert_one_sentence, tiny_in
from tests.interrupted import StopAt


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_experiment(tiny_in(tmp_path_factory.mktemp("trained"))("pe=rope").config).directory.path


@pytest.fixture
def parent(trained: Path, results: Path) -> Path:
    return shutil.copytree(trained, results / "runs" / trained.name)


def extended(parent: Path, keys: dict[str, object], display: console.Display | None = None) -> Result:
    """Train a child of this run from Python, beside its parent unless ``keys`` say otherwise."""
    defaults = {"init_from": parent, "results_dir": str(parent.parents[1]), "logger": "none"}
    return run_experiment(defaults | keys, display)


def files(run: RunDirectory) -> list[bytes]:
    return [path.read_bytes() for path in (run.metrics, run.curve)]


@pytest.mark.slow
@pytest.mark.usefixtures("checkpoint_every_step")
def test_an_interrupted_child_resumes_to_the_same_results(
    parent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys: dict[str, object] = {"pe": "rope_yarn", "training.max_length": 12, "training.steps": 25}
    uninterrupted = extended(parent, keys | {"results_dir": str(tmp_path / "uninterrupted")})
    for step in (5, 17):  # before its first checkpoint, when it begins from the parent again, and after
        with pytest.raises(KeyboardInterrupt):
            extended(parent, keys, StopAt(step, KeyboardInterrupt()))
    again = extended(parent, keys)
    assert (again.done, again.result["resumed_from"]) == ("resumed", 12)
    assert files(again.directory) == files(uninterrupted.directory)
    assert capsys.readouterr().out.count("with its weights") == 3  # not when it goes on from a checkpoint
    assert extended(parent, keys).done == "found"


@pytest.mark.slow
def test_a_child_can_be_loaded_after_its_parent_is_deleted(parent: Path, script: Script) -> None:
    child = extended(parent, {"pe": "rope_yarn", "training.max_length": 12})
    grandchild = extended(child.directory.path, {"training.max_length": 24})
    shutil.rmtree(parent)
    shutil.rmtree(child.directory.path)
    path = grandchild.directory.path
    model = load_model(path)
    assert isinstance(model.encoding, RopeYarn)
    assert model.encoding.original_length == 14  # BOS, 6 symbols, SEP, as many again, less EOS
    assert grandchild.result["label"] == "rope -> rope_yarn -> rope_yarn"
    evaluated = script("evaluate", f"run={path}", "pe=rope_ntk", "evaluation.lengths=[7]")
    assert "(evaluated without training)" in evaluated.out, evaluated.err
    assert_one_sentence(script("train", f"init_from={parent}", *TINY), "init_from=", "there is no run")


@pytest.mark.slow
def test_sweeps_vary_the_encoding_and_the_parent(
    parent: Path, tiny: Tiny, results: Path, script: Script
) -> None:
    second = run_experiment(tiny("pe=rope", "seed=1").config).directory.path
    common = ["-m", f"results_dir={results}", "training.steps=3", "logger=none", "hydra.launcher.jobs=1"]
    swept = script("train", *common, f"init_from={parent},{second}", "pe=rope_yarn,none")
    assert "4 runs: 4 finished" in swept.out
    children = [path.name.split("-")[4:6] for path in results.glob("runs/*-to-*")]
    assert sorted(children) == [["none", "s0"], ["none", "s1"], ["rope_yarn", "s0"], ["rope_yarn", "s1"]]
    again = script("train", *common[1:-1], f"init_from={parent.name}", "pe=rope_ntk").out
    assert f"continues {parent.name} with its weights" in again
    assert "rope -> none" in script("compare", f"results_dir={results}", 'pe=["rope -> none"]').out
    unknown = script("train", *common, "init_from=missing", "pe=rope,none")
    assert "init_from=missing: there is no run" in unknown.err
