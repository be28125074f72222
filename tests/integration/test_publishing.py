"""A study is published from finished runs of committed code, and loses nothing that is published."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pe_experiments.comparison import compare
from pe_experiments.published import pages, read_archive
from pe_experiments.published.publish import publish
from pe_experiments.store.directory import RunDirectory
from pe_experiments.store.manifest import list_in_study, write_manifest
from pe_experiments.terminal.errors import UserError
from pe_experiments.terminal.files import READY
from tests.conftest import Script, assert_one_sentence, tiny_in
from tests.synthetic import write_study

pytestmark = pytest.mark.slow
PAGES = (
    "from pe_experiments.published import read_archive\n\n\n"
    "def pages(folder):\n"
    '    (folder / "README.md").write_text(f"{len(read_archive(folder).runs)} runs")\n'
)


def runs_of(results: Path) -> list[RunDirectory]:
    return [RunDirectory(path) for path in sorted((results / "runs").iterdir())]


def change_environment(run: RunDirectory, **facts: Any) -> None:
    made = json.loads(run.environment.read_text())
    run.environment.write_text(json.dumps(made | facts))


def names_of(results: Path, study: str = "small") -> list[str]:
    return sorted(pd.read_csv(results / study / "provenance.csv")["name"])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished study of nine runs that nobody trained."""
    results = tmp_path_factory.mktemp("finished") / "results"
    write_study(tiny_in(results), seeds=3)
    for run in runs_of(results):
        list_in_study(results, "small", run.name)
    (results / "small" / "study.py").write_text(PAGES)
    return results


