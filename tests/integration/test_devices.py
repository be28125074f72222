"""A run on several devices: processes of this machine, connected by gloo, share every batch."""

from __future__ import annotations

import multiprocessing
import multiprocessing.process
import os
import re
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from pe_experiments.training.ranks import Ranks
from torch import Tensor, nn

from pe_experiments.configuration.experiment import Experiment
from pe_experiments.encodings import ModelShape, PositionalEncoding
from pe_experiments.run import RunResult, evaluate_run, run_experiment
from pe_experiments.store.csv_files import read_curve, read_metrics
from pe_experiments.tasks.text import FEWEST_BYTES
from pe_experiments.terminal.console import Display
from pe_experiments.terminal.errors import UserError
from pe_experiments.training import ranks
from pe_experiments.training.device import prepare_device
from tests.conftest import ROOT, TINY
from tests.integration.test_tracking import check_mirror, run_record
from tests.interrupted import StopAt
from tests.processes import PATIENCE, run_script, wait_for

pytestmark = pytest.mark.slow
Tiny = Callable[..., Experiment]
CPU = "trainer=cpu"
TWO = ("trainer=ddp", "trainer.accelerator=cpu")  # and two devices
LONGER = ("training.steps=30", "evaluation.examples=250")


class UsedByFew(PositionalEncoding):
    """Adds a parameter to sequences of four symbols (10 tokens) alone; most batches leave it unused."""

    def __init__(self, shape: ModelShape):
        super().__init__(shape)
        self.added_D = nn.Parameter(torch.ones(shape.d_model))

    def embed(self, x_BTD: Tensor, positions_BT: Tensor) -> Tensor:
        return x_BTD + self.added_D if x_BTD.shape[1] == 10 else x_BTD


def rows_of(run: RunResult) -> list[dict[str, Any]]:
    assert run.status == "completed", run.result
    return [*read_metrics(run.directory.metrics), *read_curve(run.directory.curve)]


def assert_equal_runs(first: RunResult, second: RunResult) -> None:
    """Both runs have the same training curve and the same evaluation."""
    assert len(rows_of(first)) > 4
    for row, expected in zip(rows_of(first), rows_of(second), strict=True):
        assert row.keys() == expected.keys()
        for key, value in expected.items():
            rounded = pytest.approx(value, rel=1e-9, abs=1e-9) if isinstance(value, float) else value
            assert row[key] == rounded, key


CASES: dict[str, tuple[str, ...]] = {
    "random ids": ("positions=random_subset", "pe=learned", "model=encoder", "model.d_model=16"),
    "accumulated": ("trainer.accumulate_grad_batches=3",),
    "unused": ("pe=none", f"pe._target_={__name__}.UsedByFew", "training.batching=single_length"),
    "three": ("trainer.devices=3",),
}


@pytest.mark.parametrize("case", CASES)
def test_several_devices_train_what_one_trains(case: str, tiny: Tiny, tmp_path: Path) -> None:
    options = ("trainer.precision=64-true", *LONGER, *CASES[case])
    single = run_experiment(
        tiny(*options, CPU, "trainer.devices=1", f"results_dir={tmp_path / 'one'}").config
    )
    devices = [] if case == "three" else ["trainer.devices=2"]
    several = run_experiment(tiny(*TWO, *options, *devices).config)
    assert single.directory.name == several.directory.name
    assert_equal_runs(single, several)


