"""The parts of a sweep that can be looked at without running one."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import pytest

from pe_experiments.configuration.compose import composed
from pe_experiments.configuration.schema import EngineConfig, SweepConfig
from pe_experiments.store.csv_files import METRICS, to_csv
from pe_experiments.store.directory import read_manifest
from pe_experiments.sweeps.engines import LocalEngine, Order, engine_for, gpus, launch, side_by_side
from pe_experiments.sweeps.expansion import Overrides, combinations, expand, value_of, without
from pe_experiments.sweeps.jobs import Job
from pe_experiments.sweeps.tuning import Tuning
from pe_experiments.terminal import console
from pe_experiments.terminal.errors import UserError

SETTINGS: dict[str, Any] = dict(composed("config", [])["sweep"])
CONFIG: dict[str, Any] = {
    "pe": {"_target_": "pe_experiments.encodings.base.PositionalEncoding"},
    "seed": 0,
    "study": "s",
    "training": {"steps": 100},
}


def settings(**changes: Any) -> SweepConfig:
    return SweepConfig(**SETTINGS | changes)


def test_what_is_typed_narrows_the_cases() -> None:
    cases = [
        ["task=copy", "model.d_model=16", "pe=none"],
        ["task=majority", "model.d_model=64", "pe=rope,alibi"],
    ]
    assert expand(["sweep=x", "task=copy", "seed=1"], {}, settings(cases=cases)) == [
        ("sweep=x", "seed=1", "model.d_model=16", "pe=none", "task=copy")
    ]
    everything = expand(["seed=1", "model.d_model=8"], {}, settings(cases=cases))
    assert [value_of(run, "task") for run in everything] == ["copy", "majority", "majority"]
    assert {value_of(run, "model.d_model") for run in everything} == {"8"}
    with pytest.raises(UserError, match="no case of this sweep has task=lag"):
        expand(["task=lag"], {}, settings(cases=cases))


def test_a_baseline_takes_over_nothing_of_the_scheme_it_stands_beside() -> None:
    typed = ["sweep=baselines", "pe=none", "pe._target_=mine.X", "+pe.slope=2", "label=me", "seed=1"]
    assert expand(typed, {}, settings(baselines=["rope", "t5"])) == [
        tuple(typed),
        ("sweep=baselines", "seed=1", "pe=rope"),
        ("sweep=baselines", "seed=1", "pe=t5"),
    ]


@pytest.mark.parametrize("cases", [[], [["task=copy,lag"], ["task=sort"]]])
def test_all_runs_of_one_seed_come_before_those_of_the_next(cases: list[list[str]]) -> None:
    runs = expand(
        ["seed=3,1", "pe=none"], {"pe": "rope", "seed": "0"}, settings(cases=cases, baselines=["t5"])
    )
    assert len(runs) == 4 * (3 if cases else 1)
    assert [value_of(run, "seed") for run in runs] == ["3"] * (len(runs) // 2) + ["1"] * (len(runs) // 2)


def test_overrides_are_read_by_key() -> None:
    assert value_of(("+pe.slope=1", "pe.slope=2"), "pe.slope") == "2"
    assert value_of(("pe.slope=1",), "pe") is None
    assert without(("++a=1", "b=2", "+c=3"), "a", "c") == ("b=2",)
    assert Job(("sweep=x", "pe=none")).alone(Path("d"))[2:] == [
        "--config-dir",
        "d",
        "hydra.mode=RUN",
        "sweep=x",
        "pe=none",
    ]


def test_every_combination_of_what_a_command_stands_for() -> None:
    assert combinations(["pe=a,b", "seed=range(2)", "x=[1,2]", "seed=7,8"], {}, 99) == [
        ("pe=a", "seed=7", "x=[1,2]"),
        ("pe=a", "seed=8", "x=[1,2]"),
        ("pe=b", "seed=7", "x=[1,2]"),
        ("pe=b", "seed=8", "x=[1,2]"),
    ]
    assert combinations(["pe=glob(r*)"], {"pe": ["none", "rope"]}, 99) == [("pe=rope",)]
    with pytest.raises(UserError, match=r"lr=interval.*values it can list"):
        combinations(["lr=interval(0,1)"], {}, 99)


def test_a_class_named_alone_stands_without_the_arguments_of_the_default() -> None:
    alone = composed("config", ["pe._target_=mine.X", "+pe.slope=0.2", "task._target_=mine.T"])
    assert alone["pe"] == {"_target_": "mine.X", "slope": 0.2}
    assert alone["task"] == {"_target_": "mine.T"}
    beside = composed("config", ["pe=rope", "pe._target_=mine.X"])
    assert beside["pe"] == composed("config", ["pe=rope"])["pe"] | {"_target_": "mine.X"}


def test_settings_are_added_and_changed() -> None:
    made = composed("config", ["++pe.base=5", "label=a", "engine.parameters={a: {b: 1}}", "seed='7'"])
    assert made["pe"]["base"] == 5
    assert made["label"] == "a"
    assert made["engine"] == {"kind": "local", "parameters": {"a": {"b": 1}}}
    assert made["seed"] == "7"
    made["evaluation"]["examples"] = -1
    again = composed("config", [])
    assert (again["label"], again["evaluation"]["examples"] > 0) == (None, True)  # nothing of it stays


def test_processes_take_turns_on_the_gpus() -> None:
    workers = LocalEngine(4, ("0", "3")).workers
    assert [worker.gpu for worker in workers] == ["0", "3", "0", "3"]


def test_as_many_at_once_as_the_machine_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(8)), raising=False)
    free, two = settings(jobs_per_device=2), settings(jobs_per_device=2, jobs=2)
    assert side_by_side(free, (), threads=1) == 8
    assert side_by_side(free, (), threads=3) == 2
    assert side_by_side(free, (), threads=99) == 1
    assert side_by_side(free, ("0", "1"), threads=1) == 4
    assert side_by_side(two, (), threads=1) == 2
    assert side_by_side(two, ("0",), threads=1) == 2


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
def test_gpus_are_those_that_torch_sees(
    visible: str | None, count: int, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: count)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpus() == names


def job(folder: Path, name: str, overrides: Overrides, loss: str, state: str = "finished") -> Job:
    made = Job(overrides, CONFIG | {"results_dir": str(folder)}, state, name)
    made.run.path.mkdir(parents=True)
    rows = [{"step": 10, "loss": 9, "validation_loss": 0.001}, {"step": 20, "validation_loss": loss}]
    made.run.metrics.write_text(to_csv(METRICS, [*rows, {"step": 30, "loss": 9}]))
    return made


def grid_jobs(folder: Path, grid: list[Overrides], losses: dict[tuple[str, str], str]) -> list[Job]:
    """Finished runs with these losses by scheme and rate; without one, failed ones."""
    jobs = []
    for run in grid:
        loss = losses.get((str(value_of(run, "pe")), str(value_of(run, "lr"))))
        state = "failed" if loss is None else "finished"
        name = f"x-s{value_of(run, 'seed')}-{value_of(run, 'pe')}{value_of(run, 'lr')}"
        jobs.append(job(folder, name, run, loss or "0", state))
    return jobs


def test_tuning_takes_the_last_loss_on_the_training_lengths(tmp_path: Path) -> None:
    runs = expand(["pe=a,b", "lr=1,2,4", "seed=5,6", "study=s"], {}, settings())
    tuning = Tuning(runs, settings(tune="lr"), "s", {})
    grid = tuning.grid()
    assert len(grid) == 6
    assert {value_of(run, "seed") for run in grid} == {"5"}
    assert {value_of(run, "study") for run in grid} == {"s_grid"}
    losses = {("a", "1"): "0.5", ("a", "2"): "0.2", ("a", "4"): "0.9", ("b", "1"): "0.1", ("b", "2"): "nan"}
    repeats = tuning.repeats(grid_jobs(tmp_path, grid, losses))
    assert [(value_of(r, "pe"), value_of(r, "lr"), value_of(r, "seed")) for r in repeats] == [
        ("a", "2", "5"), ("b", "1", "5"), ("a", "2", "6"), ("b", "1", "6"),
    ]  # fmt: skip
    with pytest.raises(UserError, match="gives no values"):
        Tuning(runs, settings(tune="other"), "s", {})
    with pytest.raises(UserError, match="study"):
        Tuning(runs, settings(tune="lr"), None, {})


def test_tuning_seeds_are_averaged_and_the_grid_grows_where_the_best_is_its_edge(tmp_path: Path) -> None:
    runs = expand(["pe=a,b,c", "lr=1,2,4", "seed=0,1"], {}, settings())
    tuning = Tuning(runs, settings(tune="lr", tuning_seeds=[100, 101]), "s", {})
    grid = tuning.grid()
    assert [value_of(run, "seed") for run in grid] == ["100"] * 9 + ["101"] * 9
    values = dict(
        zip("abc", (("0.1", "0.5", "0.9"), ("0.9", "0.1", "0.5"), ("0.9", "0.5", "0.1")), strict=True)
    )
    losses = {(pe, lr): loss for pe, by in values.items() for lr, loss in zip("124", by, strict=True)}
    jobs = grid_jobs(tmp_path, grid, losses)
    jobs[0].run.metrics.write_text(to_csv(METRICS, [{"step": 20, "validation_loss": "0.3"}]))
    assert tuning.losses(jobs)[("pe=a",)]["1"] == pytest.approx(0.2)  # of 0.3 and 0.1
    wider = tuning.outwards(jobs)
    assert {(value_of(r, "pe"), value_of(r, "lr")) for r in wider} == {("a", "0.5"), ("c", "8")}
    assert len(wider) == 4
    jobs += grid_jobs(tmp_path, wider, {("a", "0.5"): "0.05", ("c", "8"): "0.2"})
    assert [(value_of(run, "pe"), value_of(run, "lr")) for run in tuning.repeats(jobs)] == [
        ("a", "0.5"), ("b", "2"), ("c", "4"),
    ] * 2  # fmt: skip
    assert {value_of(run, "lr") for run in tuning.outwards(jobs)} == {"0.25"}


def test_a_value_with_a_failed_tuning_seed_is_neither_chosen_nor_noted(tmp_path: Path) -> None:
    runs = expand(["pe=a", "lr=1,2", "seed=0,1"], {}, settings())
    tuning = Tuning(runs, settings(tune="lr", tuning_seeds=[100, 101]), "s", {})
    jobs = grid_jobs(tmp_path, tuning.grid(), {("a", "1"): "0.5", ("a", "2"): "0.1"})
    jobs[1].state = "failed"  # of the value that is better as far as it is known
    for one in jobs:
        result = {"status": "completed", "name": one.name, "label": "a", "task": "copy", "model": "decoder"}
        result |= {"steps": 20, "evaluation": {"lengths": [], "pe": {}}, "seed": int(one.name[3:6])}
        one.config["task"] = {}
        one.run.result.write_text(json.dumps(result))
    assert {value_of(run, "lr") for run in tuning.repeats(jobs)} == {"1"}
    tuning.note(jobs, jobs)
    noted = read_manifest(tmp_path / "s" / "manifest.json")["tuning"][0]
    assert noted["chosen"] == "1"
    assert {row["value"] for row in noted["losses"]} == {"1"}


class Scripted:
    """An engine whose orders end as scripted, one more at each look."""

    look_seconds = 0.0

    def __init__(self, looks: list[Callable[[list[Future[Any]]], object]]):
        self.looks, self.ended = looks, 0

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
    clock = [0.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: clock[0])
    done, half, begun, waiting = (job(tmp_path, name, (), "1", "new") for name in "abcd")
    for path in (done.run.metrics, begun.run.metrics, waiting.run.metrics):
        path.unlink()  # the second resumes at step 30
    display = console.Lines()

    def starting_up(futures: list[Future[Any]]) -> None:
        half.run.metrics.write_text(to_csv(METRICS, [{"step": 40}]))

    def first_look(futures: list[Future[Any]]) -> None:
        clock[0] = 30.0
        futures[0].set_result({"state": "finished", "reason": ""})
        half.run.metrics.write_text(to_csv(METRICS, [{"step": 80}]))

    def second_look(futures: list[Future[Any]]) -> None:
        futures[1].set_result({"state": "finished", "reason": "", "said": ["take note"]})
        futures[2].set_result({"state": "diverged", "reason": "loss is nan"})
        futures[3].set_exception(RuntimeError("node lost"))

    engine = Scripted([starting_up, first_look, second_look])
    monkeypatch.setattr("pe_experiments.sweeps.engines.time.sleep", engine.look)
    launch([done, half, begun, waiting], engine, None, display)  # type: ignore[arg-type]
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


@pytest.mark.parametrize("engine", ["slurm", "ray"])
def test_a_missing_library_says_what_brings_it(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = EngineConfig(**composed("config", [f"engine={engine}"])["engine"])
    for name in ("submitit", "ray"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match=r'is not installed; pip install -e "\.\[cluster\]"'):
        engine_for(config, (), 1, tmp_path)


def test_an_interrupted_sweep_ends_its_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    engine = Scripted([interrupt])
    monkeypatch.setattr("pe_experiments.sweeps.engines.time.sleep", engine.look)
    with pytest.raises(KeyboardInterrupt):
        launch([job(tmp_path, "a", (), "1", "new")], engine, None, console.Display())  # type: ignore
    assert engine.ended == 1


def test_a_process_that_is_just_being_started_when_all_are_ended_ends_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = LocalEngine(1)
    ending, start = threading.Thread(target=engine.end), SpawnProcess.start

    def start_late(process: SpawnProcess) -> None:
        ending.start()
        while not engine.workers[0]._killed:
            time.sleep(0.01)
        start(process)

    monkeypatch.setattr("pe_experiments.sweeps.engines.SPAWN", multiprocessing.get_context("spawn"))
    monkeypatch.setattr(SpawnProcess, "start", start_late)
    (future,) = engine.submit([Order({}, [])])
    assert future.result(60)["reason"] == "its process was killed (is there enough memory?)"
    ending.join()


def test_a_run_is_carried_out_where_the_sweep_was_started(tmp_path: Path) -> None:
    here, path = os.getcwd(), list(sys.path)
    try:
        outcome = Order({"pe": 1}, [], directory=str(tmp_path))()
        assert Path.cwd() == tmp_path
    finally:
        os.chdir(here)
        sys.path[:] = path
    assert (outcome["state"], outcome["said"]) == ("failed", [])
    assert outcome["reason"].startswith("pe=1: expected names with values")


@pytest.mark.parametrize(
    ("typed", "runs"),
    [
        (["seed=range(0,10)", "pe=a,b,c"], 30),
        (["seed=range(0,1,0.01)"], 100),
        (["seed=range(100,0,-10)", "pe=a,b,c"], 30),
        (["seed=shuffle(range(0,1000000000000))"], 10**12),
        (["seed=1,2", "sweep.cases=[]"], None),
    ],
)
def test_runs_are_counted_before_they_are_listed(typed: list[str], runs: int | None) -> None:
    if runs is None:
        assert len(expand(typed, {}, settings(max_runs=2))) == 2
        return
    with pytest.raises(UserError, match=rf"up to {runs} runs, more than sweep.max_runs=29;"):
        expand(typed, {}, settings(max_runs=29))


def test_cases_schemes_and_baselines_count_too() -> None:
    cases, schemes = [["task=copy", "seed=range(0,10)"]], [["pe=rope"], ["pe=none", "label=a,b"]]
    for most, runs in ((9, 10), (29, 30), (59, 60)):
        with pytest.raises(UserError, match=rf"up to {runs} runs"):
            expand([], {}, settings(cases=cases, schemes=schemes, baselines=["t5"], max_runs=most))
    assert len(expand([], {}, settings(cases=cases, schemes=schemes, max_runs=30))) == 30
