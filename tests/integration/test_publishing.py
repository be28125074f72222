"""A study is published from finished runs of committed code; published runs are never lost and repeatable."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pe_experiments.comparison import compare
from pe_experiments.store.directory import RunDirectory
from pe_experiments.store.identity import Identity, Record
from pe_experiments.store.study_folder import list_in_study, published_keys, write_manifest
from pe_experiments.studies import Study, pages, read_archive
from pe_experiments.studies.pages import publish
from pe_experiments.studies.reproduce import reproduce_run
from pe_experiments.terminal.console import Display
from pe_experiments.terminal.errors import UserError
from tests.conftest import ROOT, tiny_in
from tests.processes import killed_at, run_script
from tests.synthetic import write_study

pytestmark = pytest.mark.slow


def write_page(folder: Path, figures: Path) -> None:
    (folder / "README.md").write_text(f"{len(read_archive(folder).runs)} runs")


SMALL = Study(figures=(write_page,))


def runs_of(results: Path) -> list[RunDirectory]:
    return [RunDirectory(path) for path in sorted((results / "runs").iterdir())]


def published_names(results: Path, study: str = "small") -> list[str]:
    return sorted(pd.read_csv(results / study / "provenance.csv")["name"])


def declare(patch: pytest.MonkeyPatch) -> None:
    """Let the study be declared as one that writes its page."""
    patch.setattr("pe_experiments.studies.pages.load_study", lambda folder: SMALL)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished study of nine synthetic runs."""
    results = tmp_path_factory.mktemp("finished") / "results"
    write_study(tiny_in(results), seeds=3)
    for run in runs_of(results):
        list_in_study(results, "small", run.name)
    return results