def test_a_language_model_gets_the_same_tables(tiny: Tiny, tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_bytes(bytes((n * n // 7 + n // 50) % 26 + 97 for n in range(FEWEST_BYTES)))
    text = ("task=text", f"task.path={path}", "pe=rope", "training.max_length=24", "evaluation.examples=350")
    options = (*text, "trainer.precision=64-true", "positions=random_offset")
    single = run_experiment(tiny(*options, CPU, f"results_dir={tmp_path / 'one'}").config)
    several = run_experiment(tiny(*options, *TWO).config)
    assert_equal_runs(single, several)
    tables = [(run.directory.path / "text.csv").read_text() for run in (single, several)]
    numbers = [[float(cell) for cell in re.findall(r"[\d.]+", table)] for table in tables]
    assert numbers[1] == pytest.approx(numbers[0])


def test_a_finished_run_is_evaluated_by_all_devices(tiny: Tiny) -> None:
    trained = run_experiment(tiny(CPU).config)
    trainer = tiny(*TWO).config.trainer.model_dump()
    lengths = {"evaluation": {"lengths": [5, 12], "examples": 450}}
    several = evaluate_run(trained.directory.path, {**lengths, "trainer": trainer})
    single = run_experiment(
        tiny(CPU, "evaluation.lengths=[5,12]", "evaluation.examples=450", "rerun=true").config
    )
    assert several.curve == single.curve


def test_two_threads_learn_at_once_how_a_process_ended() -> None:
    for _ in range(10):
        process = ranks.SPAWN.Process(target=time.sleep, args=(PATIENCE,))
        process.start()
        with ThreadPoolExecutor() as threads:
            messages = [threads.submit(_message_about, process) for _ in range(4)]
            process.kill()
        assert all("was killed" in message.result() for message in messages)


def _message_about(process: multiprocessing.process.BaseProcess) -> str:
    while not (message := ranks._find_lost_rank([process], 0.0)):
        pass
    return message


class Kills(Display):
    """Kills the other process of the run after a step."""

    def __init__(self, at: int):
        self.at = at
        self.killed_at = 0.0

    def step(self, done: int) -> None:
        if done == self.at:
            (process,) = multiprocessing.active_children()
            self.killed_at = time.monotonic()
            process.kill()


@pytest.mark.usefixtures("checkpoint_every_step")
@pytest.mark.parametrize("again", [TWO, (CPU,)])
def test_a_killed_process_ends_the_run_and_the_run_resumes(
    again: tuple[str, ...], tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "NOTICE_SECONDS", PATIENCE)  # past which the process ends itself
    options = ("training.steps=30", "trainer.precision=64-true")
    uninterrupted = run_experiment(tiny(*options, CPU, f"results_dir={tmp_path / 'uninterrupted'}").config)
    display = Kills(23)
    killed = run_experiment(tiny(*options, *TWO).config, display)
    assert time.monotonic() - display.killed_at < PATIENCE  # not gloo's half an hour
    assert killed.status == "error"
    assert "device 1 (of 2, from 0) was killed; the same command resumes" in killed.result["reason"]
    resumed = run_experiment(tiny(*options, *again).config)
    assert (resumed.done, resumed.result["resumed_from"]) == ("resumed", 20)
    assert_equal_runs(uninterrupted, resumed)


def test_ctrl_c_leaves_no_process(tiny: Tiny) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_experiment(tiny(*TWO).config, StopAt(1, KeyboardInterrupt()))
    wait_for(lambda: not multiprocessing.active_children())


def test_a_diverging_loss_ends_all_processes(tiny: Tiny) -> None:
    result = run_experiment(tiny(*TWO, "training.learning_rate=1e30", "training.clip_norm=null").config)
    assert result.status == "diverged"


def test_two_devices_are_one_wandb_run(tiny: Tiny) -> None:
    result = run_experiment(tiny(*TWO, "logger=wandb").config)
    assert len(list(result.directory.path.glob("wandb/offline-run-*"))) == 1
    check_mirror(result.directory)
    assert run_record(result.directory).run_id == result.directory.name


def test_fewer_rows_than_devices_are_refused(tiny: Tiny) -> None:
    with pytest.raises(UserError, match=r"training\.batch_size=1 is shared by 2 devices; allowed: 2 or more"):
        prepare_device(tiny(*TWO, "training.batch_size=1").config)


def test_more_devices_than_gpus_are_refused(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(UserError, match=r"devices=2: PyTorch finds 1; allowed: 1"):
        prepare_device(tiny("trainer=ddp").config)


def test_fsdp_needs_a_weight_decay_of_0(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UserError, match=r"allowed: training.weight_decay=0, or trainer=ddp"):
        prepare_device(tiny("trainer=fsdp").config)
    assert prepare_device(tiny("trainer=fsdp", "training.weight_decay=0").config) == "cuda"


def test_several_nodes_need_a_launcher_of_the_processes(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"num_nodes=2: start one process for each device, with srun"):
        Ranks(tiny(*TWO, "trainer.num_nodes=2").config.trainer, "cpu")
    for key, value in slurm(0).items():
        monkeypatch.setenv(key, value)
    with pytest.raises(UserError, match=r"num_nodes is 3, and 2 processes were started; start 3"):
        Ranks(tiny(*TWO, "trainer.devices=3").config.trainer, "cpu")


def slurm(rank: int) -> dict[str, str]:
    """The variables of Slurm in one of two processes on a node."""
    variables = {
        "JOB_ID": "4321", "JOB_NAME": "run", "NTASKS": "2", "NTASKS_PER_NODE": "2", "NODELIST": "localhost",
        "PROCID": str(rank), "LOCALID": str(rank), "NODEID": "0",
    }  # fmt: skip
    return {f"SLURM_{key}": value for key, value in variables.items()}


@pytest.mark.parametrize("refused", [False, True])
def test_processes_that_slurm_starts(refused: bool, tiny: Tiny, results: Path) -> None:
    """If rank 0 refuses the configuration, rank 1 ends, too."""
    options = [*TINY, *TWO, f"results_dir={results}"]
    if refused:
        options += ["model.d_model=1000000", "model.num_heads=10"]

    def started(rank: int) -> subprocess.CompletedProcess[str]:
        environment = os.environ | slurm(rank) | {"MASTER_PORT": "23457"}
        return run_script(ROOT / "scripts" / "train.py", *options, cwd=ROOT, environment=environment)

    with ThreadPoolExecutor() as threads:
        first, second = threads.map(started, (0, 1))
    assert (second.stdout, second.stderr) == ("", "")
    if refused:
        assert first.returncode == 1
        assert "training needs about" in first.stderr
        return
    assert (first.returncode, second.returncode) == (0, 0), first.stderr
    assert first.stdout.count("run:  ") == 1
    single = run_experiment(tiny(CPU, f"results_dir={results / 'one'}").config)
    (run,) = (results / "runs").iterdir()
    assert run.name == single.directory.name
