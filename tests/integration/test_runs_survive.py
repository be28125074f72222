"""Runs are returned when finished, resumed when interrupted, and name their error when they fail."""

from __future__ import annotations

import errno
import json
import math
import os
import random
import shutil
import signal
import time
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch

from pe_experiments.configuration.experiment import Experiment
from pe_experiments.run import evaluate_run, run_experiment
from pe_experiments.store.directory import RunDirectory
from pe_experiments.terminal import console
from pe_experiments.terminal.errors import UserError
from pe_experiments.training import loop as training
from tests.conftest import ROOT, TINY, Tiny
from tests.interrupted import StopAt
from tests.processes import Started
from tests.synthetic import fading, write_run

CURVES = ("metrics.csv", "extrapolation.csv")


def interrupted(experiment: Experiment, step: int) -> RunDirectory:
    """Return the only run in a results directory, interrupted at this step."""
    with pytest.raises(KeyboardInterrupt):
        run_experiment(experiment.config, StopAt(step, KeyboardInterrupt()))
    (run,) = Path(experiment.config.results_dir).glob("runs/*")
    return RunDirectory(run)


@pytest.mark.usefixtures("checkpoint_every_step")
def test_a_failed_rerun_keeps_the_finished_run_and_continues(tiny: Tiny) -> None:
    finished = write_run(tiny("pe=none"), fading(1, 0))
    before = finished.read_result()
    rerun = tiny("pe=none", "rerun=true").config
    failed = run_experiment(rerun, StopAt(7, RuntimeError("boom")))
    assert failed.status == "error"
    assert "boom" in failed.result["reason"]
    assert run_experiment(tiny("pe=none").config).done == "found"
    assert finished.read_result() == before
    assert run_experiment(rerun).done == "resumed"
    assert finished.read_result() != before
    assert [path.name for path in finished.path.parent.iterdir()] == [finished.name]


class Deletes(console.Display):
    """Deletes all runs at the third step of one."""

    def __init__(self, runs: Path):
        self.runs = runs

    def step(self, done: int) -> None:
        assert done <= 6  # the loss is noticed while the run trains
        if done == 3:
            shutil.rmtree(self.runs)


@pytest.mark.slow
@pytest.mark.usefixtures("checkpoint_every_step")
def test_a_run_whose_directory_is_deleted_is_an_error_and_trains_again(tiny: Tiny, results: Path) -> None:
    with pytest.raises(UserError, match="was deleted or moved during the run"):
        run_experiment(tiny().config, Deletes(results / "runs"))
    assert not list(results.glob("runs/*"))
    again = run_experiment(tiny().config)
    assert (again.done, again.status) == ("trained", "completed")


