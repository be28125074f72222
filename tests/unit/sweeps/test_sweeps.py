"""Executors of a sweep, and the loop that waits for their futures."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pe_experiments.configuration.experiment import Experiment
from pe_experiments.configuration.schema import ProcessesConfig
from pe_experiments.store.csv_files import METRICS, to_csv
from pe_experiments.store.directory import State
from pe_experiments.store.status import Run
from pe_experiments.sweeps import launch
from pe_experiments.sweeps.executors import Outcome, Processes, RunCall, executor_for, gpus
from pe_experiments.sweeps.launch import Job
from pe_experiments.terminal import console
from tests.synthetic import fading, write_run

Tiny = Callable[..., Experiment]


def test_the_command_that_repeats_one_run_of_a_preset_sets_the_mode() -> None:
    job = Job(["sweep=x", "pe=none"], ["--config-dir", "d"])
    assert job.command[2:] == ["--config-dir", "d", "hydra.mode=RUN", "sweep=x", "pe=none"]


@pytest.mark.parametrize(("threads", "workers"), [(1, 8), (3, 2), (99, 1)])
def test_the_number_of_simultaneous_runs_follows_from_the_cores(
    threads: int, workers: int, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(8)), raising=False)
    monkeypatch.setattr("pe_experiments.sweeps.executors.Processes", len)
    settings = ProcessesConfig(max_runs=9, jobs=None, jobs_per_device=1)
    config = tiny(f"trainer.threads={threads}", "trainer.accelerator=cpu").config
    assert executor_for("processes", settings, config) == workers


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
    jobs: int | None, jobs_per_device: int, workers: str, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pe_experiments.sweeps.executors.gpus", lambda: tuple("012"))
    monkeypatch.setattr("pe_experiments.sweeps.executors.Processes", "".join)
    settings = ProcessesConfig(max_runs=9, jobs=jobs, jobs_per_device=jobs_per_device)
    assert executor_for("processes", settings, tiny().config) == workers


def visible_gpu(fails: bool) -> str | None:
    """Return the GPU of this worker, or kill it."""
    if fails:
        os.kill(os.getpid(), signal.SIGKILL)
    return os.environ.get("CUDA_VISIBLE_DEVICES")


@pytest.mark.slow
def test_a_worker_takes_the_gpu_of_the_killed_one_whose_place_it_takes() -> None:
    executor = Processes(["5", "7"])
    calls = [partial(visible_gpu, fails) for fails in (True, False, True, False, False, False)]
    futures = executor.submit(calls)  # type: ignore[arg-type]
    try:
        results = {future.result() for future in futures if future.exception() is None}
    finally:
        executor.stop()
    assert results <= {"5", "7"}
    assert results


class Scripted:
    """An executor that calls the next of some functions whenever the launcher looks at its futures."""

    poll_seconds = 0.0

    def __init__(self, looks: list[Callable[[list[Future[Any]]], object]]):
        self.looks = looks
        self.futures: list[Future[Any]] = []
        self.stopped = 0

    def submit(self, calls: Sequence[RunCall]) -> list[Future[Any]]:
        self.futures = [Future() for _ in calls]
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
    jobs = [Job([], run=Run(experiment.config), state=State.NEW) for experiment in experiments]
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
    launch._execute(jobs, executor, "s", ())
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


@pytest.mark.parametrize(
    "option", ["evaluation.examples=9", "evaluation.save=true", "evaluation.lengths=[5]"]
)
def test_only_the_published_evaluation_counts_as_published(option: str, tiny: Tiny) -> None:
    run, other = Run(tiny().config), Run(tiny(option).config)
    examples = run.config.evaluation.examples
    published = {run.identity.key: {(length, examples) for length in run.experiment.evaluation_lengths}}
    states = []
    for requested in (run, other):
        job = Job([], run=requested)
        launch._read_state(job, requested, lambda results_dir, study: published)
        states.append(job.state)
    assert states == [State.PUBLISHED, State.NEW]


@pytest.mark.slow
def test_a_call_runs_in_the_directory_of_the_sweep(tiny: Tiny, tmp_path: Path) -> None:
    here = os.getcwd()
    path = list(sys.path)
    try:
        outcome = RunCall(tiny("results_dir=here").config, ["train"], directory=str(tmp_path))()
        assert Path.cwd() == tmp_path
    finally:
        os.chdir(here)
        sys.path[:] = path
    assert outcome.error == ""
    assert list((tmp_path / "here" / "runs").iterdir())
