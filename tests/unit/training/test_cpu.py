"""How a CPU trains: by the processor's vendor, or as measured where that is clearly faster."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from pe_experiments.models.cpu import Linear
from pe_experiments.run import run_experiment
from pe_experiments.terminal.errors import UserError
from pe_experiments.training import cpu
from pe_experiments.training.cpu import DEFAULT, ONEDNN, SMALL, Route, Shape, Timings, select
from tests.conftest import Tiny
from tests.integration.test_runs_survive import interrupted

AMD = {"vendor_id": "AuthenticAMD", "flags": "avx2 avx512_bf16"}
SECONDS = {"default written": (4.0, 4.0), "default fused": (4.0, 4.0), "onednn written": (4.0, 4.0)}


@pytest.fixture(autouse=True)
def _restore_route() -> Iterator[None]:
    before = cpu.route
    yield
    cpu.use_route(before)


@pytest.fixture
def onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let PyTorch have oneDNN."""
    monkeypatch.setattr(cpu, "_SETTING", SimpleNamespace(fp32_precision="ieee"))
    monkeypatch.setattr(cpu, "ONEDNN_IS_EXACT", True)


@pytest.mark.usefixtures("onednn")
def test_a_choice_counts_more_than_the_vendor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "PROCESSOR", AMD)
    assert select("auto", SMALL) == ONEDNN == cpu.route
    assert select("default", SMALL) == DEFAULT == cpu.route


def test_onednn_is_not_used_where_it_computes_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "PROCESSOR", AMD)
    monkeypatch.setattr(cpu, "ONEDNN_IS_EXACT", False)
    assert select("auto", SMALL) == DEFAULT
    with pytest.raises(UserError, match=r"trainer\.matmul=onednn.*bfloat16; allowed here: auto, default"):
        select("onednn", 1)


def tuned(
    tiny: Tiny, seconds: Timings, *overrides: str, environment: dict[str, object] | None = None
) -> Route:
    """Return the route of a training of a small model, whose default is oneDNN with attention written out."""
    experiment = tiny("pe=none", *overrides)
    model = experiment.untrained_model()
    cpu.use_route(ONEDNN)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu, "calibration", lambda say: seconds)
        cpu.tune(experiment.config, model, environment or {}, print)
    return cpu.route


FUSED = {"small": SECONDS | {"default fused": (1.0, 1.0)}}
TOKENS = cpu.SHAPES["small"].tokens
KEPT = (
    "trainer.matmul=onednn",
    "trainer.precision=64-true",
    "model.attention_implementation=eager",
    "pe=stick_breaking",  # it computes its own weights
    "pe=t5",  # its bias is trained
)


@pytest.mark.usefixtures("onednn")
@pytest.mark.parametrize(
    ("case", "rounds", "override", "route"),
    [
        ("default written", (3.3, 3.3), "", DEFAULT),
        ("default written", (3.3, 3.5), "", ONEDNN),  # the margin holds in one round only
        ("default fused", (3.3, 3.3), "", Route("default", TOKENS)),
        ("onednn fused", (1.0, 1.0), "", Route("onednn", TOKENS)),
        *(("default fused", (1.0, 1.0), override, ONEDNN) for override in KEPT),
    ],
)
def test_another_route_needs_the_margin_in_both_rounds_and_a_model_that_can_use_it(
    tiny: Tiny, case: str, rounds: tuple[float, float], override: str, route: Route
) -> None:
    assert tuned(tiny, {"small": SECONDS | {case: rounds}}, *filter(None, [override])) == route


@pytest.mark.usefixtures("checkpoint_every_step")
def test_a_run_on_a_measured_route_resumes_bit_for_bit(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = ("pe=rope", "training.steps=20", "training.check_every=20")
    monkeypatch.setattr(cpu, "SHAPES", {"small": Shape(8, 2, 64)})  # all rows are as long
    monkeypatch.setattr(cpu, "calibration", lambda say: FUSED)
    expected = run_experiment(tiny(*keys).config).directory
    assert expected.read_environment()["fused_attention_from"] == 2

    other = (*keys, f"results_dir={tmp_path / 'other'}")
    interrupted(tiny(*other), 15)
    monkeypatch.setattr(cpu, "calibration", lambda say: {"small": SECONDS})  # measured anew in between
    result = run_experiment(tiny(*other).config)
    assert result.done == "resumed"
    assert result.directory.read_environment()["fused_attention_from"] == 2
    assert result.directory.metrics.read_bytes() == expected.metrics.read_bytes()


def test_a_machine_is_measured_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = []
    seconds: Timings = {"small": {"default written": (2.0, 2.0), "default fused": (1.0, 1.0)}}
    monkeypatch.setattr(cpu, "measure", lambda: calls.append(1) or seconds)
    monkeypatch.setenv("PE_EXPERIMENTS_CACHE", str(tmp_path / "new" / "cache"))
    assert cpu.calibration(print) == seconds
    said = capsys.readouterr().out
    (file,) = (tmp_path / "new" / "cache").glob("*.json")
    assert "small default fused" in said
    assert str(file) in said
    assert cpu.calibration(print) == seconds
    assert (calls, capsys.readouterr().out) == ([1], "")

    file.write_text(file.read_text()[:40])  # damaged
    assert cpu.calibration(print) == seconds
    monkeypatch.setenv("PE_EXPERIMENTS_CACHE", str(file))  # no folder
    assert cpu.calibration(print) == {}
    assert len(calls) == 2


@pytest.mark.skipif(not cpu.ONEDNN_IS_EXACT, reason="oneDNN computes float32 products in bfloat16 here")
def test_onednn_adds_a_bias_within_the_product_with_the_same_gradients() -> None:
    torch.manual_seed(0)
    layer = Linear(24, 40)
    x_BTD, gradient_BTE = torch.randn(3, 5, 24), torch.randn(3, 5, 40)

    def results(call: nn.Linear, dtype: torch.dtype = torch.float32) -> list[Tensor]:
        x = x_BTD.to(dtype).requires_grad_()
        y = call(x)
        return [y, *torch.autograd.grad(y, (x, call.weight, call.bias), gradient_BTE.to(dtype))]

    cpu.use_route(ONEDNN)
    fused = results(layer)
    assert type(fused[0].grad_fn).__name__ == "_FusedLinearBackward"
    exact = nn.Linear(24, 40, dtype=torch.float64)
    exact.load_state_dict(layer.state_dict())
    for result, expected in zip(fused, results(exact, torch.float64), strict=True):
        torch.testing.assert_close(result.double(), expected, rtol=1e-5, atol=1e-5)
    cpu.use_route(DEFAULT)
    assert type(layer(x_BTD).grad_fn).__name__ != "_FusedLinearBackward"
