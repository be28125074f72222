"""Published runs come out again: the two shortest of a study are trained as they were."""

from __future__ import annotations

import pytest

from pe_experiments.comparison import Runs
from pe_experiments.published.archive import read_archive
from pe_experiments.published.reproduce import compare_runs, published_config, reproduce, reproduce_run
from pe_experiments.run import run_experiment
from pe_experiments.terminal.console import Display
from pe_experiments.terminal.errors import UserError
from tests.conftest import ROOT

RESULTS = ROOT / "results"


def cheapest(published: Runs) -> list[str]:
    """Return the names of the runs, those that train the shortest first."""
    steps = published.training.groupby("name")["step"].max()
    cost = published.runs.set_index("name")["seconds_per_step"] * steps
    return list(map(str, cost.sort_values().index))


@pytest.mark.slow
def test_the_shortest_published_runs_come_out_again(capsys: pytest.CaptureFixture[str]) -> None:
    published = read_archive(RESULTS / "tutorial_claims")
    for name in cheapest(published)[:2]:
        assert reproduce_run(published, name, Display()), capsys.readouterr().out


@pytest.mark.slow
def test_another_training_differs(tmp_path_factory: pytest.TempPathFactory) -> None:
    published = read_archive(RESULTS / "tutorial_claims")
    name = cheapest(published)[0]
    config = published_config(published, name)
    config["training"] |= {"learning_rate": 0.01}
    scratch = {"results_dir": str(tmp_path_factory.mktemp("again")), "logger": "none"}
    words, agrees = compare_runs(published, name, run_experiment(config | scratch))
    assert not agrees
    assert words.startswith("differs within the first 200 steps")


def test_what_cannot_be_reproduced_is_one_sentence() -> None:
    with pytest.raises(UserError, match=r"reproduce=bank is not a published study\. Did you mean bank/v2"):
        reproduce("bank", 1, RESULTS, Display())
    with pytest.raises(UserError, match="runs=99: precision has 90 completed runs"):
        reproduce("precision", 99, RESULTS, Display())
