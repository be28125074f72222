"""Test exact match by length and depth: in a run and a comparison."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pe_experiments.comparison import compare, load_runs
from pe_experiments.run import evaluate_run, run_experiment
from pe_experiments.store.csv_files import read_curve, write_curve
from pe_experiments.store.directory import DIVERGED
from tests.conftest import Tiny
from tests.synthetic import fading, write_run

GRID = ("task=needle", "training.min_length=6", "evaluation.lengths=[6,12,48]")


def depth_rows(far_exact_match: float) -> list[dict[str, Any]]:
    """Return an exact match of 1, except far from the question beyond the training lengths."""
    exact_match = {
        (6, 0.1): 1.0,
        (12, 0.1): far_exact_match,
        (12, 0.9): 1.0,
        (48, 0.1): far_exact_match,
        (48, 0.9): 1.0,
    }
    return [
        {"length": length, "depth": depth, "examples": 4, "exact_match": value, "token_accuracy": value}
        for (length, depth), value in exact_match.items()
    ]


@pytest.mark.slow
def test_a_comparison_shows_the_mean_by_length_and_depth(tiny: Tiny, results: Path, tmp_path: Path) -> None:
    """Two encodings with two seeds each, one of them diverged, and a run of a task without depth."""
    for encoding, seed, far_exact_match in (("alibi", 0, 0.5), ("alibi", 1, 0.7), ("rope", 0, 0.2)):
        run = write_run(tiny(f"pe={encoding}", f"seed={seed}", *GRID), fading(1, 0))
        write_curve(run, read_curve(run.curve), {"depth": depth_rows(far_exact_match)})
    write_run(tiny("pe=rope", "seed=1", *GRID), fading(0, 0), DIVERGED)
    write_run(tiny("pe=rope", "task=copy"), fading(1, 0))
    comparison = compare(results, out=tmp_path / "out")
    by_title = {protocol.title: comparison.depths(protocol) for protocol in comparison.protocols}
    assert by_title["copy, decoder"] == {}
    depths = by_title["needle, decoder"]
    assert {label: cells.loc[0.1, 12] for label, cells in depths.items()} == {
        "alibi": pytest.approx(0.6),
        "rope": pytest.approx(0.1),  # a diverged run counts as 0
    }
    assert depths["rope"].loc[0.9, 48] == 0.5
    assert pd.isna(depths["alibi"].loc[0.9, 6])
    assert list(depths["alibi"].index) == [0.1, 0.3, 0.5, 0.7, 0.9]
    assert len(pd.read_csv(tmp_path / "out" / "depth.csv")) == 3 * 5
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count("<div><table><caption>") == 2


def test_a_run_and_a_later_evaluation_measure_depth(tiny: Tiny, results: Path) -> None:
    run = run_experiment(
        tiny("task=associative_recall", "training.steps=2", "evaluation.lengths=[6,9]").config
    )
    evaluate_run(run.directory.path, {"evaluation": {"lengths": [15], "examples": 20}})
    depth = load_runs(results).depth
    assert set(depth["length"]) == {5, 9, 15}
    assert set(depth.groupby("length")["examples"].sum()) == {20}