@pytest.fixture
def written(finished: Path, results: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(pages, "SHIPPED", results)  # whose code is run
    return shutil.copytree(finished, results)


@pytest.fixture(scope="module")
def published(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the study after it was published."""
    results = shutil.copytree(finished, tmp_path_factory.mktemp("published") / "results")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "SHIPPED", results)
        publish("small", results)
    return results / "small"


def test_a_study_may_have_a_version(written: Path) -> None:
    """``bank/v2``: found, published and made from its CSVs like any other."""
    for run in runs_of(written):
        list_in_study(written, "many/v1", run.name)
    folder = written / "many" / "v1"
    (folder / "study.py").write_text(PAGES)
    publish("many/v1", written)
    assert (folder / "README.md").read_text() == "9 runs"
    (folder / "README.md").unlink()
    assert pages.list_studies(written) == [folder]
    pages.regenerate(folder)
    assert (folder / "README.md").read_text() == "9 runs"
    assert pages.differences(folder) == []


@pytest.mark.parametrize("recorded", [{"edited": True}, {"commit": None}])
def test_edited_and_unknown_sources_are_refused(written: Path, recorded: dict[str, Any]) -> None:
    run = runs_of(written)[0]
    change_environment(run, **recorded)
    with pytest.raises(UserError, match=rf"1 of 9 runs have edited or unknown source code \({run.name}\)"):
        publish("small", written)
    assert not (written / "small" / "runs.csv").exists()


def test_a_study_that_grows_adds_what_is_finished_and_keeps_the_rest(written: Path) -> None:
    sweep, study = "text_depth", "text/depth"
    for run in runs_of(written):
        list_in_study(written, study, run.name)
    everything = [run.name for run in runs_of(written)]
    waiting = RunDirectory(written / "runs" / everything[-1])
    result = waiting.result.read_text()
    waiting.result.unlink()
    publish(sweep, written)
    assert names_of(written, study) == everything[:-1]
    whole = (written / study / "curves.csv").read_text().splitlines()
    waiting.result.write_text(result)
    for name in everything[:4]:  # published, and gone since
        shutil.rmtree(written / "runs" / name)
    publish(sweep, written)
    assert names_of(written, study) == everything
    now = (written / study / "curves.csv").read_text().splitlines()
    assert set(whole) < set(now)
    table = pd.read_csv(written / study / "runs.csv")
    (again,) = [run for run in runs_of(written) if run.name == everything[-1]]
    saved = again.config.read_text()
    renamed = again.path.with_name(f"{again.name[:-8]}00000000")
    again.config.write_text(saved.replace("numerics: 1", "numerics: 0").replace(again.name, renamed.name))
    again.result.write_text(again.result.read_text().replace(again.name, renamed.name))
    again.path.rename(renamed)
    write_manifest(written, study, [renamed.name])
    publish(sweep, written)  # by another version of the package: what is published stays
    pd.testing.assert_frame_equal(pd.read_csv(written / study / "runs.csv"), table)


def test_a_study_nobody_ran_is_named(results: Path) -> None:
    with pytest.raises(UserError, match=r"study=small: .* does not exist"):
        publish("small", results)


def test_no_published_study_is_said(script: Script, results: Path) -> None:
    results.mkdir()
    outcome = script("results", f"results_dir={results}")
    assert outcome.code == 1
    assert "no published study; create one with publish=STUDY" in outcome.err


def test_a_strangers_results_overwrite_nothing_outside_them(written: Path, tmp_path: Path) -> None:
    """A link to a file is replaced by the file itself."""
    publish("small", written)
    (tmp_path / "thesis.tex").write_text("years")
    folder = written / "small"
    for name in ("README.md", "table.csv"):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(tmp_path / "thesis.tex")
    pages.regenerate(folder)
    page = written / "page"
    made = compare(written, "small", page)
    assert made.files
    picture = next(path for path in made.files if path.suffix == ".png")
    for path in (picture, page / "report.html", page / "table.csv"):
        path.unlink()
        path.symlink_to(tmp_path / "thesis.tex")
    compare(written, "small", page)
    assert (tmp_path / "thesis.tex").read_text() == "years"
    assert [path for made_in in (folder, page) for path in made_in.rglob("*") if path.is_symlink()] == []


def test_publishing_that_fails_half_way_leaves_the_published_set(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = written / "small"
    last = runs_of(written)[-1]
    result = last.result.read_text()
    last.result.unlink()
    publish("small", written)
    before = {path: path.read_bytes() for path in folder.rglob("*.csv")}
    last.result.write_text(result)
    copied: list[Any] = []
    copy = shutil.copyfile

    def full(*paths: Any) -> None:
        if len(copied) == 2:
            raise OSError(28, "No space left on device")
        copied.append(copy(*paths))

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(OSError, match="No space left"):
        publish("small", written)
    monkeypatch.setattr(shutil, "copyfile", copy)
    assert {path: path.read_bytes() for path in folder.rglob("*.csv")} == before
    replaced: list[Any] = []
    replace = os.replace

    def killed(*paths: Any) -> None:
        if READY in paths[0].parts:  # the second half, where the set is complete
            replaced.append(paths)
        if len(replaced) > 2:
            raise KeyboardInterrupt
        replace(*paths)

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        publish("small", written)
    monkeypatch.setattr(os, "replace", replace)
    assert pages.list_studies(written) == [folder]
    assert len(read_archive(folder).runs) == 9
    assert names_of(written) == [run.name for run in runs_of(written)]


def without(path: Path, text: str, count: int) -> None:
    lines = path.read_text().splitlines(keepends=True)
    dropped = [line for line in lines if text in line][:count]
    path.write_text("".join(line for line in lines if line not in dropped))


@pytest.mark.parametrize(
    ("file", "count", "sentence"),
    [
        ("curves.csv", 100, r"runs\.csv and curves\.csv disagree on {name}"),
        ("curves.csv", 1, r"curves\.csv lacks lengths of some runs"),
        ("provenance.csv", 1, r"runs\.csv and provenance\.csv disagree on {name}"),
        ("runs.csv", 1, r"runs\.csv and curves\.csv disagree on {name}"),
    ],
)
def test_a_set_that_disagrees_on_its_runs_is_refused(
    published: Path, tmp_path: Path, file: str, count: int, sentence: str
) -> None:
    folder = shutil.copytree(published, tmp_path / "small")
    name = names_of(tmp_path)[-1]
    without(folder / file, name, count)
    with pytest.raises(UserError, match=sentence.format(name=name)):
        read_archive(folder)


def test_an_accuracy_above_one_is_refused(published: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(published, tmp_path / "small")
    path = folder / "curves.csv"
    curves = pd.read_csv(path)
    curves.loc[0, "exact_match"] = 7.5
    curves.to_csv(path, index=False)
    with pytest.raises(UserError, match=r"curves\.csv has a value of exact_match outside 0 to 1"):
        read_archive(folder)


@pytest.mark.parametrize("named", ["../x", "/tmp/x"])
def test_a_study_to_publish_is_a_name(named: str, script: Script, results: Path) -> None:
    said = script("results", f"results_dir={results}", f"publish={named}")
    assert_one_sentence(said, f"error: publish={named}: ")
