"""A run on several devices: processes of this machine, connected by gloo, share every batch."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
import torch

from pe_experiments.run import run_experiment
from pe_experiments.store.csv_files import read_curve, read_metrics
from pe_experiments.store.directory import RunDirectory
from pe_experiments.terminal.errors import UserError
from pe_experiments.training.device import prepare_device
from tests.conftest import ROOT, TINY, TRAIN, Script, Tiny
from tests.integration.test_sweeps import alive, descendants_of
from tests.integration.test_tracking import check_mirror, run_record
from tests.processes import Started, wait_for

pytestmark = pytest.mark.slow
TWO = ("trainer=ddp", "trainer.accelerator=cpu")  # and two devices
EXACT = ("training.steps=30", "trainer.precision=64-true")


def started(*arguments: str, launcher: tuple[str | Path, ...] = ()) -> Started:
    """Start train.py, which starts the processes of its other devices itself, unless a launcher does."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = (*launcher, TRAIN, *TINY, *arguments)
    return Started(*command, cwd=ROOT, path=[ROOT], environment=environment)


def trained(results: Path, *arguments: str, launcher: tuple[str | Path, ...] = ()) -> RunDirectory:
    """Return the only run in a results directory after train.py with these arguments."""
    started(*arguments, f"results_dir={results}", launcher=launcher).end(code=0)
    (path,) = results.glob("runs/*")
    return RunDirectory(path)


def assert_equal_runs(first: RunDirectory, second: RunDirectory) -> None:
    """Both runs have the same name, training curve and evaluation."""
    assert first.name == second.name
    rows, expected = ([*read_metrics(run.metrics), *read_curve(run.curve)] for run in (first, second))
    assert len(rows) > 4
    for row, expected_row in zip(rows, expected, strict=True):
        assert row.keys() == expected_row.keys()
        for key, value in expected_row.items():
            assert row[key] == (pytest.approx(value, 1e-6, 1e-6) if isinstance(value, float) else value), key


def test_several_devices_train_what_one_trains(script: Script, tmp_path: Path) -> None:
    """Three, with accumulated batches, random ids and parameters that some of them do not use."""
    options = (
        *EXACT, "pe=tests.integration.user_encodings.UsedByFew", "positions=random_subset",
        "training.batching=single_length",
        "trainer.accumulate_grad_batches=3",
    )  # fmt: skip
    several = trained(tmp_path / "several", *TWO, "trainer.devices=3", *options)
    script("train", *TINY, *options, "trainer=cpu", f"results_dir={tmp_path / 'one'}").succeeded()
    (path,) = (tmp_path / "one").glob("runs/*")
    assert_equal_runs(several, RunDirectory(path))


def test_torchrun_may_start_the_processes_and_they_are_one_wandb_run(tmp_path: Path) -> None:
    torchrun = tmp_path / "torchrun.py"
    torchrun.write_text("from torch.distributed.run import main\nmain()\n")
    run = trained(tmp_path, *TWO, "logger=wandb", launcher=(torchrun, "--standalone", "--nproc_per_node=2"))
    assert len(list(run.path.glob("wandb/offline-run-*"))) == 1
    check_mirror(run)
    assert run_record(run).run_id == run.name


@pytest.mark.parametrize("how", ["a process is killed", "Ctrl-C"])
def test_an_ended_process_ends_the_others_and_the_run_resumes(how: str, tmp_path: Path) -> None:
    options = (*TWO, "pe=tests.integration.user_encodings.Slow", "training.steps=150")
    slow = tmp_path / "slow"
    slow.touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLOW_TRAINING", str(slow))
        process = started(*options, f"results_dir={tmp_path}")
        wait_for(lambda: list(tmp_path.glob("runs/*/checkpoints/last.ckpt")), process)
        others = descendants_of(process.pid)
        assert others
        if how == "Ctrl-C":
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        else:
            os.kill(others[0], signal.SIGKILL)
        killed_at = time.monotonic()
        ended = process.end()
    assert time.monotonic() - killed_at < 120  # not gloo's half an hour
    assert ended.returncode != 0
    if how == "Ctrl-C":
        assert "error: interrupted; the same command resumes from the last checkpoint\n" in ended.stderr
    wait_for(lambda: not any(map(alive, others)))
    if how == "Ctrl-C":
        resumed = trained(tmp_path, *options)
        result = resumed.read_result()
        assert result
        assert result["resumed_from"] > 0


def test_a_diverging_loss_ends_all_processes(tmp_path: Path) -> None:
    diverging = ("training.learning_rate=1e30", "training.clip_norm=null")
    process = started(*TWO, *diverging, f"results_dir={tmp_path}")
    wait_for(lambda: descendants_of(process.pid), process)
    others = descendants_of(process.pid)
    assert ": diverged (" in process.end().stdout
    wait_for(lambda: not any(map(alive, others)))


@pytest.mark.parametrize(
    ("devices", "options", "sentence"),
    [
        (
            2,
            [*TWO, "training.batch_size=1"],
            r"training\.batch_size=1 is shared by 2 devices; allowed: 2",
        ),
        (1, ["trainer=ddp"], "devices=2: PyTorch finds 1; allowed: 1"),
        (2, ["trainer=fsdp"], r"allowed: training.weight_decay=0, or trainer=ddp"),
    ],
)
def test_devices_that_cannot_train_are_refused(
    devices: int, options: list[str], sentence: str, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    with pytest.raises(UserError, match=sentence):
        prepare_device(tiny(*options).config)


def test_a_process_trains_one_run_on_several_devices(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    config = tiny(*TWO, "trainer.devices=2").config
    with pytest.raises(UserError, match="has trained on several devices before; allowed: one such run"):
        run_experiment(config)
    assert not Path(config.results_dir).exists()


def test_another_rank_leaves_a_finished_run_and_its_evaluation_to_the_first(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_experiment(tiny().config).run
    monkeypatch.setattr("pe_experiments.run.is_other_rank", lambda config: True)
    capsys.readouterr()
    result = run_experiment(tiny("evaluation.lengths=[7]").config)  # a script goes on to its next run
    assert (result.done, result.status, run.evaluations()) == ("found", "completed", [])
    assert capsys.readouterr().out == ""
