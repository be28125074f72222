"""What the start of a run refuses before anything is trained or written."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from pe_experiments.checking import CHECKS, Subject
from pe_experiments.configuration.experiment import Experiment
from pe_experiments.terminal.errors import UserError
from pe_experiments.training.preflight import preflight
from tests.conftest import ROOT, TINY, Script
from tests.integration import misbehaving, public_bugs
from tests.processes import Started, wait_for

Tiny = Callable[..., Experiment]
PARTS = misbehaving.__name__


def outside(group: str, name: str) -> str:
    return f"{group}._target_=tests.integration.outside.{name}"


@pytest.mark.parametrize("name", ["PoolsAll", "SeesOneKeyTooMany", "GatedByTheFuture"])
@pytest.mark.parametrize("batch_size", [1, 8])
def test_a_decoder_that_looks_ahead_is_refused(name: str, batch_size: int, tiny: Tiny) -> None:
    options = ("pe=none", outside("pe", name), f"training.batch_size={batch_size}")
    with pytest.raises(UserError, match=f"pe: {name} looks ahead.*looks_ahead = True"):
        preflight(tiny(*options))
    preflight(tiny(*options, "model=encoder"))


@pytest.mark.parametrize("name", ["MeansToPool", "Noisy", "Recency"])
def test_what_means_to_or_draws_random_numbers_may_start(name: str, tiny: Tiny) -> None:
    assert preflight(tiny("pe=none", outside("pe", name))) == []  # and nothing to remark on


def test_ids_that_tell_the_answer_are_refused(tiny: Tiny) -> None:
    preflight(tiny("positions=task"))
    with pytest.raises(UserError, match="coupling ids of TellingIds depend on the values of its answers"):
        preflight(tiny(outside("task", "TellingIds"), "positions=task"))


@pytest.mark.parametrize("length", [60, 1000])
def test_outputs_that_are_no_numbers_where_it_is_evaluated_are_refused(length: int, tiny: Tiny) -> None:
    options = ("pe=none", outside("pe", "NotANumberFar"))
    preflight(tiny(*options))
    with pytest.raises(UserError, match=f"at evaluation length {length} are NaN or infinite"):
        preflight(tiny(*options, f"evaluation.lengths=[{length}]"))


MISBEHAVING = {
    "AheadInEvaluation": "pe: {} looks ahead",
    "WrongShapeInEvaluation": "pe fails at evaluation length 40",
    "WrongShapeFar": "pe fails at evaluation length 40",
}


@pytest.mark.parametrize("name", MISBEHAVING)
def test_an_encoding_that_misbehaves_is_refused(name: str, tiny: Tiny) -> None:
    experiment = tiny("pe=none", f"pe._target_={PARTS}.{name}", "evaluation.lengths=[4,40]")
    with pytest.raises(UserError, match=MISBEHAVING[name].format(name)):
        preflight(experiment)


def test_a_misspelt_hook_is_remarked_on(tiny: Tiny) -> None:
    assert preflight(tiny("pe=none", f"pe._target_={public_bugs.__name__}.MisspeltHook")) == [
        "MisspeltHook: bais overrides no hook; did you mean bias?"
    ]


def test_an_error_in_a_class_of_the_users_has_its_place(tiny: Tiny) -> None:
    with pytest.raises(UserError, match=r"pe fails .*RuntimeError: .* \(misbehaving\.py:\d+, in bias\)$"):
        preflight(tiny("pe=none", f"pe._target_={PARTS}.OtherSize"))


def test_token_embeddings_are_an_encodings_own(tiny: Tiny) -> None:
    assert preflight(tiny("pe=none", f"pe._target_={PARTS}.EditsEmbeddings")) == []


def test_a_task_with_wrong_answers_is_refused(tiny: Tiny) -> None:
    with pytest.raises(UserError, match=r"task: WrongAnswers at length .* solve says"):
        preflight(tiny(f"task._target_={PARTS}.WrongAnswers"))


@pytest.mark.slow
def test_a_part_that_ends_the_program_in_training_leaves_an_error(script: Script, results: Path) -> None:
    asked = (*TINY, f"results_dir={results}", "pe=none", f"pe._target_={PARTS}.ExitsLate")
    done = script("train", *asked)
    assert done.code == 1
    assert "RuntimeError: a part ends the program with " in done.out


@pytest.mark.slow
def test_ctrl_c_is_not_put_down_to_the_part_it_meets(results: Path) -> None:
    """Nearly all of the time is spent in a part, so that is where the signal arrives."""
    asked = [*TINY, f"results_dir={results}", "pe=none", "pe._target_=tests.integration.outside.Slow"]
    running = Started(
        ROOT / "scripts" / "train.py", *asked, "training.steps=2000",
        cwd=ROOT, environment=os.environ | {"SLOW_TRAINING": str(ROOT)},
    )  # fmt: skip
    wait_for(lambda: list(results.glob("runs/*/checkpoints/last.ckpt")), running)
    os.kill(running.pid, signal.SIGINT)
    ended = running.end()
    assert ended.stderr.startswith("error: interrupted; the same command goes on")
    assert ended.returncode == 130


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "promise", "measured"),
    [
        ("AheadFar", "no look-ahead", ""),
        ("Exits", "equal calls give equal results", "SystemExit: 0"),
        ("EditsPositions", "inputs keep their values and their gradient", ""),
    ],
)
def test_the_contract_finds_it_too(name: str, promise: str, measured: str) -> None:
    result = CHECKS[promise](Subject(getattr(misbehaving, name)))
    assert result.holds is False
    assert measured in result.measured


def test_a_module_that_ends_the_program_is_named(
    script: Script, results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "exiting.py").write_text("raise SystemExit(0)")
    monkeypatch.syspath_prepend(tmp_path)
    done = script("train", *TINY, f"results_dir={results}", "pe=none", "pe._target_=exiting.Encoding")
    assert done.code == 1
    assert "names exiting, whose import fails: " in done.err
