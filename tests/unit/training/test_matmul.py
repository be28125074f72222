"""The library for matrix products, which is chosen by its measured error."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
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
def _restore_backend() -> Iterator[None]:
    before = current_backend()
    yield
    matmul.set_backend(before)


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pretend]:
    """Return a function that sets the measured error of oneDNN; that of the default is 2e-7."""

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
    assert matmul._error(a.bfloat16().float(), b) < 1e-6, (
        "rounding of the operands is no error of the product"
    )


@pytest.mark.parametrize(("error", "backend"), [(FLOAT32, "onednn"), (BFLOAT16, "default")])
def test_auto_selects_onednn_for_large_products_if_it_keeps_float32(
    pretend: Pretend, error: float, backend: str
) -> None:
    pretend(error)
    assert select("auto", matmul.SMALL) == backend == current_backend()
    assert select("auto", matmul.SMALL - 1) == "default" == current_backend()
    assert select("default", matmul.SMALL) == "default" == current_backend()


def test_onednn_is_refused_if_it_computes_in_bfloat16(pretend: Pretend) -> None:
    pretend(BFLOAT16)
    with pytest.raises(UserError, match=r"trainer\.matmul=onednn.*bfloat16; allowed here: auto, default"):
        select("onednn", 1)


@pytest.mark.slow
def test_both_backends_train_to_the_same_losses(tiny: Callable[..., Experiment]) -> None:
    """A smooth activation keeps rounding errors small. A ReLU may flip and change later losses."""
    losses = {}
    for backend in ("default", "onednn"):
        if backend == "onednn" and not onednn_keeps_float32():
            pytest.skip("oneDNN does not compute in float32 here")
        run = run_experiment(
            tiny(
                "training.steps=100", "model.activation=gelu", f"trainer.matmul={backend}", "rerun=true"
            ).config
        ).directory
        assert json.loads(run.environment.read_text())["matmul"] == backend
        losses[backend] = torch.tensor([float(row["loss"]) for row in read_csv(run.metrics)])
    assert len(losses["default"]) >= 10
    torch.testing.assert_close(losses["onednn"], losses["default"], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("error", "batch_size", "backend"),
    [(FLOAT32, 2000, "onednn"), (BFLOAT16, 2000, "default"), (FLOAT32, 8, "default")],
)
def test_a_run_uses_and_records_the_selected_backend(
    error: float, batch_size: int, backend: str, tiny: Callable[..., Experiment], pretend: Pretend
) -> None:
    pretend(error)
    prepare_device(tiny("trainer.accelerator=cpu", f"training.batch_size={batch_size}").config)
    assert describe_environment("cpu")["matmul"] == backend
