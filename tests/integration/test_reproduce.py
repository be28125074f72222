"""A published run is reproduced: the shortest of a study is trained again."""

from __future__ import annotations

from pathlib import Path

import pytest

from pe_experiments.comparison import Runs
from pe_experiments.run import run_experiment
from pe_experiments.studies.archive import read_archive
from pe_experiments.studies.reproduce import compare_runs, published_config, reproduce_run
from pe_experiments.terminal.console import Display
from tests.conftest import ROOT

RESULTS = ROOT / "results"


@pytest.fixture(scope="module")
def published() -> Runs:
    return read_archive(RESULTS / "tutorial_claims")


@pytest.fixture(scope="module")
def shortest(published: Runs) -> str:
    """The name of the run with the shortest training."""
    steps = published.training.groupby("name")["step"].max()
    cost = published.runs.set_index("name")["seconds_per_step"] * steps
    return str(cost.idxmin())


@pytest.mark.slow
def test_the_shortest_published_run_is_reproduced(
    published: Runs, shortest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reproduce_run(published, shortest, Display()), capsys.readouterr().out


@pytest.mark.slow
def test_a_different_training_is_reported(published: Runs, shortest: str, tmp_path: Path) -> None:
    config = published_config(published, shortest)
    config["training"] |= {"learning_rate": 0.01, "steps": 200}
    again = run_experiment(config | {"results_dir": str(tmp_path), "logger": "none"})
    words, agrees = compare_runs(published, shortest, again)
    assert not agrees
    assert words.startswith("cannot be compared: only one of the two trainings has a result at step")
