"""Sweeps: which runs they have, how many run at once, and what they report."""

from __future__ import annotations

import math
import multiprocessing
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import pytest
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.utils import JobReturn, JobStatus
from hydra.types import RunMode
from omegaconf import OmegaConf

from pe_experiments.configuration.schema import ProcessesConfig, RayConfig, SubmititConfig
from pe_experiments.store.csv_files import METRICS, to_csv
from pe_experiments.sweeps.engines import LocalEngine, Order, engine_for, gpus, outcome_of, parallel_runs
from pe_experiments.sweeps.expansion import expand
from pe_experiments.sweeps.jobs import Job
from pe_experiments.sweeps.launch import launch
from pe_experiments.terminal import console
from pe_experiments.terminal.errors import UserError
from pe_experiments.terminal.files import CONFIG_DIR

LENGTHS = "evaluation.lengths=[1,2]"
CONFIG: dict[str, Any] = {
    "pe": {"_target_": "pe_experiments.encodings.base.PositionalEncoding"},
    "seed": 0,
    "study": "s",
    "training": {"steps": 100},
}


def expanded(*typed: str) -> list[list[str]]:
    """Return the runs of ``train.py -m TYPED``, each as a list of overrides."""
    with initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        of_sweep = [text for text in typed if text.startswith(("hydra", "sweep="))]
        config = loader.load_configuration("config", of_sweep, RunMode.MULTIRUN)
        params: Any = OmegaConf.to_container(config.hydra.sweeper.params)
        return expand([text for text in typed if not text.startswith("hydra")], params, loader, config)


SEED_FIRST = [["seed=3", "pe=none"], ["seed=3", "pe=rope"], ["seed=1", "pe=none"], ["seed=1", "pe=rope"]]


@pytest.mark.parametrize(
    ("typed", "runs"),
    [
        (["pe=none,rope", "seed=3,1"], SEED_FIRST),
        (["pe=none,none", "seed=range(2)"], [["seed=0", "pe=none"], ["seed=1", "pe=none"]]),
        (["evaluation.lengths=[1,2]", "pe=none,rope"], [[LENGTHS, "pe=none"], [LENGTHS, "pe=rope"]]),
        (["pe=glob(c*)"], [["pe=cope"], ["pe=cpb_linear"], ["pe=cpb_log"]]),
        (["pe=glob(rope_n*,exclude=*temperature)"], [["pe=rope_nope"], ["pe=rope_ntk"]]),
    ],
)
def test_a_sweep_has_every_combination_once_and_finishes_seed_by_seed(
    typed: list[str], runs: list[list[str]]
) -> None:
    assert expanded(*typed) == runs


def test_typed_values_replace_those_of_a_preset() -> None:
    runs = expanded("sweep=text", "bank/encoding=rope", "seed=1", "training.learning_rate=0.1,0.2")
    assert runs == [
        ["seed=1", "bank/encoding=rope", f"training.learning_rate={rate}", "sweep=text"]
        for rate in (0.1, 0.2)
    ]
    assert len(expanded("sweep=bank_v2")) == 12 * 6 * 12 * 2


def test_an_encoding_of_the_bank_replaces_those_of_a_preset() -> None:
    runs = expanded("sweep=first_look", "bank/encoding=fox")
    assert len(runs) == 1
    assert "bank/encoding=fox" in runs[0]
    assert not any(text.startswith("pe=") for text in runs[0])


