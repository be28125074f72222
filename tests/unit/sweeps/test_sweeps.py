"""The runs of a sweep of several grids, its executors, and the loop that waits for their futures."""

from __future__ import annotations

import os
import signal
import sys
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import pytest

from hydra_plugins.pe_experiments.sweeps import grid_runs
from pe_experiments.configuration.schema import ProcessesConfig
from pe_experiments.store.directory import State
from pe_experiments.store.requested import Run
from pe_experiments.sweeps import launch
from pe_experiments.sweeps.executors import Processes, RunCall, RunOutcome, executor_for, gpus
from pe_experiments.sweeps.launch import Job
from tests.conftest import Tiny


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


def test_a_run_without_a_result_under_its_name_was_edited_during_the_sweep(tiny: Tiny) -> None:
    """Its worker imported other code than the launching process."""
    run = Run(tiny().config)
    job = Job([], run=run, state=State.NEW)
    future: Future[RunOutcome] = Future()
    future.set_result(RunOutcome())
    launch._record(job, run, future)
    assert job.state is State.FAILED
    assert job.reason.startswith("its code was edited after the sweep began")


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


PARAMS = {"seed": "0,1"}
GRIDS = [
    {"task": "copy,lag", "pe": "none,rope"},
    {"task": "copy", "pe": "rope", "positions": "random_subset"},
    {"task": "lag", "pe": "fox", "pe.initial_bias": 4.0, "seed": 2},
]


def runs(*typed: str) -> set[str]:
    return {" ".join(sorted(run)) for run in grid_runs(PARAMS, GRIDS, typed)}


def test_a_sweep_has_every_combination_of_each_grid() -> None:
    assert len(grid_runs(PARAMS, GRIDS)) == len(runs()) == 2 * (4 + 1) + 1
    assert "pe.initial_bias=4.0 pe=fox seed=2 task=lag" in runs()
    assert grid_runs(PARAMS, []) == [["seed=0"], ["seed=1"]]


@pytest.mark.parametrize(
    ("typed", "number"),
    [
        (("pe=rope",), 2 * (2 + 1)),  # of the first grid and the second
        (("pe=fox",), 1),
        (("pe=rope", "task=lag"), 2),
        (("pe=alibi",), 2 * 2),  # in no grid, so it takes the place of the first
        (("training.steps=9",), 11),
        (("seed=0",), 4 + 1),
        (("+pe.base=2",), 11),
    ],
)
def test_what_is_typed_selects_or_replaces(typed: tuple[str, ...], number: int) -> None:
    chosen = runs(*typed)
    assert len(chosen) == number
    assert all(text in run for run in chosen for text in typed)


def test_grids_do_not_repeat_a_run() -> None:
    grids = [{"task": "copy", "pe": "rope"}, {"pe": "rope", "task": "copy,lag"}]
    assert len(grid_runs({}, grids)) == 2
