"""The parts of a sweep that can be looked at without running one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hydra.errors import HydraException

from pe_experiments.command_line import sentence
from pe_experiments.config import SweepConfig
from pe_experiments.errors import UserError
from pe_experiments.sweeps import memory, worker
from pe_experiments.sweeps.expansion import Request, _baselines, _in_cases, value_of, without
from pe_experiments.sweeps.launching import Launching, gpus, side_by_side
from pe_experiments.sweeps.memory import Memory
from pe_experiments.sweeps.overview import Overview, Watched, duration
from pe_experiments.sweeps.planning import Job
from pe_experiments.sweeps.tuning import Tuning
from pe_experiments.sweeps.worker import claim_device

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


class Crowded(Launching):
    """Eight processes, and one job that kills every process beside its own, as a full machine does."""

    def __init__(self) -> None:
        self.processes, self.local, self.settings = 8, True, SweepConfig(**SETTINGS)
        self.alone: list[str] = []

    def _round(self, jobs: list[Job], folder: Path, overview: Overview, processes: int) -> None:
        if len(jobs) == 1:
            self.alone.append(jobs[0].name)
        killed = False
        for start in range(0, len(jobs), processes):
            side_by_side = jobs[start : start + processes]
            broken = any(job.name == "culprit" for job in side_by_side)
            for job in side_by_side:
                job.state = "waiting" if killed else "lost" if broken else "finished"
            killed = killed or broken


def test_one_killed_process_does_not_make_the_others_run_one_by_one() -> None:
    jobs = [Job((), CONFIG, "new", name=str(number)) for number in range(40)]
    jobs[2].name = "culprit"
    launching = Crowded()
    launching.carry_out(jobs, Overview("s", 0))
    assert [job.name for job in jobs if job.state == "failed"] == ["culprit"]
    assert jobs[2].reason.startswith("its process was killed twice")
    assert {job.state for job in jobs if job.name != "culprit"} == {"finished"}
    assert len(launching.alone) <= 2


def test_a_worker_leaves_with_its_parent_also_while_it_still_imports() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    program = (
        "import importlib, sys, time; from pe_experiments.sweeps import leaving; heavy = ('torch', 'hydra');"
        "print(*[name for name in heavy if name in sys.modules], flush=True);"
        f"importlib.import_module = lambda name: time.sleep(999); leaving.import_all({gone.pid})"
    )
    worker = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (worker.returncode, worker.stdout) == (-signal.SIGKILL, "\n")


def test_overrides_are_read_by_key() -> None:
    assert value_of(("+pe.slope=1", "pe.slope=2"), "pe.slope") == "2"
    assert value_of(("pe.slope=1",), "pe") is None
    assert without(("++a=1", "b=2", "~c"), "a", "c") == ("b=2",)


def test_notes_are_good_for_the_code_they_were_made_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Memory(tmp_path / "s")
    assert first.recall(CONFIG) is None
    first.learn(CONFIG, {"name": "n", "evaluation": "e"})
    first.save()
    assert Memory(tmp_path / "s").recall(CONFIG) == {"name": "n", "evaluation": "e"}
    for change in ({"seed": 1}, {"pe": {"_target_": "pe_experiments.x.Y"}}, {"training": {"steps": 9}}):
        assert Memory(tmp_path / "s").recall(CONFIG | change) is None
    assert Memory(tmp_path / "s").recall(CONFIG | {"study": "t", "rerun": True}) is not None
    stamp = first.path.stat().st_mtime_ns
    Memory(tmp_path / "s").save()  # nothing new: nothing written
    assert first.path.stat().st_mtime_ns == stamp
    monkeypatch.setattr(memory, "code_hash", lambda: "edited")
    assert Memory(tmp_path / "s").recall(CONFIG) is None
    first.path.write_text("{")
    assert Memory(tmp_path / "s").recall(CONFIG) is None


def test_a_scheme_from_outside_is_looked_up_each_time(tmp_path: Path) -> None:
    """Its source may change without the package noticing."""
    notes = Memory(tmp_path)
    for outside in ("mine.X", "pe_experimental.X"):
        config = CONFIG | {"pe": {"inner": [{"_target_": outside}], **CONFIG["pe"]}}
        notes.learn(config, {"name": "n", "evaluation": "e"})
        assert notes.recall(config) is None


def test_gpus_are_filled_evenly_and_never_beyond_their_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = []
    held = []
    for _ in range(4):
        monkeypatch.setattr(worker, "_device", None)  # as in a process of its own
        claim_device(tmp_path, ("0", "3"), 2)
        taken.append(os.environ["CUDA_VISIBLE_DEVICES"])
        held.append(worker._device)
    assert taken == ["0", "3", "0", "3"]
    claim_device(tmp_path, ("0", "3"), 2)  # the process has its place already
    monkeypatch.setattr(worker, "_device", None)
    with pytest.raises(UserError, match=r"sweep\.jobs_per_device"):
        claim_device(tmp_path, ("0", "3"), 2)
    for lock in held:
        assert lock
        lock.release()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")


def test_as_many_at_once_as_the_machine_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("joblib.cpu_count", lambda: 8)
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
    made.run.metrics.write_text(
        f"step,loss,validation_loss,exact_match\n10,9,0.001,1\n20,9,{loss},0\n30,9,,\n"
    )
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


def test_a_missing_launcher_says_what_brings_it() -> None:
    """As Hydra puts it, on the command line and inside our own file for slurm."""
    for text in (
        "In 'hydra/launcher/slurm': Could not find 'hydra/launcher/submitit_slurm'\n\nAvailable options",
        "Could not find 'hydra/launcher/ray'\n\nAvailable options in 'hydra/launcher':\n\tbasic",
    ):
        assert 'pip install -e ".[cluster]"' in sentence(HydraException(text))