@pytest.mark.slow
@pytest.mark.usefixtures("checkpoint_every_step")
def test_a_run_that_is_resumed_elsewhere_keeps_both_environments(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(training, "RECORD_EVERY", 2)
    for step in (3, 5):  # the second one continues in the same environment
        run = interrupted(tiny("trainer.threads=1"), step)
        assert "earlier" not in run.read_environment()
    monkeypatch.setattr("pe_experiments.training.cpu.PROCESSOR", {"model name": "another"})
    recorded = run_experiment(tiny("trainer.threads=2").config).directory.read_environment()
    (earlier,) = recorded["earlier"]
    assert (earlier["threads"], recorded["threads"]) == (1, 2)
    assert (earlier["until_step"], recorded["processor"]) == (4, "another")
    (remark,) = [line for line in capsys.readouterr().out.splitlines() if "environment" in line]
    assert "threads 2 instead of 1" in remark


KILLS = 5  # one for each command below; before a release of this machinery try 70
LONGER = (*TINY, "training.steps=100")
COMMANDS = {
    "run": ("train", *LONGER, "pe=learned", "positions=random_offset"),
    "child": ("train", *LONGER, "init_from={run}", "training.max_length=12"),
    "evaluation": ("evaluate", "run={run}", "evaluation.lengths=[5,12]", "logger=none"),
    "rerun": ("train", *LONGER, "pe=learned", "positions=random_offset", "rerun=true"),
    "sweep": ("train", "-m", *LONGER, "pe=none,alibi", "seed=0,1", "hydra.launcher.jobs=2"),
}
COMMAND = """
import sys
from pe_experiments.commands.models import evaluate
from pe_experiments.commands.train import run as train
from pe_experiments.training import loop
loop.CHECKPOINT_SECONDS, loop.CHECKPOINT_SHARE = 0.0, 1e9
if __name__ == "__main__":
    {"train": train, "evaluate": evaluate}[sys.argv.pop(1)]()
"""


@pytest.mark.slow
def test_kills_at_random_moments_lose_nothing(tmp_path: Path) -> None:
    (tmp_path / "command.py").write_text(COMMAND)

    def start(kind: str, results: Path, **options: Any) -> Started:
        run = next((path for path in results.glob("runs/*learned*") if "-to-" not in path.name), None)
        words = [word.format(run=run) for word in COMMANDS[kind]]
        if kind != "evaluation":
            words.append(f"results_dir={results}")
        return Started(tmp_path / "command.py", *words, cwd=ROOT, path=[ROOT], **options)

    moments = random.Random(0)
    for number, kind in enumerate(COMMANDS):
        begun = time.monotonic()
        start(kind, tmp_path / "whole").end(code=0)
        seconds = time.monotonic() - begun
        for _ in range(number, KILLS, len(COMMANDS)):
            process = start(kind, tmp_path / "killed")
            time.sleep(moments.uniform(0, seconds))
            with suppress(ProcessLookupError):  # it has ended
                os.killpg(process.pid, signal.SIGKILL)
            process.end()
        start(kind, tmp_path / "killed", forks=True).end(code=0)
        assert written(tmp_path / "killed") == written(tmp_path / "whole"), kind


def written(results: Path) -> dict[str, bytes]:
    """Return the curves of all runs and evaluations; a rerun must not leave its directory."""
    return {
        str(path.relative_to(results)): path.read_bytes()
        for name in CURVES
        for path in results.rglob(name)
        if path.parent.parent.name in ("runs", "evaluations")
    }


def test_a_finished_run_is_returned_and_keeps_only_its_weights(tiny: Tiny) -> None:
    first = run_experiment(tiny("study=one").config)
    checkpoint = torch.load(first.directory.checkpoint, weights_only=True)
    assert checkpoint["finished"]
    assert not {"optimizer_states", "lr_schedulers"} & set(checkpoint)
    stamp = first.directory.result.stat().st_mtime_ns
    again = run_experiment(tiny("study=two").config)
    assert again.done == "found"
    assert again.directory.result.stat().st_mtime_ns == stamp
    assert again.curve == first.curve
    for study in ("one", "two"):
        manifest = json.loads((Path(tiny().config.results_dir) / study / "manifest.json").read_text())
        assert manifest["runs"] == [first.directory.name]


def test_a_run_without_its_metrics_is_evaluated(tiny: Tiny) -> None:
    directory = run_experiment(tiny().config).directory
    for path in (directory.metrics, directory.result):
        path.unlink()
    result = run_experiment(tiny().config)
    assert result.status == "completed"
    assert math.isnan(result.validation_loss)
    assert "NaN" not in directory.result.read_text()  # which is not JSON


def test_other_lengths_are_evaluated_without_training(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run_experiment(tiny().config)
    before = first.directory.curve.read_bytes()

    monkeypatch.setattr(training, "fit", lambda *_: pytest.fail("trained again"))
    evaluated = run_experiment(tiny("evaluation.lengths=[6,12]").config)
    assert evaluated.done == "evaluated"
    assert [row["length"] for row in evaluated.curve] == [6, 12]
    assert evaluated.directory.path.parent == first.directory.path / "evaluations"
    assert evaluated.curve[0] == first.curve[1]
    assert first.directory.curve.read_bytes() == before
    assert run_experiment(tiny("evaluation.lengths=[6,12]").config).done == "found"
    same = evaluate_run(first.directory.path, {"evaluation": {"lengths": [6, 12], "examples": 20}})
    assert same.directory.path == evaluated.directory.path


def test_a_run_that_cannot_start_leaves_nothing_behind(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tiny(), fading(1, 0))
    before = {path.name for path in run.path.iterdir()}

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise UserError("no such mirror")

    monkeypatch.setattr("pe_experiments.store.writer.run_loggers", refuse)
    for override in ("rerun=true", "seed=5"):
        with pytest.raises(UserError, match="no such mirror"):
            run_experiment(tiny(override, "study=s", "logger=csv").config)
    assert {path.name for path in run.path.iterdir()} - {".lock"} == before
    assert [path.name for path in run.path.parent.iterdir()] == [run.name]
    assert not (Path(tiny().config.results_dir) / "s").exists()
    monkeypatch.undo()
    assert run_experiment(tiny().config).done == "found"


@pytest.mark.slow
def test_a_failed_evaluation_leaves_nothing_behind(tiny: Tiny) -> None:
    fails = "pe=tests.integration.user_encodings.FailsFar"
    run_experiment(tiny(fails).config)
    with pytest.raises(RuntimeError, match="too far"):
        run_experiment(tiny(fails, "evaluation.lengths=[4,40]", "logger=wandb").config)
    run_experiment(tiny("pe=none").config)
    evaluated = run_experiment(tiny("pe=none", "evaluation.lengths=[4,40]", "logger=wandb").config)
    assert len(list(evaluated.directory.path.glob("wandb/offline-run-*"))) == 1
    assert len(list(Path(tiny().config.results_dir).glob("runs/*/evaluations/*"))) == 1


@pytest.mark.slow
def test_a_full_disk_is_one_sentence_and_keeps_finished_runs(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished = write_run(tiny(), fading(1, 0))

    def full(*args: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(training.Checkpointer, "save", full)
        with pytest.raises(UserError, match=r"No space left on device\); finished results are safe"):
            run_experiment(tiny("seed=1").config)
    assert [path.name for path in finished.path.parent.iterdir()] == [finished.name]
    with monkeypatch.context() as patch:
        patch.setattr("pe_experiments.store.writer.RunWriter.curve", full)  # full after a checkpoint
        with pytest.raises(UserError, match="No space left"):
            run_experiment(tiny("seed=1").config)
    assert run_experiment(tiny("seed=1").config).done == "resumed"


@pytest.mark.parametrize(("steps", "decay", "latest"), [(12, "0.01", 10), (1, "1e30", 1)])
def test_a_diverged_run_is_final_and_names_the_step(steps: int, decay: str, latest: int, tiny: Tiny) -> None:
    """Also if the last update destroys the weights, which no later loss could show."""
    options = ("training.learning_rate=1e30", "training.clip_norm=null", "training.warmup_steps=0")
    options += (f"training.steps={steps}", f"training.weight_decay={decay}")
    result = run_experiment(tiny(*options).config)
    assert result.status == "diverged"
    assert 1 <= result.result["diverged_at"] <= latest
    assert f"step {result.result['diverged_at']}" in result.result["reason"]
    assert run_experiment(tiny(*options).config).done == "found"
    with pytest.raises(UserError, match="diverged"):
        evaluate_run(result.directory.path, {})


@pytest.mark.usefixtures("checkpoint_every_step")
def test_files_that_cannot_be_read_are_named_and_kept(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "RECORD_EVERY", 2)

    def refused(file: Path, content: bytes, sentence: str) -> None:
        """The run is refused while a file has this content, and all its files are kept."""
        before = file.read_bytes()
        file.write_bytes(content)
        files = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
        with pytest.raises(UserError, match=sentence):
            run_experiment(tiny().config)
        assert {path: path.read_bytes() for path in files} == files
        file.write_bytes(before)

    run = interrupted(tiny(), 9)
    damaged = run.metrics.read_bytes().replace(b"\n2,", b"\n\xff,", 1)
    refused(run.metrics, damaged, "metrics.csv is damaged")
    checkpoint = torch.load(run.checkpoint, weights_only=True)
    weights = checkpoint["state_dict"]
    checkpoint["state_dict"] = {name: torch.zeros(3, *value.shape) for name, value in weights.items()}
    other = BytesIO()
    torch.save(checkpoint, other)
    refused(run.checkpoint, other.getvalue(), "last.ckpt contains the weights of another model; delete it")
    run.metrics.unlink()  # as the first sentence says
    assert run_experiment(tiny().config).done == "resumed"
    refused(run.result, run.result.read_bytes()[:50], r"result\.json is damaged.*rerun=true")
    run.result.unlink()
    refused(run.checkpoint, run.checkpoint.read_bytes()[:1000], r"last\.ckpt is damaged.*rerun=true")
    before = run.curve.read_bytes()
    assert run_experiment(tiny().config).status == "completed"  # only the evaluation is repeated
    assert run.curve.read_bytes() == before
