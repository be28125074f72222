"""The lengths are evaluated during the training without any effect on it, killed and resumed, too."""

from pathlib import Path

import pandas as pd
import pytest
import torch

from pe_experiments.comparison import build_comparison, compare, load_runs
from pe_experiments.comparison.page import render_page
from pe_experiments.run import Result, run_experiment
from pe_experiments.store.directory import RunDirectory
from pe_experiments.studies.archive import read_archive, select_runs, write_archive
from tests.conftest import Tiny
from tests.interrupted import StopAt

EVERY = ("evaluation.every=4", "evaluation.every_examples=10")


def weights(run: RunDirectory) -> dict[str, torch.Tensor]:
    return torch.load(run.checkpoint, weights_only=True)["state_dict"]


def assert_equal_weights(first: Result, second: Result) -> None:
    one, other = weights(first.run), weights(second.run)
    assert one.keys() == other.keys()
    assert all(torch.equal(value, other[name]) for name, value in one.items())
    assert first.run.metrics.read_bytes() == second.run.metrics.read_bytes()


@pytest.mark.parametrize(
    "options", [("pe=learned",), ("pe=rope", "positions=random_subset", "model.dropout=0.1")]
)
@pytest.mark.usefixtures("checkpoint_every_step")
def test_weights_are_the_same_with_and_without(tiny: Tiny, options: tuple[str, ...], tmp_path: Path) -> None:
    typed = (*options, "training.steps=30")
    without = run_experiment(tiny(*typed, f"results_dir={tmp_path}/without").config)
    whole = run_experiment(tiny(*typed, *EVERY, f"results_dir={tmp_path}/whole").config)
    assert whole.run.name == without.run.name
    assert not without.run.by_step.exists()
    assert_equal_weights(whole, without)
    with pytest.raises(KeyboardInterrupt):
        run_experiment(tiny(*typed, *EVERY).config, StopAt(15, KeyboardInterrupt()))
    resumed = run_experiment(tiny(*typed, *EVERY).config)
    assert resumed.result["resumed_from"]
    assert_equal_weights(resumed, without)
    assert resumed.run.by_step.read_bytes() == whole.run.by_step.read_bytes()
    rows = pd.read_csv(whole.run.by_step)
    assert rows["step"].unique().tolist() == [4, 8, 12, 16, 20, 24, 28]
    assert rows["length"].tolist() == [4, 6, 9] * 7
    assert set(rows["examples"]) == {10}
    comparison = compare(whole.run.results_dir)
    (cells,) = comparison.by_step(comparison.protocols[0]).values()
    assert cells.loc[8, 9] == rows.set_index(["step", "length"]).loc[(8, 9), "exact_match"]
    assert "During the training: exact match, copy, decoder" in render_page(comparison, "title")


def test_the_rows_are_published(tiny: Tiny, tmp_path: Path) -> None:
    for options in ((), EVERY):
        run_experiment(tiny(f"seed={len(options)}", *options).config)
    runs = load_runs(tmp_path / "results")
    write_archive(runs, tmp_path / "archive")
    published = read_archive(tmp_path / "archive")
    pd.testing.assert_frame_equal(published.by_step, runs.by_step)
    assert published.by_step["name"].nunique() == 1
    pd.testing.assert_frame_equal(published.index, runs.index)  # accuracy by index in the answer
    assert "accuracy by index in the answer" in render_page(build_comparison(published), "title")
    first = published.runs["name"] == published.runs["name"].min()
    assert set(select_runs(published, first).index["name"]) == set(published.runs.loc[first, "name"])
