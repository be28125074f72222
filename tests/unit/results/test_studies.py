"""Test published studies: their pages follow from their CSVs, and the README repeats them."""

import sys
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest

from pe_experiments.comparison import Runs, compare, load_runs
from pe_experiments.comparison.compare_runs import output_of
from pe_experiments.store.csv_files import TRAINING_COLUMNS, to_csv
from pe_experiments.store.directory import RunDirectory
from pe_experiments.store.identity import Record
from pe_experiments.store.study_folder import list_in_study, published_keys, read_manifest, write_manifest
from pe_experiments.studies import Study, read_archive, with_options
from pe_experiments.studies.archive import FILES, merge_runs, write_archive
from pe_experiments.studies.blocks import fill_index
from pe_experiments.studies.pages import (
    changed_files,
    is_tracked,
    list_studies,
    load_study,
    progress,
    regenerate,
    require_committed_code,
)
from pe_experiments.terminal.errors import UserError
from results.tutorial_claims.audits import NOISE, audit_all
from tests import recomputation
from tests.conftest import ROOT, Tiny
from tests.synthetic import fading, write_run, write_study

RESULTS = ROOT / "results"


def test_runs_of_classes_outside_the_project_are_not_published(tiny: Tiny) -> None:
    runs = load_runs(write_study(tiny, seeds=2))
    require_committed_code("t", runs)
    next(iter(runs.saved.values())).trained["pe"]["_target_"] = "mine.Mine"
    with pytest.raises(UserError, match=r"mine\.Mine of .* is not code of this project"):
        require_committed_code("t", runs)


def test_a_grown_grid_replaces_runs_at_the_value_that_is_no_longer_chosen(tiny: Tiny, results: Path) -> None:
    """There are two tasks, each with a grid."""

    def write_runs(task: str, rate: float, loss: float) -> None:
        for seed in (0, 1):
            experiment = tiny(f"task={task}", f"seed={seed}", f"training.learning_rate={rate}")
            run = write_run(experiment, fading(1, 0), result={"validation_loss": loss})
            run.metrics.write_text(to_csv(TRAINING_COLUMNS, [{"step": 12, "validation_loss": loss}]))
            list_in_study(results, "s", run.name)
        manifest = read_manifest(results, "s")
        write_manifest(results, "s", manifest["runs"], tuned=["training.learning_rate"])

    def rates_by_task(runs: Runs) -> dict[str, list[float]]:
        table = with_options(runs, rate="training.learning_rate")
        return {str(task): group.tolist() for task, group in table.groupby("task")["rate"]}

    write_runs("copy", rate=0.1, loss=0.5)
    write_runs("copy", rate=0.3, loss=0.4)
    write_runs("reverse", rate=0.1, loss=0.2)
    published = results / "s"
    write_archive(load_runs(results, "s"), published)
    assert rates_by_task(read_archive(published)) == {"copy": [0.3, 0.3], "reverse": [0.1, 0.1]}
    keys = {Record.read(RunDirectory(path)).identity.key for path in (results / "runs").iterdir()}
    assert set(published_keys(published)) == keys
    write_runs("copy", rate=0.9, loss=0.1)
    merged = merge_runs(read_archive(published), load_runs(results, "s"))
    assert rates_by_task(merged) == {"copy": [0.9, 0.9], "reverse": [0.1, 0.1]}
    assert [choice["chosen"] for choice in merged.tuning] == ["0.9"]


def test_a_comparison_does_not_overwrite_a_published_study(tiny: Tiny, results: Path) -> None:
    write_study(tiny, "study=s", seeds=1)
    list_in_study(results, "s", *load_runs(results).saved)
    assert output_of(results, "s") == results / "s"
    write_archive(load_runs(results, "s"), results / "s")
    assert output_of(results, "s") == results / "comparison" / "s"
    with pytest.raises(UserError, match="holds a published study"):
        compare(results, "s", results / "s")


STUDY = """\
from pe_experiments.studies import Study


def draw(folder, figures):
    (folder / "page.md").write_text("drawn")


def values(folder):
    runs = (folder / "runs.csv").read_text().count("\\n") - 1
    return {"table": f"of {runs} runs", "runs": runs / 4, "more": "and more"}


STUDY = Study(values=values, figures=(draw,))
"""
PAGE = """\
by hand
<!-- from table: make results -->
TABLE
<!-- end -->
<!-- answer -->
It has <!-- {runs:.1f} -->NUMBER<!-- end -->.
<!-- end of answer -->
after
"""