@pytest.fixture
def written(finished: Path, results: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    declare(monkeypatch)
    return shutil.copytree(finished, results)


@pytest.fixture(scope="module")
def published(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the study after it was published."""
    results = shutil.copytree(finished, tmp_path_factory.mktemp("published") / "results")
    with pytest.MonkeyPatch.context() as patch:
        declare(patch)
        publish("small", results)
    return results / "small"


@pytest.mark.parametrize("recorded", [{"edited": True}, {"commit": None}])
def test_runs_of_edited_or_unknown_code_are_not_published(written: Path, recorded: dict[str, Any]) -> None:
    run = runs_of(written)[0]
    environment = json.loads(run.environment.read_text())
    run.environment.write_text(json.dumps(environment | recorded))
    with pytest.raises(UserError, match=rf"1 of 9 runs have edited or unknown source code \({run.name}\)"):
        publish("small", written)
    assert not (written / "small" / "runs.csv").exists()


def test_runs_evaluated_in_a_window_are_not_published(written: Path) -> None:
    run = runs_of(written)[0]
    result = json.loads(run.result.read_text())
    result["evaluation"]["window"] = 20
    run.result.write_text(json.dumps(result))
    with pytest.raises(UserError, match=f"{run.name} was evaluated with evaluation.window=20; allowed: null"):
        publish("small", written)


def change_cell(column: str, value: str) -> Callable[[Path], None]:
    """Return a function that changes the first value of a column."""

    def change(path: Path) -> None:
        table = pd.read_csv(path, dtype=str, keep_default_na=False)
        table.loc[0, column] = value
        table.to_csv(path, index=False)

    return change


def delete_last_run(path: Path) -> None:
    table = pd.read_csv(path, dtype=str, keep_default_na=False)
    table[table["name"] != table["name"].max()].to_csv(path, index=False)


DAMAGES: list[tuple[str, Callable[[Path], None], Callable[[Path], object], str]] = [
    ("curves.csv", change_cell("exact_match", "high"), read_archive, "small is not a published study"),
    ("provenance.csv", change_cell("trained", "[]"), read_archive, "small is not a published study"),
    ("provenance.csv", change_cell("trained", '{"seed": 0}'), read_archive, "small is not a published study"),
    ("provenance.csv", change_cell("trained", "[]"), published_keys, "small is not a published study"),
    ("training.csv", Path.unlink, pages.regenerate, "small is not a published study .*small/training.csv"),
    ("curves.csv", delete_last_run, read_archive, r"runs\.csv and curves\.csv disagree on copy-"),
]


@pytest.mark.parametrize(("file", "damage", "read", "sentence"), DAMAGES)
def test_a_damaged_study_is_refused(
    published: Path,
    tmp_path: Path,
    file: str,
    damage: Callable[[Path], None],
    read: Callable[[Path], object],
    sentence: str,
) -> None:
    folder = shutil.copytree(published, tmp_path / "small")
    damage(folder / file)
    with pytest.raises(UserError, match=sentence):
        read(folder)


def test_publishing_again_adds_finished_runs_and_keeps_deleted_ones(written: Path) -> None:
    sweep = "text_depth"
    study = "text/depth"
    for run in runs_of(written):
        list_in_study(written, study, run.name)
    everything = [run.name for run in runs_of(written)]
    waiting = RunDirectory(written / "runs" / everything[-1])
    result = waiting.result.read_text()
    waiting.result.unlink()
    publish(sweep, written)
    assert published_names(written, study) == everything[:-1]
    before = (written / study / "curves.csv").read_text().splitlines()
    waiting.result.write_text(result)
    for name in everything[:4]:
        shutil.rmtree(written / "runs" / name)
    publish(sweep, written)
    assert published_names(written, study) == everything
    after = (written / study / "curves.csv").read_text().splitlines()
    assert set(before) < set(after)


def test_publishing_keeps_tables_that_runs_do_not_make(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish("small", written)
    (written / "small" / "measured.csv").write_text("value\n0.5\n")
    study = Study(load=lambda folder: pd.read_csv(folder / "measured.csv"))
    monkeypatch.setattr("pe_experiments.studies.pages.load_study", lambda folder: study)
    publish("small", written)
    assert (written / "small" / "measured.csv").read_text() == "value\n0.5\n"


def test_runs_of_another_version_replace_no_published_runs(written: Path) -> None:
    publish("small", written)
    table = pd.read_csv(written / "small" / "runs.csv")
    run = runs_of(written)[-1]
    record = Record.read(run)
    other = Identity(record.identity.config, record.data, record.classes, numerics=0)
    config = run.config.read_text().replace("numerics: 1", "numerics: 0").replace(record.hash, other.hash)
    run.config.write_text(config)
    renamed = run.path.with_name(f"{run.name[:-8]}{other.hash[:8]}")
    text = run.result.read_text().replace(record.hash, other.hash)
    run.result.write_text(text.replace(run.name, renamed.name))
    run.path.rename(renamed)
    write_manifest(written, "small", [renamed.name])
    publish("small", written)
    pd.testing.assert_frame_equal(pd.read_csv(written / "small" / "runs.csv"), table)


def test_links_in_a_strangers_results_are_replaced_not_followed(written: Path, tmp_path: Path) -> None:
    publish("small", written)
    thesis = tmp_path / "thesis.tex"
    thesis.write_text("years")
    folder, page = written / "small", written / "page"
    figures = [path for path in compare(written, "small", page).files if path.suffix == ".png"]
    links = [folder / "README.md", figures[0], page / "report.html", page / "table.csv"]
    for path in links:
        path.unlink(missing_ok=True)
        path.symlink_to(thesis)
    pages.regenerate(folder)
    compare(written, "small", page)
    assert thesis.read_text() == "years"
    assert not any(path.is_symlink() for path in [*folder.rglob("*"), *page.rglob("*")])


def test_killed_anywhere_publishing_leaves_a_complete_set(written: Path) -> None:
    folder = written / "small"
    runs = runs_of(written)[:3]
    write_manifest(written, "small", [run.name for run in runs])
    last = runs[-1]
    result = last.result.read_text()
    last.result.unlink()
    publish("small", written)
    last.result.write_text(result)
    counts = set()
    for operation in count():
        killed = killed_at(operation, lambda: publish("small", written))
        assert pages.list_studies(written) == [folder]
        counts.add(len(read_archive(folder).runs))
        if not killed:
            break
    assert counts == {2, 3}
    assert published_names(written) == [run.name for run in runs]


def test_the_script_finds_the_studies_though_its_folder_has_another_results(tmp_path: Path) -> None:
    """Python searches ``scripts`` first, where ``results.py`` would hide the folder of the studies."""
    folder = tmp_path / "implementations"
    shutil.copytree(
        ROOT / "results" / "implementations", folder, ignore=shutil.ignore_patterns("__pycache__")
    )
    run_script(ROOT / "scripts" / "results.py", "check=true", f"results_dir={tmp_path}", cwd=tmp_path)


def test_the_shortest_published_run_is_reproduced(capsys: pytest.CaptureFixture[str]) -> None:
    claims = read_archive(ROOT / "results" / "tutorial_claims")
    steps = claims.training.groupby("name")["step"].max()
    cost = claims.runs.set_index("name")["seconds_per_step"] * steps
    assert reproduce_run(claims, str(cost.idxmin()), Display()), capsys.readouterr().out
