"""The parts of a sweep that can be looked at without running one."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pe_experiments import console
from pe_experiments.composition import composed_mapping
from pe_experiments.config import EngineConfig, SweepConfig
from pe_experiments.errors import UserError
from pe_experiments.sweeps.engines import LocalEngine, engine_for, gpus, side_by_side
from pe_experiments.sweeps.expansion import Overrides, combinations, expand, value_of, without
from pe_experiments.sweeps.jobs import Job
from pe_experiments.sweeps.launching import Watch
from pe_experiments.sweeps.tuning import Tuning
from pe_experiments.sweeps.worker import write_note
from pe_experiments.tracking import METRICS, to_csv

SETTINGS: dict[str, Any] = dict(composed_mapping("config", [])["sweep"])
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
    assert without(("++a=1", "b=2", "~c"), "a", "c") == ("b=2",)
    assert Job(("sweep=x", "pe=none")).alone(Path("d"))[2:] == [
        "--config-dir",
        "d",
        "hydra.mode=RUN",
        "sweep=x",
        "pe=none",
    ]


def test_every_combination_of_what_a_command_stands_for() -> None:
    assert combinations(["pe=a,b", "seed=range(2)", "x=[1,2]", "~y", "seed=7,8"], {}) == [
        ("pe=a", "seed=7", "x=[1,2]", "~y"),
        ("pe=a", "seed=8", "x=[1,2]", "~y"),
        ("pe=b", "seed=7", "x=[1,2]", "~y"),
        ("pe=b", "seed=8", "x=[1,2]", "~y"),
    ]
    assert combinations(["pe=glob(r*)"], {"pe": ["none", "rope"]}) == [("pe=rope",)]
    with pytest.raises(UserError, match=r"lr=interval.*values it can list"):
        combinations(["lr=interval(0,1)"], {})


def test_a_class_named_alone_stands_without_the_arguments_of_the_default() -> None:
    alone = composed_mapping("config", ["pe._target_=mine.X", "+pe.slope=0.2", "task._target_=mine.T"])
    assert alone["pe"] == {"_target_": "mine.X", "slope": 0.2}
    assert alone["task"] == {"_target_": "mine.T"}
    beside = composed_mapping("config", ["pe=rope", "pe._target_=mine.X"])
    assert beside["pe"] == composed_mapping("config", ["pe=rope"])["pe"] | {"_target_": "mine.X"}


def test_settings_are_added_changed_and_taken_away() -> None:
    made = composed_mapping("config", ["++pe.base=5", "~label", "+engine.parameters={a: {b: 1}}", "seed='7'"])
    assert made["pe"]["base"] == 5
    assert "label" not in made
    assert made["engine"] == {"kind": "local", "parameters": {"a": {"b": 1}}}
    assert made["seed"] == "7"
    assert composed_mapping("config", [])["label"] is None  # nothing of it stays


def test_processes_take_turns_on_the_gpus() -> None:
    slots = LocalEngine(4, ("0", "3"))._slots
    assert [slot.gpu for slot in slots] == ["0", "3", "0", "3"]


def test_as_many_at_once_as_the_machine_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(8)), raising=False)
    free, two = settings(jobs_per_device=2), settings(jobs_per_device=2, jobs=2)
    assert side_by_side(free, (), threads=1) == 8
    assert side_by_side(free, (), threads=3) == 2
    assert side_by_side(free, (), threads=99) == 1
    assert side_by_side(free, ("0", "1"), threads=1) == 4
    assert side_by_side(two, (), threads=1) == 2
    assert side_by_side(two, ("0",), threads=1) == 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    assert gpus() == ("2", "5")
    for nothing in ("", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", nothing)
        assert gpus() == ()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setenv("PATH", "")
    assert gpus() == ()


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
    tuning = Tuning(runs, settings(tune="lr"), "s")
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
        Tuning(runs, settings(tune="other"), "s")
    with pytest.raises(UserError, match="study"):
        Tuning(runs, settings(tune="lr"), None)


def test_tuning_seeds_are_averaged_and_the_grid_grows_where_the_best_is_its_edge(tmp_path: Path) -> None:
    runs = expand(["pe=a,b,c", "lr=1,2,4", "seed=0,1"], {}, settings())
    tuning = Tuning(runs, settings(tune="lr", tuning_seeds=[100, 101]), "s")
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


def test_the_time_left_is_counted_in_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "LINE_SECONDS", 0.0)
    done, half, waiting = (job(tmp_path, name, (), "1", "waiting") for name in "abc")
    for path in (done.run.metrics, waiting.run.metrics):
        path.unlink()
    notes = tmp_path / "notes"
    notes.mkdir()
    display = console.Lines()
    watch = Watch([done, half, waiting], notes, display)  # the second resumes at step 30
    display._started = time.monotonic() - 30.0
    write_note(notes / "0.json", {"state": "finished"})
    write_note(notes / "1.json", {"state": "running"})
    half.run.metrics.write_text(to_csv(METRICS, [{"step": 80}]))
    watch.look()
    assert capsys.readouterr().out.splitlines() == [
        "a: finished",
        "s 180/300  1 done, 1 running, 1 waiting, 24 s left",
    ]
    assert [console.duration(s) for s in (3, 100, 7200)] == ["3 s", "2 min", "2.0 h"]


@pytest.mark.parametrize("engine", ["slurm", "ray"])
def test_a_missing_library_says_what_brings_it(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = EngineConfig(**composed_mapping("config", [f"engine={engine}"])["engine"])
    for name in ("submitit", "ray"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match=r'is not installed; pip install -e "\.\[cluster\]"'):
        engine_for(config, (), 1, tmp_path)
