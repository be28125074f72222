"""A rerun keeps the finished result until there is a new one, wherever it is killed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from pe_experiments.comparison import load_runs
from pe_experiments.configuration.experiment import Experiment
from pe_experiments.store.directory import RunDirectory
from pe_experiments.store.status import Run
from tests.processes import killed_at
from tests.synthetic import fading, write_run

Tiny = Callable[..., Experiment]
NEW = "new\n"


def content(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def rerun(path: Path, status: str) -> None:
    """Write what a rerun writes, in the same order. It ends with this status or is interrupted."""
    run = RunDirectory(path)
    result = run.result.read_text().replace("completed", status)
    config, curve = run.config.read_text(), run.curve.read_text()
    with run.lock_for_training(rerun=True):
        run.config.write_text(config)
        run.metrics.write_text(NEW)
        run.checkpoint.parent.mkdir()
        run.checkpoint.write_text(NEW)
        run.curve.write_text(curve)
        if status == "interrupted":
            raise KeyboardInterrupt
        run.result.write_text(result)


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
    states = set()
    backup = finished.path.parents[2] / "backup"
    shutil.copytree(finished.path, backup)
    for operation in count():
        killed = killed_at(operation, lambda: rerun(finished.path, status))
        states.add(Run(tiny().config).state)  # as every command begins
        now = content(finished.path)
        if now != before:
            assert status != "error"
            assert set(now) >= {"config.yaml", "result.json", "checkpoints/last.ckpt"}
            assert now["metrics.csv"] == NEW.encode()
        assert [path.name for path in finished.path.parent.iterdir()] == [finished.name]
        shutil.rmtree(finished.path)
        shutil.copytree(backup, finished.path)
        if not killed:
            break
    assert operation > 10
    assert states == ({"finished", "diverged"} if status == "diverged" else {"finished"})


def test_an_interrupted_rerun_keeps_the_old_result_and_can_continue(
    finished: RunDirectory, tiny: Tiny
) -> None:
    before = content(finished.path)
    with pytest.raises(KeyboardInterrupt):
        rerun(finished.path, "interrupted")
    assert Run(tiny().config).state == "interrupted"
    aside = finished.path.with_name(f".{finished.name}.aside")
    assert content(aside) == before
    with finished.lock_for_training(rerun=True):  # a rerun from the start
        assert content(aside) == before
        assert not finished.checkpoint.exists()
    assert Run(tiny().config).state == "finished"
    assert content(finished.path) == before


def test_the_traceback_of_a_failed_rerun_is_saved_with_the_earlier_result(
    finished: RunDirectory, tiny: Tiny
) -> None:
    config, result = finished.config.read_text(), finished.result.read_text()
    with finished.lock_for_training(rerun=True):
        finished.config.write_text(config)
        finished.error_log.write_text("boom")
        finished.result.write_text(result.replace("completed", "error"))
    assert Run(tiny().config).state == "finished"
    assert finished.error_log.read_text() == "boom"


def test_a_comparison_finds_the_result_that_a_killed_rerun_set_aside(finished: RunDirectory) -> None:
    finished.path.rename(finished.path.with_name(f".{finished.name}.aside"))
    finished.path.mkdir()
    draft = finished.path / ".metrics.csv.1.tmp"
    draft.touch()
    with finished.create_and_lock():
        assert not draft.exists()
    assert list(load_runs(finished.path.parents[1]).runs["name"]) == [finished.name]


@pytest.mark.slow
@pytest.mark.parametrize("backwards", [True, False])
def test_a_rerun_killed_while_it_restarts_leaves_one_whole_run(
    backwards: bool, finished: RunDirectory, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first rerun was interrupted. Folders may list their files in any order."""
    iterdir = Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda path: iter(sorted(iterdir(path), reverse=backwards)))
    runs = finished.path.parent
    before = content(finished.path)
    with pytest.raises(KeyboardInterrupt):
        rerun(finished.path, "interrupted")
    interrupted = content(finished.path)
    shutil.copytree(runs, runs.parent / "backup")

    def begin() -> None:
        with finished.lock_for_training(rerun=True):
            pass

    for operation in count():
        killed = killed_at(operation, begin)
        state = Run(tiny().config).state
        assert content(finished.path) == (before if state == "finished" else interrupted)
        shutil.rmtree(runs)
        shutil.copytree(runs.parent / "backup", runs)
        if not killed:
            break
    assert state == "finished"
