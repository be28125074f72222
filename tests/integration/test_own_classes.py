"""Classes from outside the package are checked before a run writes anything; shipped ones are not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from pe_experiments.analysis.trained_model import load_model
from pe_experiments.checking import CHECKS, Subject, own_classes
from pe_experiments.checking.own_classes import check_own_classes
from pe_experiments.encodings import PositionalEncoding
from pe_experiments.run import evaluate_run, run_experiment
from pe_experiments.tasks.copying import Copy
from pe_experiments.terminal.errors import UserError
from tests.conftest import TINY, Script, Tiny
from tests.integration import user_encodings

USER = "tests.integration.user_encodings"
OTHERS = "tests.integration.implementations"


class NoAnswers(Copy):
    answers = 0


DEFECTS = {
    f"pe={USER}.PoolsAll": "pe: PoolsAll looks ahead.*looks_ahead = True",
    f"pe={USER}.SeesOneKeyTooMany training.batch_size=1": "pe: SeesOneKeyTooMany looks ahead",
    f"pe={USER}.GatedByTheFuture": "pe: GatedByTheFuture looks ahead",
    f"pe={USER}.AheadInEvaluation": "pe: AheadInEvaluation looks ahead",
    f"pe={USER}.NotANumberFar evaluation.lengths=[1000]": "at evaluation length 1000 are NaN or infinite",
    f"pe={USER}.NoisyInEvaluation": "pe: NoisyInEvaluation: two equal calls give different",
    f"pe={USER}.WrongShapeInEvaluation": "pe fails at evaluation length 40",
    f"pe={OTHERS}.OwnGenerator": "pe: OwnGenerator: two equal calls give different results",
    f"pe={OTHERS}.Raises": r"pe fails .*KeyError: .* \(implementations\.py:\d+, in bias\)$",
    f"task={USER}.WrongAnswers": r"task: WrongAnswers at length .* solve says",
    f"task={USER}.TellingIds positions=task": "coupling ids of TellingIds depend on the values",
    f"task={__name__}.NoAnswers": "answers=0, expected None or 1 to vocab_size",
}


@pytest.mark.parametrize("options", DEFECTS)
def test_a_part_with_a_defect_is_refused(options: str, tiny: Tiny) -> None:
    experiment = tiny("evaluation.lengths=[4,40]", *options.split())
    with pytest.raises(UserError, match=DEFECTS[options]):
        check_own_classes(experiment)


@pytest.mark.parametrize(
    "options",
    [
        *(f"pe={USER}.{name}" for name in ("MeansToPool", "Noisy", "EditsEmbeddings", "NotANumberFar")),
        *(f"pe={USER}.{name} model=encoder" for name in ("PoolsAll", "SeesOneKeyTooMany")),
    ],
)
def test_a_right_encoding_passes(options: str, tiny: Tiny) -> None:
    check_own_classes(tiny(*options.split()))


def test_only_classes_from_outside_are_checked(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_classes, "_check_model", lambda experiment: pytest.fail("checked"))
    assert run_experiment(tiny("pe=rope").config).status == "completed"
    with pytest.raises(pytest.fail.Exception, match="checked"):
        run_experiment(tiny(f"pe={USER}.Recency").config)


@pytest.mark.parametrize("model", ["decoder", "encoder"])
def test_random_numbers_are_refused_before_an_evaluation(model: str, tiny: Tiny) -> None:
    run = run_experiment(tiny("pe=none", f"model={model}").config).directory.path
    with pytest.raises(UserError, match=r"two equal calls give different results; draw while"):
        evaluate_run(run, {"pe": {"_target_": f"{USER}.NoisyInEvaluation"}})
    assert not list(run.glob("evaluations/*"))


def test_a_misspelt_hook_gives_a_remark(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    run_experiment(tiny("pe=tests.integration.public_bugs.MisspeltHook").config)
    assert "MisspeltHook: bais overrides no hook; did you mean bias?\n" in capsys.readouterr().out


class Interrupted(PositionalEncoding):
    """Is interrupted by Ctrl-C after some training steps."""

    calls = 0

    def bias(self, q_BHTK: Tensor, k_BHSK: Tensor, at: object) -> None:
        self.calls += self.training and torch.is_grad_enabled()
        if self.calls == 15:
            raise KeyboardInterrupt


@pytest.mark.slow
def test_a_part_that_ends_the_program_is_an_error_and_ctrl_c_is_not(script: Script, results: Path) -> None:
    ended = script("train", *TINY, f"results_dir={results}", f"pe={USER}.ExitsLate")
    assert ended.code == 1
    assert "RuntimeError: a part ends the program with " in ended.out
    interrupted = script("train", *TINY, f"results_dir={results}", f"pe={__name__}.Interrupted")
    assert interrupted.code == 130
    assert interrupted.err.startswith("error: interrupted; the same command resumes")


@pytest.mark.slow
def test_the_checker_finds_a_look_ahead_at_many_keys_alone() -> None:
    assert CHECKS["look_ahead"](Subject(user_encodings.AheadFar)).holds is False


USER_MODEL = '''
from torch import nn
from pe_experiments.models import Backbone


class Library(Backbone):
    """torch's layers, which support encodings at the embedding alone."""

    def __init__(self, vocab_size, shape, make_encoding, seed=0, *, hidden: int = 32):
        super().__init__(vocab_size, shape, make_encoding, seed)
        layer = nn.TransformerEncoderLayer(
            shape.d_model, shape.num_heads, hidden, 0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, shape.num_layers, enable_nested_tensor=False)

    def layers_of(self, x_BTD, at):
        return self.layers(x_BTD, mask=~at.visible_BTS[0])
'''


def test_a_users_model_trains_and_is_part_of_the_identity(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "their_layers.py").write_text(USER_MODEL)
    monkeypatch.syspath_prepend(tmp_path)
    result = run_experiment(tiny("model=their_layers.Library", "+model.hidden=24").config)
    assert result.status == "completed"
    assert result.directory.name.startswith("copy-Library-sinusoidal-s0-")
    classes = result.directory.read_config()["identity"]["classes"]
    assert list(classes["model"]) == ["their_layers"]
    assert run_experiment(tiny("model=their_layers.Library", "+model.hidden=24").config).done == "found"
    with pytest.raises(UserError, match="from outside this package"):
        load_model(result.directory.path)
    assert load_model(result.directory.path, trust=True).model.layers.layers[0].linear1.out_features == 24
    with pytest.raises(UserError, match="has no Backbone of that name"):
        tiny("model=their_layers.Missing")
