"""Sweeps: killed, interrupted, doubled, and failing in part."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from itertools import product
from pathlib import Path

import pandas as pd
import pytest

from pe_experiments.store.csv_files import TRAINING_COLUMNS, to_csv
from tests.conftest import ROOT, TINY, TRAIN, Script, Tiny
from tests.processes import Started, wait_for
from tests.synthetic import fading, write_run

THREE = ("pe=learned", "positions=consecutive,random_offset,random_subset", "study=s")


def everything(results: Path) -> dict[str, bytes]:
    """All that a sweep is for: the curves of every run and the tables, but for how long a step took."""
    files = [
        *results.glob("runs/*/metrics.csv"),
        *results.glob("runs/*/extrapolation.csv"),
        results / "s" / "curves.csv",
    ]
    table = pd.read_csv(results / "s" / "table.csv", dtype=str).drop(columns="seconds_per_step").to_csv()
    return {str(path.relative_to(results)): path.read_bytes() for path in files} | {"table": table.encode()}


def finished(results: Path) -> list[str]:
    return [path.parent.name for path in results.glob("runs/*/result.json")]


def descendants_of(pid: int) -> list[int]:
    """All descendants of a process that are alive."""
    listed = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True).stdout
    children = [int(child) for child in listed.split()]
    return children + [other for child in children for other in descendants_of(child)]


@pytest.mark.slow
def test_ctrl_c_ends_every_process_and_leaves_runs_that_resume(results: Path, script: Script) -> None:
    """Of an encoding that waits: until there is a checkpoint, runs take time and not the processor."""
    slow = "pe=tests.integration.user_encodings.Slow"
    arguments = ["-m", *TINY, "training.steps=2000", slow, *THREE[1:], f"results_dir={results}"]
    process = Started(TRAIN, *arguments, cwd=ROOT, environment=os.environ | {"SLOW_TRAINING": str(ROOT)})
    wait_for(lambda: list(results.glob("runs/*/checkpoints/last.ckpt")), process)
    workers = descendants_of(process.pid)
    assert workers
    os.killpg(process.pid, signal.SIGINT)
    ended = process.end(code=130)
    assert ended.stderr.startswith("error: interrupted; the same command resumes")
    assert ended.stderr.count("\n") == 1, ended.stderr
    wait_for(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers))
    assert not (results / ".launched").exists()
    listed = script("train", *arguments, "dry_run=true")
    assert listed.out.count("\ninterrupted ") + listed.out.startswith("interrupted ") >= 1
    assert listed.out.count("finished ") == 0


@pytest.mark.slow
def test_two_sweeps_at_once_train_each_run_once(results: Path) -> None:
    arguments = ["-m", *TINY, "training.steps=60", *THREE, "hydra.launcher.jobs=1", f"results_dir={results}"]
    both = [Started(TRAIN, *arguments, cwd=ROOT, forks=True) for _ in range(2)]
    for process in both:
        process.end(code=0)
    environments = [path.read_text() for path in results.glob("runs/*/environment.json")]
    assert len(finished(results)) == len(environments) == 3
    assert not any('"earlier"' in environment for environment in environments)  # none was resumed


@pytest.mark.slow
def test_a_killed_worker_fails_only_its_run(results: Path, script: Script) -> None:
    """The run that ends its process is named; what ran beside it is finished."""
    arguments = (
        "-m", *TINY, f"results_dir={results}", "pe=none",
        "pe._target_=tests.integration.user_encodings.Kills,tests.integration.user_encodings.Recency",
    )  # fmt: skip
    done = script("train", *arguments)
    assert done.code == 1
    assert done.err == "error: its process was killed (is there enough memory?)\n"
    assert [name.split("-")[2] for name in finished(results)] == ["Recency"]
    assert done.out.count("alone: ") == 1


@pytest.mark.slow
def test_failed_runs_are_named_with_a_command_that_repeats_them(results: Path, script: Script) -> None:
    arguments = (
        "-m", *TINY, f"results_dir={results}", "evaluation.lengths=[4,30]", "seed=0,1", "pe=none",
        "pe._target_=tests.integration.user_encodings.FailsFar,tests.integration.user_encodings.Recency",
    )  # fmt: skip
    first = script("train", *arguments)
    assert first.code == 1
    assert first.err.endswith("error: RuntimeError: too far\n")
    assert first.out.count("failed: copy-decoder-FailsFar-s") == 2
    alone = [line.partition("alone: python ")[2] for line in first.out.splitlines() if "alone: " in line]
    assert len(alone) == 2
    again = script("train", *arguments)
    assert again.code == 1
    assert "2 of 4 runs are finished already" in again.out
    assert "resuming at step 12 of 12" in again.out
    path, *words = shlex.split(alone[0])
    assert path == "scripts/train.py"
    assert "error (RuntimeError: too far)" in script("train", *words).out


@pytest.mark.slow
def test_a_combination_that_does_not_apply_is_listed_and_is_no_failure(results: Path, script: Script) -> None:
    arguments = (
        "-m", *TINY, f"results_dir={results}", "model=decoder,encoder", "hydra.launcher.jobs=1", "pe=fox"
    )  # fmt: skip
    dry = script("train", *arguments, "dry_run=true").succeeded()
    assert "is defined for causal models only" in dry
    assert "2 runs: 1 new, 1 not applicable" in dry
    assert not results.exists()
    out = script("train", *arguments).succeeded()
    assert "2 runs: 1 finished, 1 not applicable" in out
    assert len(finished(results)) == 1


@pytest.mark.slow
def test_workers_end_with_a_killed_launching_process(results: Path) -> None:
    arguments = ["-m", *TINY, "training.steps=100000", "pe=none", f"results_dir={results}"]
    process = Started(TRAIN, *arguments, cwd=ROOT)
    wait_for(lambda: list(results.glob("runs/*/metrics.csv")), process)
    workers = descendants_of(process.pid)
    assert any(map(alive, workers))
    process.kill()
    process.end()
    wait_for(lambda: not any(map(alive, workers)))


def alive(pid: int) -> bool:
    """Whether a process runs; one that waits for its parent to take note does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
