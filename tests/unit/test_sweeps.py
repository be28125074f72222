"""The parts of a sweep that can be looked at without running one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from pe_experiments.command_line import composed
from pe_experiments.config import SweepConfig
from pe_experiments.errors import UserError
from pe_experiments.sweeps.engines import LocalEngine
from pe_experiments.sweeps.expansion import Request, _baselines, _in_cases, combinations, value_of, without
from pe_experiments.sweeps.launching import Launching, gpus, side_by_side
from pe_experiments.sweeps.overview import Overview, Watched, duration
from pe_experiments.sweeps.planning import Job
from pe_experiments.sweeps.tuning import Tuning
from pe_experiments.tracking import METRICS, to_csv

SETTINGS: dict[str, Any] = {"jobs": None, "jobs_per_device": 2, "baselines": [], "cases": [], "tune": None}
CONFIG: dict[str, Any] = {
    "pe": {"_target_": "pe_experiments.encodings.base.PositionalEncoding"},
    "seed": 0,
    "study": "s",
    "training": {"steps": 100},
}


def test_what_is_typed_narrows_the_cases() -> None:
    cases = [["task=copy", "model.d_model=16", "pe=none"], ["task=majority", "model.d_model=64", "pe=rope"]]
    run = ("sweep=x", "task=copy", "seed=1")
    assert list(_in_cases(run, cases, ["sweep=x", "task=copy"])) == [
        ("sweep=x", "seed=1", "model.d_model=16", "pe=none", "task=copy")
    ]
    both = list(_in_cases(("seed=1", "model.d_model=8"), cases, ["model.d_model=8"]))
    assert [value_of(case, "task") for case in both] == ["copy", "majority"]
    assert {value_of(case, "model.d_model") for case in both} == {"8"}


def test_a_baseline_takes_over_nothing_of_the_scheme_it_stands_beside() -> None:
    run = ("sweep=versus", "pe=none", "pe._target_=mine.X", "+pe.slope=2", "label=me", "seed=1")
    assert list(_baselines(run, ["rope", "t5"])) == [
        ("sweep=versus", "seed=1", "pe=rope"),
        ("sweep=versus", "seed=1", "pe=t5"),
    ]


def test_overrides_are_read_by_key() -> None:
    assert value_of(("+pe.slope=1", "pe.slope=2"), "pe.slope") == "2"
    assert value_of(("pe.slope=1",), "pe") is None
    assert without(("++a=1", "b=2", "~c"), "a", "c") == ("b=2",)


def test_every_combination_of_what_a_command_stands_for() -> None:
    parse = OverridesParser.create().parse_overrides
    assert list(combinations(parse(["pe=a,b", "seed=range(2)", "x=[1,2]", "~y", "seed=7,8"]))) == [
        ("pe=a", "seed=7", "x=[1,2]", "~y"),
        ("pe=a", "seed=8", "x=[1,2]", "~y"),
        ("pe=b", "seed=7", "x=[1,2]", "~y"),
        ("pe=b", "seed=8", "x=[1,2]", "~y"),
    ]
    with pytest.raises(UserError, match=r"lr=interval.*values it can list"):
        list(combinations(parse(["lr=interval(0,1)"])))


def test_processes_take_turns_on_the_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(
        "subprocess.Popen", lambda *_, env, **__: seen.append(env["CUDA_VISIBLE_DEVICES"]) or None
    )
    engine = LocalEngine(4, tmp_path, ("0", "3"))
    for index in range(4):
        engine._start(index)
    assert seen == ["0", "3", "0", "3"]


def test_as_many_at_once_as_the_machine_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(8)), raising=False)
    free, two = SweepConfig(**SETTINGS), SweepConfig(**SETTINGS | {"jobs": 2})
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


def job(tmp_path: Path, name: str, overrides: tuple[str, ...], loss: str, state: str = "finished") -> Job:
    made = Job(overrides, CONFIG | {"results_dir": str(tmp_path)}, state, name)
    made.run.path.mkdir(parents=True)
    rows = [{"step": 10, "loss": 9, "validation_loss": 0.001}, {"step": 20, "validation_loss": loss}]
    made.run.metrics.write_text(to_csv(METRICS, [*rows, {"step": 30, "loss": 9}]))
    return made


def test_tuning_takes_the_last_loss_on_the_training_lengths(tmp_path: Path) -> None:
    wanted = [(pe, rate, seed) for pe in "ab" for rate in ("1", "2", "3") for seed in "56"]
    requests = [Request((f"pe={p}", f"lr={r}", f"seed={s}", "study=s"), CONFIG) for p, r, s in wanted]
    tuning = Tuning(requests, "lr")
    grid = tuning.grid()
    assert len(grid) == 6
    assert {value_of(one.overrides, "seed") for one in grid} == {"5"}
    assert {value_of(one.overrides, "study") for one in grid} == {"s_grid"}
    losses = {("a", "1"): "0.5", ("a", "2"): "0.2", ("a", "3"): "0.9", ("b", "1"): "0.1", ("b", "2"): "nan"}
    jobs = []
    for index, one in enumerate(grid):
        pe, rate = value_of(one.overrides, "pe"), value_of(one.overrides, "lr")
        state = "failed" if (pe, rate) == ("b", "3") else "finished"
        jobs.append(job(tmp_path, str(index), one.overrides, losses.get((str(pe), str(rate)), "0"), state))
    best = tuning.best(jobs)
    assert best == {("pe=a",): "2", ("pe=b",): "1"}
    assert [(value_of(r.overrides, "lr"), value_of(r.overrides, "seed")) for r in tuning.repeats(best)] == [
        ("2", "5"), ("2", "6"), ("1", "5"), ("1", "6"),
    ]  # fmt: skip
    with pytest.raises(UserError, match="gives no values"):
        Tuning(requests, "other")
    with pytest.raises(UserError, match="study"):
        Tuning([Request(("lr=1",), CONFIG | {"study": None})], "lr")


def test_the_time_left_is_counted_in_steps(tmp_path: Path) -> None:
    overview = Overview("s", found=3)
    done, half, waiting = (job(tmp_path, name, (), "1") for name in "abc")
    overview.started -= 30.0
    overview.watched = [
        Watched(done, tmp_path, first=0, step=100, state="finished"),
        Watched(half, tmp_path, first=30, step=80, state="running"),  # resumed at 30
        Watched(waiting, tmp_path, first=0),
    ]
    overview.counts["finished"] = 1
    assert overview._seconds_left() == pytest.approx(30 / 150 * 120, rel=0.05)
    assert overview._line() == "s: 4 done, 1 running, 1 waiting, 24 s left"
    assert [duration(s) for s in (3, 100, 7200)] == ["3 s", "2 min", "2.0 h"]


@pytest.mark.parametrize("engine", ["slurm", "ray"])
def test_a_missing_library_says_what_brings_it(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = composed("config", [f"engine={engine}", f"results_dir={tmp_path}"])
    for name in ("submitit", "ray"):
        monkeypatch.setitem(sys.modules, name, None)
    launching = Launching(config, SweepConfig(**SETTINGS))
    with pytest.raises(UserError, match=r'is not installed; pip install -e "\.\[cluster\]"'):
        launching._made(tmp_path, 1).carry_out([])
