"""Test comparisons in the loss, of language models and of other runs on request."""

import filecmp
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from pe_experiments.comparison import build_comparison, compare, load_runs
from pe_experiments.store.csv_files import read_curve, write_curve
from pe_experiments.store.directory import DIVERGED
from pe_experiments.studies.archive import FILES, merge_runs, read_archive, select_runs, write_archive
from pe_experiments.tasks.text import FEWEST_BYTES
from tests.conftest import Tiny
from tests.synthetic import fading, write_run

GRID = ("training.min_length=6", "evaluation.lengths=[6,12,48]")
SLOPES = {"alibi": 0.0, "rope": 0.4, "learned": 1.0}  # nats per doubling of the length past training


def loss_at(slope: float, start: float, length: int) -> float:
    return start + slope * math.log2(length / 6)


def text_rows(loss: Callable[[int], float]) -> list[dict[str, Any]]:
    """Return rows of ``text.csv`` whose bits per byte are the loss."""
    kinds = [("sliding", "all"), ("sliding", "repeated_near"), ("sliding", "repeated_far"), ("copy", "all")]
    rows: list[dict[str, Any]] = [
        {"length": n, "windows": windows, "slice": name, "bits_per_byte": loss(n), "accuracy": 0.5}
        for n in (6, 12, 48)
        for windows, name in kinds
    ]
    by_index = {"length": 48, "windows": "non_overlapping", "slice": "index", "accuracy": 0.5}
    return rows + [by_index | {"last_index": n, "bits_per_byte": loss(n)} for n in range(6, 48)]


@pytest.fixture
def text_runs(tiny: Tiny, results: Path, tmp_path: Path) -> Path:
    """Language models with three encodings and four seeds each, and one run that diverged."""
    path = tmp_path / "book.txt"
    path.write_bytes(b"to be or not to be " * FEWEST_BYTES)
    for encoding, slope in SLOPES.items():
        for seed in range(4):
            experiment = tiny("task=text", f"task.path={path}", f"pe={encoding}", f"seed={seed}", *GRID)
            loss = partial(loss_at, slope, 1.0 + 0.01 * seed)
            run = write_run(experiment, fading(0, 0), losses=loss)
            write_curve(run, read_curve(run.curve), {"text": text_rows(loss)})
    diverged = tiny("task=text", f"task.path={path}", "pe=t5", "seed=0", *GRID)
    write_run(diverged, fading(0, 0), DIVERGED)
    return results


@pytest.mark.slow
def test_language_models_are_compared_in_their_loss(text_runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    comparison = compare(text_runs, out=out)
    table = comparison.table.set_index("encoding")
    assert list(table.index) == ["alibi", "rope", "learned", "t5"]
    assert set(table["metric"]) == {"loss_extrapolation"}
    assert table.loc["rope", "loss_in_distribution"] == pytest.approx(1.015)
    assert table.loc["rope", "loss_extrapolation"] == pytest.approx(1.015 + 0.4 * 2)  # from 2x to 8x
    assert table.loc["t5", "loss_extrapolation"] == pytest.approx(math.log(256))
    ends = stats.t.interval(0.95, 3, 1.815, stats.sem([1.80, 1.81, 1.82, 1.83]))
    columns = ["loss_extrapolation_low", "loss_extrapolation_high"]
    np.testing.assert_allclose(table.loc["rope", columns].to_numpy(float), ends)
    (sentence,) = comparison.sentences.values()
    assert sentence.startswith("alibi has the lowest mean loss (nats) past the training lengths, 1.015 [")
    pair = comparison.pairs[comparison.pairs["p"].notna()].iloc[0]
    assert (pair["encoding"], pair["other"]) == ("alibi", "rope")
    assert pair["difference"] == pytest.approx(-0.8)
    text = pd.read_csv(out / "text.csv")
    assert len(text) == 12 * (3 * 4 + 42)
    sliding = text[(text["windows"] == "sliding") & (text["length"] == 48)]
    expected = [1 + 0.01 * seed + 3 * slope for seed in range(4) for slope in SLOPES.values()]
    means = sliding.groupby("name")["bits_per_byte"].mean()
    np.testing.assert_allclose(sorted(means), sorted(expected))


@pytest.mark.slow
def test_a_published_study_of_texts_regenerates(text_runs: Path, tmp_path: Path) -> None:
    runs = load_runs(text_runs)
    write_archive(runs, tmp_path / "a")
    read = read_archive(tmp_path / "a")
    three = select_runs(runs, runs.runs["name"].isin(list(runs.saved)[:3]))
    write_archive(merge_runs(read, three), tmp_path / "b")
    names = (*FILES, "text.csv")
    assert filecmp.cmpfiles(tmp_path / "a", tmp_path / "b", names, shallow=False)[0] == list(names)
    pd.testing.assert_frame_equal(build_comparison(read).table, build_comparison(runs).table)
