"""Classes from outside the package are checked before a run writes anything; shipped ones are not."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from pe_experiments.analysis.trained_model import load_model
from pe_experiments.checking import CHECKS, Subject, own_classes
from pe_experiments.checking.own_classes import check_own_classes
from pe_experiments.run import evaluate_run, run_experiment
from pe_experiments.tasks.copying import Copy
from pe_experiments.terminal.errors import UserError
from tests.conftest import ROOT, TINY, TRAIN, Script, Tiny
from tests.integration import user_encodings
from tests.processes import Started, wait_for

USER_ENCODINGS = "tests.integration.user_encodings"


@pytest.mark.parametrize("name", ["PoolsAll", "SeesOneKeyTooMany", "GatedByTheFuture"])
@pytest.mark.parametrize("batch_size", [1, 8])
def test_a_decoder_that_looks_ahead_is_refused(name: str, batch_size: int, tiny: Tiny) -> None:
    options = (f"pe={USER_ENCODINGS}.{name}", f"training.batch_size={batch_size}")
    with pytest.raises(UserError, match=f"pe: {name} looks ahead.*looks_ahead = True"):
        check_own_classes(tiny(*options))
    check_own_classes(tiny(*options, "model=encoder"))


@pytest.mark.parametrize("name", ["MeansToPool", "Noisy", "EditsEmbeddings"])
def test_a_right_encoding_passes(name: str, tiny: Tiny) -> None:
    check_own_classes(tiny(f"pe={USER_ENCODINGS}.{name}"))


def test_only_classes_from_outside_are_checked(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_classes, "_check_model", lambda experiment: pytest.fail("checked"))
    assert run_experiment(tiny("pe=rope").config).status == "completed"
    with pytest.raises(pytest.fail.Exception, match="checked"):
        run_experiment(tiny(f"pe={USER_ENCODINGS}.Recency").config)


def test_position_ids_that_tell_the_answer_are_refused(tiny: Tiny) -> None:
    with pytest.raises(UserError, match="coupling ids of TellingIds depend on the values of its answers"):
        check_own_classes(tiny(f"task={USER_ENCODINGS}.TellingIds", "positions=task"))


class NoAnswers(Copy):
    answers = 0


def test_a_task_without_answers_is_refused(tiny: Tiny) -> None:
    with pytest.raises(UserError, match="answers=0, expected None or 1 to vocab_size"):
        check_own_classes(tiny(f"task={__name__}.NoAnswers"))


def test_nan_at_an_evaluation_length_is_refused(tiny: Tiny) -> None:
    encoding = f"pe={USER_ENCODINGS}.NotANumberFar"
    check_own_classes(tiny(encoding))
    with pytest.raises(UserError, match="at evaluation length 1000 are NaN or infinite"):
        check_own_classes(tiny(encoding, "evaluation.lengths=[1000]"))


@pytest.mark.parametrize(
    ("part", "sentence"),
    [
        ("pe=user_encodings.AheadInEvaluation", "pe: AheadInEvaluation looks ahead"),
        ("pe=implementations.OwnGenerator", "pe: OwnGenerator: two equal calls give different results"),
        ("pe=user_encodings.NoisyInEvaluation", "pe: NoisyInEvaluation: two equal calls give different"),
        ("pe=user_encodings.WrongShapeInEvaluation", "pe fails at evaluation length 40"),
        ("pe=implementations.Raises", r"pe fails .*KeyError: .* \(implementations\.py:\d+, in bias\)$"),
        ("task=user_encodings.WrongAnswers", r"task: WrongAnswers at length .* solve says"),
    ],
)
def test_a_part_with_a_defect_is_refused(part: str, sentence: str, tiny: Tiny) -> None:
    experiment = tiny(part.replace("=", "=tests.integration."), "evaluation.lengths=[4,40]")
    with pytest.raises(UserError, match=sentence):
        check_own_classes(experiment)


@pytest.mark.parametrize("model", ["decoder", "encoder"])
def test_random_numbers_are_refused_before_an_evaluation(model: str, tiny: Tiny) -> None:
    run = run_experiment(tiny("pe=none", f"model={model}").config).directory.path
    with pytest.raises(UserError, match=r"two equal calls give different results; draw while"):
        evaluate_run(run, {"pe": {"_target_": f"{USER_ENCODINGS}.NoisyInEvaluation"}})
    assert not list(run.glob("evaluations/*"))


def test_a_misspelt_hook_gives_a_remark(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    run_experiment(tiny("pe=tests.integration.public_bugs.MisspeltHook").config)
    assert "MisspeltHook: bais overrides no hook; did you mean bias?\n" in capsys.readouterr().out


@pytest.mark.slow
def test_a_part_that_ends_the_program_in_training_is_an_error(script: Script, results: Path) -> None:
    outcome = script("train", *TINY, f"results_dir={results}", f"pe={USER_ENCODINGS}.ExitsLate")
    assert outcome.code == 1
    assert "RuntimeError: a part ends the program with " in outcome.out


@pytest.mark.slow
def test_ctrl_c_is_not_reported_as_an_error_of_the_encoding(results: Path) -> None:
    """The encoding takes nearly all of the time, so the signal arrives in it."""
    running = Started(
        TRAIN, *TINY, "training.steps=2000", f"results_dir={results}",
        f"pe={USER_ENCODINGS}.Slow",
        cwd=ROOT, environment=os.environ | {"SLOW_TRAINING": str(ROOT)},
    )  # fmt: skip
    wait_for(lambda: list(results.glob("runs/*/checkpoints/last.ckpt")), running)
    os.kill(running.pid, signal.SIGINT)
    ended = running.end(code=130)
    assert ended.stderr.startswith("error: interrupted; the same command resumes")


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
