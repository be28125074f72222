"""Executors of a sweep, and the loop that waits for their futures."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from pe_experiments.configuration.experiment import Experiment
from pe_experiments.configuration.schema import ProcessesConfig
from pe_experiments.store.csv_files import METRICS, to_csv
from pe_experiments.store.directory import State
from pe_experiments.store.status import Run
from pe_experiments.sweeps import launch
from pe_experiments.sweeps.executors import Outcome, Task, cores_for, executor_for, gpus
from pe_experiments.sweeps.launch import Job
from pe_experiments.terminal import console
from tests.synthetic import fading, write_run

Tiny = Callable[..., Experiment]


def test_the_command_that_repeats_one_run_of_a_preset_sets_the_mode() -> None:
    command = Job(["sweep=x", "pe=none"]).command(["--config-dir", "d"])
    assert command[2:] == ["--config-dir", "d", "hydra.mode=RUN", "sweep=x", "pe=none"]


def test_the_number_of_simultaneous_runs_follows_from_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(8)), raising=False)
    assert [cores_for(threads) for threads in (1, 3, 99)] == [8, 2, 1]


@pytest.mark.parametrize(
    ("visible", "count", "names"),
    [(None, 2, ("0", "1")), ("2,GPU-5", 2, ("2", "GPU-5")), ("3,-1,4", 1, ("3",)), ("", 0, ())],
)
def test_gpus_follow_cuda_visible_devices(
    visible: str | None, count: int, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: count)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpus() == names


@pytest.mark.parametrize(
    ("jobs", "jobs_per_device", "workers"), [(None, 2, "012012"), (2, 2, "01"), (4, 2, "0120"), (9, 1, "012")]
)
def test_runs_share_the_gpus(
    jobs: int | None, jobs_per_device: int, workers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pe_experiments.sweeps.executors.gpus", lambda: tuple("012"))
    monkeypatch.setattr("pe_experiments.sweeps.executors.Processes", "".join)
    settings = ProcessesConfig(max_runs=9, jobs=jobs, jobs_per_device=jobs_per_device)
    assert executor_for("processes", settings, 1, True, tmp_path) == workers


class Scripted:
    """An executor that calls the next of some functions whenever the launcher looks at its futures."""

    poll_seconds = 0.0

    def __init__(self, looks: list[Callable[[list[Future[Any]]], object]]):
        self.looks = looks
        self.futures: list[Future[Any]] = []
        self.stopped = 0

    def submit(self, tasks: Sequence[Task]) -> list[Future[Any]]:
        self.futures = [Future() for _ in tasks]
        return self.futures

    def look(self, seconds: float) -> None:
        self.looks.pop(0)(self.futures)

    def stop(self) -> None:
        self.stopped += 1


def test_outcomes_are_recorded_and_the_time_left_is_counted_in_steps(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "LINE_SECONDS", 0.0)
    monkeypatch.setattr(launch, "PROGRESS_SECONDS", 0.0)
    clock = [0.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: clock[0])
    experiments = [tiny("training.steps=100", f"seed={seed}") for seed in range(4)]
    jobs = [Job([], Run(experiment.config), State.NEW) for experiment in experiments]
    done, half, edited, lost = jobs
    assert half.run
    half.run.directory.path.mkdir(parents=True)

    def saved_steps(step: int) -> None:
        assert half.run
        half.run.directory.metrics.write_text(to_csv(METRICS, [{"step": step}]))

    saved_steps(30)  # where it resumes

    def starting_up(futures: list[Future[Any]]) -> None:
        saved_steps(40)

    def first_look(futures: list[Future[Any]]) -> None:
        clock[0] = 30.0
        write_run(experiments[0], fading(1.0, 0.1))
        futures[0].set_result(Outcome(lines=("take note",)))
        saved_steps(80)

    def second_look(futures: list[Future[Any]]) -> None:
        futures[1].set_result(Outcome(error="it is wrong"))
        futures[2].set_result(Outcome())  # its worker imported other code than the launching process
        futures[3].set_exception(RuntimeError("node lost"))

    executor = Scripted([starting_up, first_look, second_look])
    monkeypatch.setattr("pe_experiments.sweeps.launch.time.sleep", executor.look)
    launch._execute(jobs, [], executor, "s", ())
    assert capsys.readouterr().out.splitlines() == [
        "s 40/400  4 remaining",
        "take note",
        "s 180/400  1 done, 3 remaining, 47 s left",
        f"{half.name}: failed (it is wrong)",
        f"{edited.name}: failed (its code was edited after the sweep began; repeat the command)",
        f"{lost.name}: failed (its process ended before the run: node lost)",
        "s 400/400  1 done, 3 failed, 0 s left",
    ]
    assert done.state is State.FINISHED
    assert executor.stopped == 1


@pytest.mark.slow
def test_a_task_runs_in_the_directory_of_the_sweep(tiny: Tiny, tmp_path: Path) -> None:
    here = os.getcwd()
    path = list(sys.path)
    try:
        outcome = Task(tiny("results_dir=here").config, ["train"], directory=str(tmp_path))()
        assert Path.cwd() == tmp_path
    finally:
        os.chdir(here)
        sys.path[:] = path
    assert outcome.error == ""
    assert list((tmp_path / "here" / "runs").iterdir())
