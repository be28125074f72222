"""From run directories to tables: grouping, labels, and what is never averaged away."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from pe_experiments.comparison import compare, load_runs
from pe_experiments.comparison.figures import COLOURS, styles
from pe_experiments.config import Experiment
from pe_experiments.experiment import run_experiment

Tiny = Callable[..., Experiment]


@pytest.fixture
def folder(tiny: Tiny) -> Path:
    for scheme in ("sinusoidal", "learned"):
        for seed in (0, 1):
            run_experiment(tiny(f"pe={scheme}", f"seed={seed}"))
    return Path(tiny().config.results_dir)


def test_means_over_seeds_are_those_of_the_curves(folder: Path) -> None:
    made = compare(folder)
    runs = load_runs(folder)
    assert list(made.table["seeds"]) == [2, 2]
    for row in made.table.to_dict("records"):
        curves = runs.curves[(runs.curves["label"] == row["scheme"]) & (runs.curves["content_length"] <= 6)]
        assert row["exact_match_in_distribution"] == pytest.approx(curves["exact_match"].mean())
    written = pd.read_csv(folder / "comparison" / "table.csv")
    pd.testing.assert_frame_equal(written, made.table, check_dtype=False)


def test_protocols_are_never_pooled(folder: Path, tiny: Tiny) -> None:
    run_experiment(tiny("pe=learned", "training.steps=13"))
    made = compare(folder)
    assert made.table.groupby("protocol")["seeds"].sum().sort_values().tolist() == [1, 4]
    names = {path.name for path in made.files if path.suffix == ".png"}
    assert len(names) == 2


def test_two_schemes_under_one_label_are_told_apart(folder: Path, tiny: Tiny) -> None:
    run_experiment(tiny("pe=none", "label=learned"))
    labels = set(load_runs(folder).runs["label"])
    assert len(labels) == 3
    assert sum(label.startswith("learned [") for label in labels) == 2


def test_a_scheme_keeps_its_label_over_several_tasks(folder: Path, tiny: Tiny) -> None:
    for task in ("reverse", "precedence"):
        run_experiment(tiny("pe=learned", f"task={task}"))
    assert set(load_runs(folder).runs["label"]) == {"learned", "sinusoidal"}


def test_diverged_runs_count_as_unsolved(folder: Path) -> None:
    path = next((folder / "runs").glob("copy-decoder-learned-s0-*"))
    result = json.loads((path / "result.json").read_text())
    kept = {key: result[key] for key in ("name", "label", "task", "model", "seed", "evaluation")}
    (path / "result.json").write_text(json.dumps({**kept, "status": "diverged", "reason": "step 3"}))
    table = compare(folder).table.set_index("scheme")
    other = load_runs(folder).runs
    alone = other[(other["label"] == "learned") & (other["seed"] == 1)].iloc[0]
    assert table.loc["learned", "seeds"] == 2
    assert table.loc["learned", "diverged"] == 1
    expected = alone["token_accuracy_in_distribution"]
    assert expected > 0
    assert table.loc["learned", "exact_match_in_distribution"] == alone["exact_match_in_distribution"] / 2


def test_schemes_keep_their_colour() -> None:
    assert (
        styles(["sinusoidal", "x"])["sinusoidal"] == styles(["none", "learned", "sinusoidal"])["sinusoidal"]
    )
    many = styles([f"s{i}" for i in range(20)] + ["none", "alibi"])
    assert len(set(many.values())) == len(many) == 22
    assert {colour for colour, _ in many.values()} <= set(COLOURS)
