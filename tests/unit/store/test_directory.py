"""Labels, directory names, studies and locks; a rerun takes the place of the finished run."""

from __future__ import annotations

import shutil
from itertools import count
from pathlib import Path

import pytest

from pe_experiments.store.directory import TRAINED, RunDirectory, State, refuse_among_runs
from pe_experiments.store.requested import Run
from pe_experiments.store.study_folder import list_in_study, read_manifest
from pe_experiments.terminal.errors import UserError
from tests.conftest import Tiny
from tests.processes import killed_at
from tests.synthetic import fading, write_run


@pytest.mark.parametrize(
    ("overrides", "label"),
    [
        ([], "sinusoidal"),
        (["pe=nope"], "none"),
        (["pe.base=500", "pe.combine=concat"], "sinusoidal(base=500,combine=concat)"),
        (["pe=learned", "positions=random_offset"], "learned+random_offset"),
        (["label=my_label"], "my_label"),
        (["pe.base=10000.01"], "sinusoidal(base=10000.01)"),
    ],
)
def test_labels(tiny: Tiny, overrides: list[str], label: str) -> None:
    assert tiny(*overrides).label == label


def test_a_study_lists_each_run_once(tmp_path: Path) -> None:
    for name in ("b", "a", "b"):
        list_in_study(tmp_path, "s", name)
    assert read_manifest(tmp_path, "s")["runs"] == ["a", "b"]
    with pytest.raises(UserError, match=r"study=other.*studies there: s"):
        read_manifest(tmp_path, "other")


def test_a_locked_directory_is_refused_until_it_is_released(tmp_path: Path) -> None:
    first, second = RunDirectory(tmp_path), RunDirectory(tmp_path)
    with first.lock(), pytest.raises(UserError, match="in use by another process"), second.lock():
        pass
    with second.lock():
        pass


@pytest.mark.parametrize("out", ["runs", "runs/a/figures", "study/../runs"])
def test_output_folders_among_the_runs_are_refused(out: str, tmp_path: Path) -> None:
    refuse_among_runs(tmp_path / "runs_of_others", tmp_path)
    with pytest.raises(UserError, match="is among the runs"):
        refuse_among_runs(tmp_path / out, tmp_path)


NEW = "new\n"


def content(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def rerun(run: Run, status: str) -> None:
    """Write what a rerun writes, in the same order. It ends with this status."""
    finished, new = run.final_directory, run.directory
    with new.locked():
        shutil.copyfile(finished.config, new.config)
        new.metrics.write_text(NEW)
        new.checkpoint.parent.mkdir(exist_ok=True)
        new.checkpoint.write_text(NEW)
        shutil.copyfile(finished.curve, new.curve)
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
