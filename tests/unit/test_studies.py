"""Published studies: everything follows from their CSVs, and the numbers in the READMEs are theirs."""

from __future__ import annotations

import filecmp
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from pe_experiments.studies import core, precision
from pe_experiments.studies.archive import FILES, read_archive, write_archive
from pe_experiments.studies.figures_in_words import Figures
from pe_experiments.studies.publishing import project_readme

from pe_experiments.comparison.compare import Options, write_comparison
from pe_experiments.comparison.runs_table import load_runs
from pe_experiments.comparison.statistics import mean_interval
from pe_experiments.config import Experiment
from pe_experiments.errors import UserError
from tests import stranger
from tests.conftest import ROOT
from tests.synthetic import write_study

RESULTS = ROOT / "results"


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
    values = runs.runs[runs.runs["label"] == label].set_index("seed")["exact_match_extrapolation"].to_dict()
    assert figures.values(task, model, label, "past") == values
    interval = mean_interval(list(values.values()))
    shown = f"{interval.estimate:.2f} [{interval.low:.2f}, {interval.high:.2f}]"
    assert figures.mean(task, model, label, "past") == shown
    assert figures.at(task, model, "sinusoidal", 48) == "all 5 seeds 0.00"
    assert figures.solved(task, model, label) == "5 of 5"
    assert figures.reached(task, model, "sinusoidal", 48) == "0 of 5"
    assert figures.seeds == "5"
    with pytest.raises(UserError, match="0 protocols with runs of elsewhere"):
        figures.mean(task, model, "elsewhere", "past")
    with pytest.raises(UserError, match="0 protocols"):
        Figures(runs, "training.precision=bfloat16").mean(task, model, label, "past")


@pytest.mark.parametrize("study", ["core", "tutorial_claims"])
def test_a_stranger_recomputes_the_published_tables_from_curves_csv(study: str) -> None:
    """With the protocol's runs read from the CSV, by code that shares nothing with ours."""
    folder = RESULTS / study
    rows, pairs, curves = (stranger.read_csv(folder / f"{name}.csv") for name in ("table", "pairs", "curves"))
    tested = 0
    for protocol in {row["protocol"] for row in rows}:
        mine = [row for row in rows if row["protocol"] == protocol]
        points = [_with_answer_tokens(row) for row in curves if row["protocol"] == protocol]
        runs = stranger.curves_of(points)
        for row in mine:
            stranger.check_table(row, runs)
        differences = [row for row in pairs if row["protocol"] == protocol]
        assert len(differences) == len(mine) * (len(mine) - 1) // 2
        tested += stranger.check_pairs(differences, runs, int(mine[0]["max_length"]))
    assert tested > 5


def _with_answer_tokens(row: dict[str, str]) -> dict[str, str]:
    """Of the tasks published, precedence and majority answer with one token."""
    one = row["task"] in ("precedence", "majority")
    return {"seen": "", "answer_tokens": "1" if one else "5", **row}


def change(full: list[float], half: list[float]) -> precision.Change:
    return precision.Change("copy", "rope", dict(enumerate(full)), dict(enumerate(half)))


def test_equivalence_is_a_reading_of_its_own() -> None:
    full = [0.5, 0.4, 0.6, 0.0, 0.1]
    assert change(full, [0.55, 0.35, 0.6, 0.01, 0.1]).reading == "equivalent"
    assert change(full, [0.5, 0.4, 0.6, 0.2, 0.1]).reading == "not decided"  # one seed moves by 0.2
    ten = [0.1 * n for n in range(8)]
    assert change(ten, [x + 0.2 + 0.001 * n for n, x in enumerate(ten)]).reading == "changed"


def test_rows_that_cannot_move_are_left_out() -> None:
    assert not change([0.0] * 5, [0.0] * 5).can_move
    assert not change([1.0] * 5, [1.0] * 5).can_move
    assert change([1.0] * 5, [1.0, 1.0, 1.0, 1.0, 0.9]).can_move
    assert change([0.0] * 5, [1.0] * 5).can_move


def test_csvs_of_earlier_versions_get_what_follows_from_them() -> None:
    runs = read_archive(RESULTS / "core")
    tokens = runs.curves.groupby(["task", "model", "content_length"])["answer_tokens"].unique()
    for (task, model, length), values in tokens.items():
        expected = 1 if task in ("precedence", "majority") else length
        assert list(values) == [expected], (task, model)


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
