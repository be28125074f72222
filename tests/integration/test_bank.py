"""``sweep=versus`` trains one encoding and compares it with the published runs of the bank."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pandas as pd
import pytest

from pe_experiments.comparison.runs import read_runs
from pe_experiments.configuration.experiment import Experiment
from pe_experiments.store.study_folder import list_in_study
from pe_experiments.studies.archive import write_archive
from tests import conftest
from tests.conftest import ROOT, TRAIN, Script, tiny_in
from tests.processes import run_script
from tests.synthetic import fading, write_run

pytestmark = pytest.mark.slow
TASKS = ("kth", "copy")
SETTINGS = ("bank/s0", "bank/s1")
RATES = (0.003, 0.001)
LENGTHS = ("training.max_length=5", "training.check_every=5", "training.steps=10", "evaluation.lengths=null")
TINY = (*conftest.TINY, *LENGTHS)
SMALL = (*TINY, f"task={','.join(TASKS)}", f"experiment={','.join(SETTINGS)}")
USER_ENCODING = ("pe=custom", "pe._target_=tests.integration.user_encodings.Recency", "+pe.slope=0.2")


def experiments(results: Path, *encoding: str) -> Iterator[Experiment]:
    """Every run of an encoding in the small bank, task by task."""
    make = tiny_in(results, TINY)
    for task, setting, rate in product(TASKS, SETTINGS, RATES):
        yield make(f"task={task}", f"experiment={setting}", f"training.learning_rate={rate}", *encoding)


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results directory with the CSVs of a small bank of synthetic runs."""
    results = tmp_path_factory.mktemp("bank")
    for encoding in ("none", "alibi"):
        for experiment in experiments(results, f"pe={encoding}"):
            list_in_study(results, "bank", write_run(experiment, fading(0.4, 0.1)).name)
    runs = read_runs(results, "bank")
    shutil.rmtree(results / "bank")
    write_archive(runs, results / "bank")
    shutil.rmtree(results / "runs")
    return results


def test_published_runs_of_the_bank_are_not_trained_again(bank: Path, script: Script) -> None:
    typed = ("sweep=bank", *SMALL, "pe=none,t5", "dry_run=true", f"results_dir={bank}")
    out = script("train", *typed).succeeded()
    assert "16 runs: 8 published, 8 new" in out
    few = ("sweep=bank", *TINY, "task=copy", "experiment=bank/s0", "pe=none", "dry_run=true", typed[-1])
    for other in ("rerun=true", "evaluation.lengths=[5,7]", "evaluation.examples=9", "evaluation.save=true"):
        assert "2 runs: 2 new" in script("train", *few, other).out


def test_an_encoding_is_compared_with_each_published_baseline(
    bank: Path, script: Script, tmp_path: Path
) -> None:
    """The sweep trains only the last run of each task; the others are written before."""
    results = shutil.copytree(bank, tmp_path / "results")
    for number, experiment in enumerate(experiments(results, *USER_ENCODING), 1):
        if number % (len(SETTINGS) * len(RATES)):
            write_run(experiment, fading(0.4, 0.1))
    metric = "hydra.callbacks.report.metric=exact_match_at_4x"
    out = script(
        "train", "sweep=versus", *SMALL, *USER_ENCODING, f"results_dir={results}", metric
    ).succeeded()
    assert "bank: the baselines were trained with NUMERICS" in out
    assert re.search(r"2 runs, \d+ steps in all, .*; the page comes after kth \(1 of them\)", out)
    assert set(read_runs(results).runs["label"]) == {"Recency(slope=0.2)"}
    folder = results / "versus" / "Recency_slope_0.2"
    verdicts = pd.read_csv(folder / "verdicts.csv", keep_default_na=False)
    assert sorted(zip(verdicts["task"], verdicts["baseline"], strict=True)) == [
        ("copy", "alibi"), ("copy", "none"), ("kth", "alibi"), ("kth", "none"),
    ]  # fmt: skip
    assert set(verdicts["configurations"]) == {len(SETTINGS)}
    page = (folder / "report.html").read_text()
    assert page.index("<figure>") < page.index("<h2>Verdicts</h2>")
    assert "did not learn the task often enough, like <b>2</b> (alibi, none)" in page
    assert "compared in exact match at 4x" in page


def test_an_edited_encoding_gets_verdicts_of_its_own(bank: Path, tmp_path: Path) -> None:
    results = shutil.copytree(bank, tmp_path / "results")
    text = (ROOT / "tests" / "integration" / "user_encodings.py").read_text()
    command = [TRAIN, "sweep=versus", "pe=mine.Recency", *TINY, "task=kth"]
    command += ["experiment=bank/s0", "hydra.launcher.jobs=1", f"results_dir={results}"]
    for source in (text, text.replace("return -self.slope", "return 2 * -self.slope")):
        (tmp_path / "mine.py").write_text(source)
        outcome = run_script(*command, cwd=tmp_path, forks=True)
        assert "1 configurations were run on 1 tasks" in outcome.stdout


@pytest.mark.parametrize(
    ("typed", "sentence"),
    [
        ("pe=none,rope", "sweep=versus compares one encoding with the bank, got 2"),
        ("pe=rope hydra.callbacks.report.bank=bank/v9", "bank=bank/v9 is not a published study in"),
        ("pe=rope hydra.callbacks.report.baselines=[nobody]", "nobody is not in the bank; allowed: alibi"),
        ("pe=rope training.weight_decay=0.5", "training.weight_decay=0.5 (bank: 0.01)"),
        ("pe=rope label=alibi", "label=alibi is the name of an encoding of bank; choose another"),
        ("pe=rope evaluation.lengths=[5,10]", "evaluation.lengths=[5, 10] (bank: ["),
        ("pe=rope task=sort", "task=sort is not in bank"),
        ("pe=alibi", "alibi is in bank, with these runs"),
    ],
)
def test_an_impossible_comparison_is_refused_before_training(
    bank: Path, script: Script, typed: str, sentence: str
) -> None:
    small = (*TINY, "experiment=bank/s0", *(() if "task=" in typed else ("task=kth",)))
    outcome = script("train", "sweep=versus", *small, *typed.split(), f"results_dir={bank}")
    assert outcome.code == 1
    assert sentence in outcome.err
    assert outcome.err.count("error: ") == 1
    assert not (bank / "runs").exists()
