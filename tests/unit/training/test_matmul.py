"""Which library multiplies: chosen by measured error, never by speed or at the cost of precision."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from pe_experiments.configuration.experiment import Experiment
from pe_experiments.run import run_experiment
from pe_experiments.store.csv_files import read_csv
from pe_experiments.store.environment import describe_environment
from pe_experiments.terminal.errors import UserError
from pe_experiments.training import matmul
from pe_experiments.training.device import prepare_device
from pe_experiments.training.matmul import current_backend, onednn_keeps_float32, select

Pretend = Callable[[float], None]


@pytest.fixture(autouse=True)
def _backend_back() -> Iterator[None]:
    before = current_backend()
    yield
    matmul.set_backend(before)


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pretend]:
    """Makes the processor look like one whose oneDNN errs by so much; the default errs by 2e-7."""

    def pretend(error: float) -> None:
        onednn_keeps_float32.cache_clear()
        monkeypatch.setattr(matmul, "_SETTING", SimpleNamespace(fp32_precision="ieee"))
        monkeypatch.setattr(matmul, "_error", lambda a, b: error if current_backend() == "onednn" else 2e-7)

    yield pretend
    onednn_keeps_float32.cache_clear()


FLOAT32, BFLOAT16 = 2e-7, 2e-3


def test_errors_are_measured_on_float32_operands() -> None:
    a, b = torch.randn(64, 64), torch.randn(64, 64)
    assert 0 < matmul._error(a, b) < 1e-6
    assert matmul._error(a.bfloat16().float(), b) < 1e-6, "what the operands are is not the product's error"


@pytest.mark.parametrize(("error", "backend"), [(FLOAT32, "onednn"), (BFLOAT16, "default")])
def test_auto_takes_onednn_wherever_the_error_is_the_same(
    pretend: Pretend, error: float, backend: str
) -> None:
    pretend(error)
    assert select("auto", matmul.SMALL) == backend == current_backend()
    assert select("auto", matmul.SMALL - 1) == "default" == current_backend()
    assert select("default", matmul.SMALL) == "default" == current_backend()


def test_asking_for_onednn_where_it_means_bfloat16_is_refused(pretend: Pretend) -> None:
    pretend(BFLOAT16)
    with pytest.raises(UserError, match=r"trainer\.matmul=onednn.*bfloat16; allowed here: auto, default"):
        select("onednn", 1)


@pytest.mark.slow
def test_both_backends_train_to_the_same_losses(tiny: Callable[..., Experiment], results: Path) -> None:
    """With a smooth activation; a ReLU that flips at a rounding error moves later losses by more."""
    losses = {}
    for backend in ("default", "onednn"):
        if backend == "onednn" and not onednn_keeps_float32():
            pytest.skip("oneDNN does not compute in float32 here")
        run = run_experiment(
            tiny("training.steps=100", "model.activation=gelu", f"trainer.matmul={backend}", "rerun=true")
        ).directory
        assert json.loads(run.environment.read_text())["matmul"] == backend
        losses[backend] = torch.tensor([float(row["loss"]) for row in read_csv(run.metrics)])
    assert len(losses["default"]) >= 10
    torch.testing.assert_close(losses["onednn"], losses["default"], rtol=0, atol=1e-5)


def test_no_file_remembers_the_choice(
    tiny: Callable[..., Experiment], pretend: Pretend, results: Path
) -> None:
    """Measured again by every process: the same processor selects the same backend, busy or not."""
    for error, backend in ((FLOAT32, "onednn"), (BFLOAT16, "default")):
        pretend(error)
        for rows, taken in ((2000, backend), (8, "default")):
            prepare_device(tiny("trainer.accelerator=cpu", f"training.batch_size={rows}").config)
            assert describe_environment("cpu")["matmul"] == taken
        assert not results.exists()