@pytest.mark.parametrize(
    ("typed", "sentence"),
    [
        (["training.learning_rate=interval(0,1)"], r"interval\(0,1\): a sweep needs a list of values"),
        (["pe=none,rop"], r"pe=rop is not a choice\. Did you mean rope"),
        (["pe=glob(zzz*)"], r"pe=glob\(zzz\*\): no choice has such a name"),
        (["dry_run=true,false"], "dry_run takes one value"),
        (["sweep=text", "pe=rope"], "bank/encoding sets the encoding"),
        (["sweep=text", "positions=random_offset"], "bank/encoding sets the encoding"),
    ],
)
def test_values_that_are_not_a_sweep_are_refused(typed: list[str], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        expanded(*typed)


def test_a_user_encoding_can_take_part_in_the_bank() -> None:
    (run,) = expanded("sweep=text", "bank/encoding=own", "pe=my.X", "seed=0", "training.learning_rate=1")
    assert {"bank/encoding=own", "pe=my.X"} <= set(run)


@pytest.mark.parametrize(
    ("typed", "runs"),
    [
        (["seed=range(0,10)", "pe=none,rope,alibi"], 30),
        (["seed=range(0,1,0.01)"], 100),
        (["seed=range(100,0,-10)", "pe=none,rope,alibi"], 30),
        (["seed=shuffle(range(0,1000000000000))"], 10**12),
    ],
)
def test_runs_are_counted_before_they_are_listed(typed: list[str], runs: int) -> None:
    with pytest.raises(UserError, match=rf"has {runs} runs, more than hydra.launcher.max_runs=29;"):
        expanded(*typed, "hydra.launcher.max_runs=29")


def test_the_command_that_repeats_one_run_of_a_preset_sets_the_mode() -> None:
    command = Job(("sweep=x", "pe=none")).single_run_command(["--config-dir", "d"])
    assert command[2:] == ["--config-dir", "d", "hydra.mode=RUN", "sweep=x", "pe=none"]


def settings(**changes: Any) -> ProcessesConfig:
    return ProcessesConfig(**{"jobs": None, "jobs_per_device": 1, "max_runs": 9} | changes)


def test_processes_take_turns_on_the_gpus() -> None:
    workers = LocalEngine(4, ("0", "3")).workers
    assert [worker.gpu for worker in workers] == ["0", "3", "0", "3"]


def test_the_number_of_simultaneous_runs_follows_from_cores_and_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(8)), raising=False)
    free = settings(jobs_per_device=2)
    two = settings(jobs_per_device=2, jobs=2)
    assert [parallel_runs(free, (), threads=count) for count in (1, 3, 99)] == [8, 2, 1]
    assert parallel_runs(free, ("0", "1"), threads=1) == 4
    assert parallel_runs(two, (), threads=1) == 2
    assert parallel_runs(two, ("0",), threads=1) == 2


@pytest.mark.parametrize(
    ("visible", "count", "names"),
    [
        (None, 2, ("0", "1")),
        ("2,GPU-5", 2, ("2", "GPU-5")),
        ("3,-1,4", 1, ("3",)),
        ("", 0, ()),
        (None, 0, ()),
    ],
)
def test_gpus_follow_cuda_visible_devices(
    visible: str | None, count: int, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: count)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpus() == names


def job(folder: Path, name: str, state: str = "new") -> Job:
    new_job = Job((), 0, CONFIG | {"results_dir": str(folder)}, state, name)
    new_job.run.path.mkdir(parents=True)
    return new_job


def order() -> Order:
    return Order(b"", [], 0, [])


class Scripted:
    """An engine that calls the next of some functions whenever the launcher looks at its futures."""

    poll_seconds = 0.0

    def __init__(self, looks: list[Callable[[list[Future[Any]]], object]]):
        self.looks = looks
        self.ended = 0

    def submit(self, orders: Any) -> list[Future[Any]]:
        self.futures: list[Future[Any]] = [Future() for _ in orders]
        return self.futures

    def look(self, seconds: float) -> None:
        self.looks.pop(0)(self.futures)

    def end(self) -> None:
        self.ended += 1


