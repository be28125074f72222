"""Which library multiplies: chosen by measured error and speed, and never at the cost of precision."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from pe_experiments import matmul
from pe_experiments.config import Experiment
from pe_experiments.environment import prepare_hardware
from pe_experiments.errors import UserError
from pe_experiments.experiment import run_experiment
from pe_experiments.matmul import Probe, current_route, probe, settle
from pe_experiments.tracking import read_csv

Pretend = Callable[[Probe], None]


@pytest.fixture(autouse=True)
def _route_back() -> Iterator[None]:
    before = current_route()
    yield
    matmul.set_route(before)


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Pretend:
    """Makes the processor look like another one."""

    def measured(answer: Probe) -> None:
        monkeypatch.setattr(matmul, "probe", lambda: answer)

    return measured


FAST = Probe(speedup=2.0, error=2e-7, default_error=2e-7)
BFLOAT16 = Probe(speedup=5.0, error=2e-3, default_error=2e-7)
SLOW = Probe(speedup=0.9, error=2e-7, default_error=2e-7)


def test_the_probe_sees_float32_products_as_such() -> None:
    measured = probe()
    assert 0 < measured.default_error < 1e-6
    assert measured.speedup > 0
    a, b = torch.randn(64, 64), torch.randn(64, 64)
    assert matmul._error(a.bfloat16().float(), b) < 1e-6, "what the operands are is not the product's error"


@pytest.mark.parametrize(("measured", "route"), [(FAST, "onednn"), (BFLOAT16, "default"), (SLOW, "default")])
def test_auto_takes_onednn_only_where_it_is_faster_at_the_same_error(
    pretend: Pretend, tmp_path: Path, measured: Probe, route: str
) -> None:
    pretend(measured)
    assert settle("auto", tmp_path, "a processor") == route == current_route()
    assert json.loads((tmp_path / ".matmul.json").read_text())["a processor"]["route"] == route


def test_the_choice_holds_for_a_results_folder_and_processor(pretend: Pretend, tmp_path: Path) -> None:
    pretend(FAST)
    assert settle("auto", tmp_path, "a processor") == "onednn"
    pretend(SLOW)  # a busy machine would measure otherwise
    assert settle("auto", tmp_path, "a processor") == "onednn"
    assert settle("auto", tmp_path, "another") == "default"
    (tmp_path / ".matmul.json").write_text("{ damaged")
    assert settle("auto", tmp_path, "a processor") == "default"


def test_a_run_goes_on_as_it_began_unless_told_otherwise(pretend: Pretend, tmp_path: Path) -> None:
    pretend(FAST)
    assert settle("auto", tmp_path, "a processor", recorded="default") == "default"
    assert settle("onednn", tmp_path, "a processor", recorded="default") == "onednn"
    assert settle("default", tmp_path, "a processor", recorded="onednn") == "default"
    pretend(BFLOAT16)
    assert settle("auto", tmp_path, "a processor", recorded="onednn") == "default"


def test_asking_for_onednn_where_it_means_bfloat16_is_refused(pretend: Pretend, tmp_path: Path) -> None:
    pretend(BFLOAT16)
    with pytest.raises(UserError, match=r"hardware\.matmul=onednn.*bfloat16; allowed here: auto, default"):
        settle("onednn", tmp_path, "a processor")


def test_both_routes_train_to_the_same_losses(tiny: Callable[..., Experiment], results: Path) -> None:
    """With a smooth activation; a ReLU that flips at a rounding error moves later losses by more."""
    losses = {}
    for route in ("default", "onednn"):
        if route == "onednn" and not probe().keeps_float32:
            pytest.skip("oneDNN does not compute in float32 here")
        run = run_experiment(
            tiny("training.steps=100", "model.activation=gelu", f"hardware.matmul={route}", "rerun=true")
        ).directory
        assert json.loads(run.environment.read_text())["matmul"] == route
        losses[route] = torch.tensor([float(row["loss"]) for row in read_csv(run.metrics)])
    assert len(losses["default"]) >= 10
    torch.testing.assert_close(losses["onednn"], losses["default"], rtol=0, atol=1e-5)


def test_resuming_keeps_the_route(tiny: Callable[..., Experiment], pretend: Pretend) -> None:
    run = run_experiment(tiny("hardware.matmul=default"))
    run.directory.result.unlink()  # as if killed after its last checkpoint
    pretend(FAST)
    again = run_experiment(tiny())
    assert again.done == "resumed"
    assert json.loads(again.directory.environment.read_text())["matmul"] == "default"


def test_preparing_the_hardware_takes_the_faster_route(
    tiny: Callable[..., Experiment], pretend: Pretend
) -> None:
    hardware = tiny().config.hardware
    for measured, route in ((FAST, "onednn"), (SLOW, "default")):
        pretend(measured)
        assert prepare_hardware(hardware.model_copy(update={"accelerator": "cpu"})) == "cpu"
        assert current_route() == route
