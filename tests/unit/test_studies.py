"""Published studies: everything follows from their CSVs, and the numbers in the READMEs are theirs."""

from __future__ import annotations

import filecmp
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from pe_experiments.comparison.compare import Options, write_comparison
from pe_experiments.comparison.runs_table import load_runs
from pe_experiments.comparison.statistics import Interval
from pe_experiments.config import Experiment
from pe_experiments.errors import UserError
from pe_experiments.studies import core, precision
from pe_experiments.studies.archive import FILES, read_archive, write_archive
from pe_experiments.studies.figures_in_words import Figures, number, shown, shown_difference
from pe_experiments.studies.publishing import project_readme
from tests.conftest import ROOT
from tests.synthetic import write_study

RESULTS = ROOT / "results"
NUMBERS = [(1.0, "1.00"), (0.0, "0.00"), (0.5, ".50"), (-0.254, "-.25"), (0.998, ".998"), (0.9999, "1.00")]


@pytest.mark.parametrize(("value", "text"), NUMBERS)
def test_numbers(value: float, text: str) -> None:
    assert number(value) == text


def test_intervals_stay_within_what_an_accuracy_can_be() -> None:
    assert shown(Interval(0.9, 0.7, 1.1)) == ".90 (.70 to 1.00)"
    assert shown(Interval(0.1, -0.2, 0.4)) == ".10 (0.00 to .40)"
    assert shown_difference(Interval(0.05, -0.1, 0.2)) == "+.05 (-.10 to +.20)"
    assert shown_difference(Interval(0.0, 0.0, 0.0)) == "0.00"
    assert shown(Interval(1.0, 1.0, 1.0)) == "1.00"
    assert shown(Interval(0.7)) == ".70"


def test_a_study_read_back_gives_the_same_comparison(tiny: Callable[..., Experiment], tmp_path: Path) -> None:
    """From the runs, from their CSVs, and from the CSVs of these: the same bytes."""
    runs = load_runs(write_study(tiny))
    write_archive(runs, tmp_path / "a")
    first = write_comparison(read_archive(tmp_path / "a"), "t", tmp_path / "a", Options())
    write_archive(read_archive(tmp_path / "a"), tmp_path / "b")
    write_comparison(read_archive(tmp_path / "b"), "t", tmp_path / "b", Options())
    names = sorted(str(p.relative_to(tmp_path / "a")) for p in (tmp_path / "a").rglob("*") if p.is_file())
    assert {*FILES, "table.csv", "report.html"} <= set(names)
    _, different, missing = filecmp.cmpfiles(tmp_path / "a", tmp_path / "b", names, shallow=False)
    assert not different + missing
    direct = write_comparison(runs, "t", tmp_path / "c", Options())
    pd.testing.assert_frame_equal(first.table, direct.table)


def test_half_a_study_is_not_published(tiny: Callable[..., Experiment], tmp_path: Path) -> None:
    results = write_study(tiny)
    runs = load_runs(results)
    (results / "runs" / runs.runs["name"].iloc[0] / "result.json").unlink()
    with pytest.raises(UserError, match="cannot be published"):
        write_archive(load_runs(results), tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_numbers_are_asked_for_by_name(tiny: Callable[..., Experiment]) -> None:
    runs = load_runs(write_study(tiny))
    figures, label = Figures(runs), str(runs.runs["label"].iloc[0])
    task, model = str(runs.runs["task"].iloc[0]), str(runs.runs["model"].iloc[0])
    expected = runs.runs[runs.runs["label"] == label]["exact_match_extrapolation"].mean()
    assert figures.mean(task, model, label, "beyond").estimate == pytest.approx(expected)
    with pytest.raises(UserError, match="no runs of elsewhere"):
        figures.mean(task, model, "elsewhere", "beyond")


PAGES = {"core": core.page, "precision": precision.page}


@pytest.mark.parametrize("study", sorted(PAGES))
def test_the_page_of_a_study_says_what_its_csvs_say(study: str) -> None:
    assert (RESULTS / study / "README.md").read_text() == PAGES[study](read_archive(RESULTS / study))


def test_the_numbers_in_the_projects_readme_are_those_of_the_csvs() -> None:
    text = (ROOT / "README.md").read_text()
    assert project_readme(text, RESULTS) == text
    with pytest.raises(UserError, match="the line <!-- from results/core"):
        project_readme(text.replace("<!-- from results/core", "<!-- from"), RESULTS)


def test_the_published_results_are_small() -> None:
    assert sum(path.stat().st_size for path in _tracked()) < 15_000_000


def _tracked() -> list[Path]:
    kept = ("core", "tutorial_claims", "precision", "benchmark")
    files = [path for name in kept for path in (RESULTS / name).rglob("*") if path.is_file()]
    return [path for path in files if path.suffix not in (".svg", ".pdf", ".tex") and path.name[0] != "."]