def test_the_time_left_is_counted_in_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "LINE_SECONDS", 0.0)
    monkeypatch.setattr("pe_experiments.sweeps.launch.PROGRESS_SECONDS", 0.0)
    clock = [0.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: clock[0])
    done, half, begun, waiting = (job(tmp_path, name) for name in "abcd")
    half.run.metrics.write_text(to_csv(METRICS, [{"step": 30}]))  # where it resumes
    for finished in (done, half, begun):
        finished.run.result.touch()
    display = console.Lines()

    def starting_up(futures: list[Future[Any]]) -> None:
        half.run.metrics.write_text(to_csv(METRICS, [{"step": 40}]))

    def first_look(futures: list[Future[Any]]) -> None:
        clock[0] = 30.0
        futures[0].set_result({"state": "finished", "reason": "", "output": ["a: finished"]})
        half.run.metrics.write_text(to_csv(METRICS, [{"step": 80}]))

    def second_look(futures: list[Future[Any]]) -> None:
        futures[1].set_result({"state": "finished", "reason": "", "output": ["take note", "b: finished"]})
        futures[2].set_result({"state": "diverged", "reason": "loss is nan"})
        futures[3].set_exception(RuntimeError("node lost"))

    engine = Scripted([starting_up, first_look, second_look])
    monkeypatch.setattr("pe_experiments.sweeps.launch.time.sleep", engine.look)
    jobs = {each: order() for each in (done, half, begun, waiting)}
    launch(jobs, engine, "s", display)  # type: ignore[arg-type]
    assert capsys.readouterr().out.splitlines() == [
        "s 40/400  4 to go",
        "a: finished",
        "s 180/400  1 done, 3 to go, 47 s left",
        "take note",
        "b: finished",
        "c: diverged (loss is nan)",
        "d: failed (its job ended early: node lost)",
        "s 400/400  3 done, 1 failed, 0 s left",
    ]
    assert engine.ended == 1
    assert [console.duration(s) for s in (3, 100, 7200)] == ["3 s", "2 min", "2.0 h"]


@pytest.mark.parametrize("kind", ["slurm", "ray"])
def test_a_missing_library_is_named_with_its_installation(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitit = SubmititConfig(max_runs=9, timeout_min=1, max_num_timeout=1, parameters={})
    config = submitit if kind == "slurm" else RayConfig(max_runs=9, jobs=1, address=None)
    for name in ("submitit", "ray"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match=rf'hydra/launcher={kind}: .* pip install -e "\.\[cluster\]"'):
        engine_for(kind, config, 1, False, tmp_path)


def test_a_finished_run_without_a_result_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its worker imported other code than the launching process."""
    lost = job(tmp_path, "a")
    engine = Scripted([lambda futures: futures[0].set_result({"state": "finished", "reason": ""})])
    monkeypatch.setattr("pe_experiments.sweeps.launch.time.sleep", engine.look)
    launch({lost: order()}, engine, "s", console.Display())  # type: ignore[arg-type]
    assert lost.state == "failed"
    assert "edited after the sweep began" in lost.reason


def test_a_process_that_starts_while_all_are_ended_ends_too(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = LocalEngine(1)
    ending = threading.Thread(target=engine.end)
    start = SpawnProcess.start

    def start_late(process: SpawnProcess) -> None:
        ending.start()
        while not engine.workers[0]._killed:
            time.sleep(0.01)
        start(process)

    monkeypatch.setattr("pe_experiments.sweeps.engines.SPAWN", multiprocessing.get_context("spawn"))
    monkeypatch.setattr(SpawnProcess, "start", start_late)
    (future,) = engine.submit([order()])
    assert future.result(60)["reason"] == "its process was killed (is there enough memory?)"
    ending.join()


@pytest.mark.slow
def test_a_worker_runs_in_the_directory_of_the_sweep(tmp_path: Path) -> None:
    here = os.getcwd()
    path = list(sys.path)
    try:
        outcome = Order(pickle.dumps(Fails()), [], 0, [], directory=str(tmp_path))()
        assert Path.cwd() == tmp_path
    finally:
        os.chdir(here)
        sys.path[:] = path
    assert (outcome["state"], outcome["output"]) == ("failed", [])
    assert outcome["reason"] == f"in {tmp_path}"


class Fails:
    """An application that fails with its working directory as the message."""

    full_error = False

    def run(self, overrides: list[str], number: int) -> Any:
        raise UserError(f"in {os.getcwd()}")


@dataclass
class Returns:
    """An application whose runs return this validation loss."""

    loss: float
    full_error: bool = False

    def run(self, overrides: list[str], number: int) -> JobReturn:
        returned = JobReturn(overrides=overrides, status=JobStatus.COMPLETED)
        returned.return_value = self.loss
        return returned


@pytest.mark.parametrize(
    ("loss", "state"), [(0.5, "finished"), (math.nan, "finished"), (math.inf, "diverged")]
)
def test_only_a_run_with_an_infinite_loss_has_diverged(
    loss: float, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pe_experiments.terminal.process.set_up", lambda command: None)
    order = Order(pickle.dumps(Returns(loss)), [], 0, ["python"])
    assert outcome_of(order)["state"] == state
