"""Exact match by length and depth: of a run, in a comparison, and in a published study."""

from __future__ import annotations

import filecmp
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pe_experiments.comparison import compare, load_runs
from pe_experiments.configuration.experiment import Experiment
from pe_experiments.published.archive import read_archive, write_archive
from pe_experiments.run import evaluate_run, run_experiment
from pe_experiments.store.csv_files import read_curve, write_curve
from pe_experiments.store.directory import DIVERGED
from tests.synthetic import fading, write_run

Tiny = Callable[..., Experiment]
GRID = ("task=needle", "training.min_length=6", "evaluation.lengths=[6,12,48]")


def depth_rows(found: float) -> list[dict[str, Any]]:
    """Everything is found within the training lengths, and a share of it beyond, but near the question."""
    return [
        {"length": n, "depth": depth, "examples": 4, "exact_match": exact, "token_accuracy": exact}
        for n in (6, 12, 48)
        for depth, exact in ((0.1, 1.0 if n == 6 else found), (0.9, 1.0))
        if (n, depth) != (6, 0.9)
    ]


@pytest.fixture
def needle_runs(tiny: Tiny) -> Path:
    """Two encodings with two seeds, of one of which a seed diverged, and a run without a depth."""
    for seed in (0, 1):
        run = write_run(tiny("pe=alibi", f"seed={seed}", *GRID), fading(1, 0))
        write_curve(run, read_curve(run.curve), {"depth": depth_rows(0.5 + 0.2 * seed)})
    run = write_run(tiny("pe=rope", "seed=0", *GRID), fading(1, 0))
    write_curve(run, read_curve(run.curve), {"depth": depth_rows(0.2)})
    write_run(tiny("pe=rope", "seed=1", *GRID), fading(0, 0), DIVERGED)
    experiment = tiny("pe=rope", "task=copy")
    write_run(experiment, fading(1, 0))
    return Path(experiment.config.results_dir)


@pytest.mark.slow
def test_a_comparison_shows_the_mean_of_each_encoding(needle_runs: Path, tmp_path: Path) -> None:
    made = compare(needle_runs, out=tmp_path / "out")
    by_title = {protocol.title: made.depths(protocol) for protocol in made.protocols}
    assert by_title["copy, decoder"] == {}
    depths = by_title["needle, decoder"]
    assert {label: cells.loc[0.1, 12] for label, cells in depths.items()} == {
        "alibi": pytest.approx(0.6),
        "rope": pytest.approx(0.1),  # a diverged run counts as 0
    }
    assert depths["rope"].loc[0.9, 48] == 0.5
    assert pd.isna(depths["alibi"].loc[0.9, 6])
    assert list(depths["alibi"].index) == [0.1, 0.3, 0.5, 0.7, 0.9]  # where nothing is measured, too
    assert len(pd.read_csv(tmp_path / "out" / "depth.csv")) == 3 * 5
    assert {path.stem for path in tmp_path.glob("out/figures/*depth.png")} == {"needle-decoder-depth"}
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count("<div><table><caption>") == 2
    assert '<td class="high" style="--share: 60%">0.60</td>' in page
    assert '<td class="none"></td>' in page


@pytest.mark.slow
def test_a_page_without_depths_does_not_mention_them(needle_runs: Path, tmp_path: Path) -> None:
    for path in needle_runs.glob("runs/*/depth.csv"):
        path.unlink()
    compare(needle_runs, out=tmp_path / "out")
    assert "depth" not in (tmp_path / "out" / "report.html").read_text()
    assert not list(tmp_path.glob("out/**/*depth*"))


def test_a_published_study_keeps_its_depths(needle_runs: Path, tmp_path: Path) -> None:
    runs = load_runs(needle_runs)
    write_archive(runs, tmp_path / "a")
    read = read_archive(tmp_path / "a")
    pd.testing.assert_frame_equal(read.depth, runs.depth)
    write_archive(read, tmp_path / "b")
    assert filecmp.cmp(tmp_path / "a" / "depth.csv", tmp_path / "b" / "depth.csv", shallow=False)


def test_a_damaged_table_is_left_out(needle_runs: Path) -> None:
    (next(needle_runs.glob("runs/*rope-s0*/depth.csv"))).write_text("length\n6\n")
    runs = load_runs(needle_runs)
    assert [key.rpartition("/")[2] for key in runs.left_out] == ["depth.csv"]
    assert set(runs.depth["name"].str.contains("alibi")) == {True}


@pytest.mark.parametrize("task", ["associative_recall", "copy"])
def test_a_run_and_a_later_evaluation_measure_depth(tiny: Tiny, task: str) -> None:
    result = run_experiment(tiny(f"task={task}", "training.steps=2", "evaluation.lengths=[6,9]"))
    written = {path.name for path in result.directory.path.glob("depth.*")}
    assert written == (set() if task == "copy" else {"depth.csv", "depth.png"})
    if task == "copy":
        return
    evaluate_run(result.directory.path, {"evaluation": {"lengths": [15], "examples": 20}})
    depth = load_runs(result.experiment.config.results_dir).depth
    assert set(depth["length"]) == {5, 9, 15}
    assert set(depth.groupby("length")["examples"].sum()) == {20}
