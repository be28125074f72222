"""A rerun trains beside the finished run and takes its place when it has a result."""

from __future__ import annotations

import shutil
from itertools import count
from pathlib import Path

import pytest

from pe_experiments.store.directory import TRAINED, RunDirectory, State
from pe_experiments.store.requested import Run
from tests.conftest import Tiny
from tests.processes import killed_at
from tests.synthetic import fading, write_run

NEW = "new\n"


def content(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def rerun(run: Run, status: str) -> None:
    """Write what a rerun writes, in the same order. It ends with this status or is interrupted."""
    finished, new = run.final_directory, run.directory
    with new.locked():
        shutil.copyfile(finished.config, new.config)
        new.metrics.write_text(NEW)
        new.checkpoint.parent.mkdir(exist_ok=True)
        new.checkpoint.write_text(NEW)
        shutil.copyfile(finished.curve, new.curve)
        if status == "interrupted":
            raise KeyboardInterrupt
        new.write_result({**(finished.read_result() or {}), "status": status})
        if run.state in TRAINED:
            finished.replace_by(new)


@pytest.fixture
def finished(tiny: Tiny) -> RunDirectory:
    run = write_run(tiny(), fading(1, 0))
    run.checkpoint.parent.mkdir()
    run.checkpoint.write_text("old")
    (run.path / "evaluations" / "a").mkdir(parents=True)
    (run.path / "evaluations" / "a" / "result.json").write_text("{}")
    return run


@pytest.mark.slow
@pytest.mark.parametrize("status", ["completed", "diverged", "error"])
def test_killed_anywhere_a_rerun_leaves_the_old_result_or_the_new_run(
    status: str, finished: RunDirectory, tiny: Tiny
) -> None:
    before = content(finished.path)
    runs = finished.path.parent
    shutil.copytree(runs, runs.parent / "backup")
    for operation in count():
        killed = killed_at(operation, lambda: rerun(Run(tiny("rerun=true").config), status))
        with Run(tiny().config).directory.locked():  # as the next command that trains begins
            pass
        assert Run(tiny().config).state == (State.DIVERGED if status == "diverged" else State.FINISHED) or (
            content(finished.path) == before
        )
        now = content(finished.path)
        assert not finished.rerun.path.exists() or finished.rerun.state() not in TRAINED
        if now != before:
            assert status != "error"
            assert set(now) >= {"config.yaml", "result.json", "checkpoints/last.ckpt"}
            assert now["metrics.csv"] == NEW.encode()
        shutil.rmtree(runs)
        shutil.copytree(runs.parent / "backup", runs)
        if not killed:
            break
    assert operation > 3


def test_an_interrupted_rerun_keeps_the_old_result_and_continues(finished: RunDirectory, tiny: Tiny) -> None:
    before = content(finished.path)
    with pytest.raises(KeyboardInterrupt):
        rerun(Run(tiny("rerun=true").config), "interrupted")
    assert Run(tiny("rerun=true").config).state is State.INTERRUPTED
    assert Run(tiny().config).state is State.FINISHED
    assert content(finished.path) == before
    rerun(Run(tiny("rerun=true").config), "completed")
    assert finished.metrics.read_text() == NEW
    assert [path.name for path in finished.path.parent.iterdir()] == [finished.name]
    assert Run(tiny("rerun=true").config).state is State.NEW