def test_a_study_with_code_fills_its_page(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = tmp_path / "results"
    monkeypatch.setattr("pe_experiments.studies.pages.SHIPPED", shipped)
    monkeypatch.setattr("pe_experiments.studies.pages.is_tracked", lambda path: True)
    package = ModuleType("results")
    package.__path__ = [str(shipped)]
    monkeypatch.setitem(sys.modules, "results", package)
    folder = shipped / "small"
    write_archive(load_runs(write_study(tiny, seeds=1)), folder)
    (folder / "study.py").write_text(STUDY)
    page = folder / "README.md"
    page.write_text(PAGE)
    regenerate(folder)
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("[!.]*.*[!c]") if path.is_file())
    assert names == sorted(["README.md", "page.md", "study.py", *FILES])
    filled = PAGE.replace("TABLE", "of 3 runs").replace("NUMBER", "0.8")
    assert page.read_text() == filled
    (folder / "plan.md").write_text("by hand")
    assert changed_files(folder) == []
    (folder / "more.md").write_text("not generated")
    for changed in (filled.replace("3 runs", "3  runs"), filled.replace("0.8", "0.9")):
        page.write_text(changed)
        assert [path.name for path in changed_files(folder)] == ["README.md", "more.md"]
    page.write_text("<!-- {tabel} --><!-- end -->")
    with pytest.raises(UserError, match="block tabel is unknown; allowed: more, runs"):
        regenerate(folder)


def test_code_that_came_with_other_results_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "study.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    assert load_study(tmp_path / "text").sweep == ("text",)  # the shipped study of that name
    for folder in (tmp_path / "unknown", RESULTS / "unknown" / "text"):
        assert load_study(folder) == Study(compare=True)
    assert not (tmp_path / "ran").exists()


@pytest.mark.slow
def test_independent_code_recomputes_the_published_tables() -> None:
    assert recomputation.check_comparison(RESULTS / "tutorial_claims") > 5


@pytest.mark.slow
def test_the_published_audits_are_those_of_the_code() -> None:
    audits = audit_all()
    published = pd.read_csv(RESULTS / "tutorial_claims" / "audits.csv")
    assert published["quantity"].tolist() == audits["quantity"].tolist()
    assert published["value"].tolist() == pytest.approx(audits["value"].tolist(), rel=1e-3, abs=NOISE)


def test_every_page_of_a_study_with_runs_says_how_many_planned_runs_are_published() -> None:
    checked = []
    for folder in list_studies(RESULTS):
        study = load_study(folder)
        if (study.sweep or study.planned) and (folder / "README.md").exists():
            page = (folder / "README.md").read_text("utf-8")
            assert f"<!-- {{progress}} -->{progress(folder, study)}<!-- end -->" in page
            checked.append(folder.name)
    assert {"bank", "text", "extension", "precision", "tutorial_claims"} <= set(checked)


@pytest.mark.slow
@pytest.mark.parametrize("study", list_studies(RESULTS), ids=lambda folder: str(folder.relative_to(RESULTS)))
def test_pages_figures_and_tables_follow_from_the_csvs_byte_for_byte(study: Path) -> None:
    assert changed_files(study) == []


def test_the_index_has_the_answer_of_each_page_that_marks_it(tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    marked = "<!-- in short -->\nIt has <!-- {runs} -->3<!-- end -->\n**runs**.\n<!-- end of in short -->\n"
    (tmp_path / "small" / "README.md").write_text(marked)
    page = (
        "| [small](small/README.md) | how many? |\n<!-- from answers: make results -->\nold\n<!-- end -->\n"
    )
    assert "| [small](small/README.md) | It has 3 runs. |\n<!-- end -->" in fill_index(page, tmp_path)
    assert fill_index((RESULTS / "README.md").read_text(), RESULTS) == (RESULTS / "README.md").read_text()


def test_the_readme_is_short() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 100
    assert len(text.split()) <= 1300


def test_the_code_of_a_study_runs_only_if_git_tracks_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert is_tracked(ROOT / "results" / "bank" / "study.py")
    monkeypatch.setattr("pe_experiments.studies.pages.SHIPPED", tmp_path)
    (tmp_path / "copied").mkdir()
    (tmp_path / "copied" / "study.py").write_text("raise SystemExit('executed')")
    with pytest.raises(UserError, match=r"study\.py is not tracked by git, so it is not executed"):
        load_study(tmp_path / "copied")