def test_each_encoding_is_compared_at_its_best_learning_rate(
    results: Path, script: Script, monkeypatch: pytest.MonkeyPatch, tiny: Tiny
) -> None:
    """Of runs that are finished already: the sweep starts none."""
    monkeypatch.setattr("pe_experiments.sweeps.executors.Processes.submit", lambda *_: pytest.fail("started"))
    for pe, seed, rate in product(("none", "sinusoidal"), (0, 1), ("0.00001", "0.003")):
        loss = 0.5 if rate == "0.003" else 2.5
        experiment = tiny(f"pe={pe}", f"seed={seed}", f"training.learning_rate={rate}")
        run = write_run(experiment, fading(1, 0.1), result={"validation_loss": loss})
        run.metrics.write_text(
            to_csv(TRAINING_COLUMNS, [{"step": 12, "loss": loss, "validation_loss": loss}])
        )
    arguments = (
        "-m", *TINY, f"results_dir={results}", "training.learning_rate=0.00001,0.003",
        "pe=none,sinusoidal", "seed=0,1",
    )  # fmt: skip
    out = script("train", *arguments, "study=t").succeeded()
    assert "8 of 8 runs are finished already" in out
    table = pd.read_csv(results / "t" / "table.csv")
    assert list(table["seeds"]) == [2, 2]  # one protocol, whatever each encoding's rate
    page = (results / "t" / "report.html").read_text()
    assert "sinusoidal, copy, decoder</th><td>training.learning_rate</td><td>0.003</td>" in page
    script("train", *arguments, "hydra.callbacks.report.tuned=[]", "study=u")
    assert len(pd.read_csv(results / "u" / "table.csv")) == 4
