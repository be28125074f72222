"""A scheme against a bank: its own runs are few, the baselines are taken from what is published."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from pe_experiments.commands.train import main
from pe_experiments.comparison.runs import read_runs
from pe_experiments.published.archive import write_archive
from tests.conftest import ROOT, Outcome
from tests.processes import run_script

pytestmark = pytest.mark.slow
Script = Callable[..., Outcome]
SMALL = (
    "model.d_model=16", "model.num_heads=2", "training.max_length=5", "training.batch_size=8",
    "training.check_every=5", "evaluation.examples=20", "logger.mode=disabled",
    "training.steps=10", "model=decoder",
    'sweep.cases=[["task=kth"], ["task=copy", "task.vocab_size=4"]]', "training.learning_rate=0.003,0.001",
)  # fmt: skip


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results directory with a small bank, of which nothing but the CSVs is left."""
    results = tmp_path_factory.mktemp("bank")
    schemes = ("sweep.schemes=[]", "pe=none,alibi", "seed=0,1,2,3,4")
    assert main(["sweep=bank_v2", *SMALL, *schemes, f"results_dir={results}"]) == 0
    runs = read_runs(results, "bank/v2")
    shutil.rmtree(results / "bank")
    write_archive(runs, results / "bank" / "v2")
    shutil.rmtree(results / "runs")
    return results


def test_a_bank_goes_on_from_what_is_published(bank: Path, script: Script, tmp_path: Path) -> None:
    results = shutil.copytree(bank, tmp_path / "results")
    command = (
        "train", "sweep=bank_v2", *SMALL, "sweep.schemes=[]", "pe=none,rope", "seed=0,1,2", "dry_run=true",
        f"results_dir={results}",
    )  # fmt: skip
    outcome = script(*command)
    assert outcome.code == 0, outcome.err
    assert "24 runs: 12 published, 12 new" in outcome.out
    assert "24 runs: 24 new" in script(*command, "rerun=true").out


def test_a_scheme_is_run_alone_and_gets_a_verdict_against_each_baseline(
    bank: Path, script: Script, tmp_path: Path
) -> None:
    results = shutil.copytree(bank, tmp_path / "results")
    own = ("pe._target_=tests.integration.outside.Recency", "+pe.slope=0.2", "seed=0,1,2,3,4")
    outcome = script("train", "sweep=versus", *SMALL, *own, f"results_dir={results}")
    assert outcome.code == 0, outcome.err
    assert "bank/v2: the baselines were trained with NUMERICS" in outcome.out
    assert set(read_runs(results).runs["label"]) == {"Recency(slope=0.2)"}
    folder = results / "versus" / "Recency_slope-0.2"
    verdicts = pd.read_csv(folder / "verdicts.csv", keep_default_na=False)
    assert sorted(zip(verdicts["task"], verdicts["baseline"], strict=True)) == [
        ("copy", "alibi"), ("copy", "none"), ("kth", "alibi"), ("kth", "none"),
    ]  # fmt: skip
    assert set(verdicts["settings"]) == {4}  # nobody learns anything in ten steps: clear at once
    page = (folder / "report.html").read_text()
    assert page.index("<figure>") < page.index("<h2>Verdicts</h2>")
    assert "likely did not learn it often enough, like <b>2</b> (alibi, none)" in page
    assert "8 of 10 settings were run" in outcome.out
    metric = "sweep.metric=exact_match_at_4x"
    again = script("train", "sweep=versus", *SMALL, *own, f"results_dir={results}", metric)
    assert again.code == 0, again.err
    assert "compared in exact match at 4x" in (folder / "report.html").read_text()
    (folder / "manifest.json").unlink()  # as if they had been trained for another study
    all_settings = script("train", "sweep=versus", *SMALL, *own, f"results_dir={results}", "sweep.change=0")
    assert "10 of 10 settings were run" in all_settings.out
    assert set(pd.read_csv(folder / "verdicts.csv")["complete"]) == {True}
    assert "likely" not in (folder / "report.html").read_text().partition("<h2>Every setting")[0]


def test_an_edited_scheme_and_another_label_get_verdicts_of_their_own(bank: Path, tmp_path: Path) -> None:
    results, mine = shutil.copytree(bank, tmp_path / "results"), tmp_path / "mine.py"
    text = (ROOT / "tests" / "integration" / "outside.py").read_text()
    own = ("pe._target_=mine.Recency", "seed=0,1,2,3,4", f"results_dir={results}", *SMALL)
    command = [str(ROOT / "scripts" / "train.py"), "sweep=versus", *own]
    for factor in ("1", "2", "1"):  # and back: both codes' runs are there
        mine.write_text(text.replace("return -self.slope", f"return {factor} * -self.slope"))
        outcome = run_script(*command, cwd=tmp_path)
        assert outcome.returncode == 0, outcome.stderr
        assert "8 of 10 settings were run" in outcome.stdout
    renamed = run_script(*command, "label=other", cwd=tmp_path)
    assert "finished already" in renamed.stdout + renamed.stderr
    assert (results / "versus" / "other" / "verdicts.csv").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("pe=none,rope",), "sweep=versus compares one scheme with the bank; here are 2"),
        (("pe=rope", "sweep.against=bank/v9"), "sweep.against=bank/v9: no published study there"),
        (
            ("pe=rope", "sweep.baselines=[nobody]"),
            "sweep.baselines: nobody is not in the bank; allowed: alibi",
        ),
        (("pe=rope", "training.weight_decay=0.5"), "task=kth: training.weight_decay=0.5 (there: 0.01);"),
        (
            ("pe=rope", "sweep.metric=loss"),
            "sweep.metric=loss: not measured; allowed: score, exact_match_at_",
        ),
        (
            ("pe=rope", "sweep.against=tutorial_claims"),
            "sweep.against=tutorial_claims: no task and seed with all schemes",
        ),
        (("pe=rope", "label=alibi"), "label=alibi: that is a scheme of bank/v2; take another"),
        (("pe=rope", "training.learning_rate=0.003"), "0.001, 0.003 in every setting; leave it out"),
        (("pe=rope", "seed=7"), "task=kth: seed=7 (there: 0);"),
        (("pe=rope", "evaluation.lengths=[5,10]"), "evaluation.lengths=[5, 10] (there: ["),
        (("pe=rope", "sweep.tune=seed"), "sweep.tune=seed: bank/v2 says which rates are run"),
        (("pe=rope", "evaluation.examples=30"), "task=kth: evaluation.examples=30 (there: 20);"),
        (
            ("pe=rope", 'sweep.cases=[["task=sort"]]'),
            "task=sort: the task is not in bank/v2; allowed: copy or kth;",
        ),
    ],
)
def test_what_cannot_be_compared_is_said_before_anything_is_run(
    bank: Path, script: Script, tmp_path: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    results = shutil.copytree(bank, tmp_path / "results")
    outcome = script("train", "sweep=versus", *SMALL, *arguments, f"results_dir={results}")
    assert outcome.code == 1
    assert sentence in outcome.err
    assert outcome.err.count("\n") == 1
    assert not (results / "runs").exists()
