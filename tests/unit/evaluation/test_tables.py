"""Predictions, own metrics and accuracy by index agree with the curve, and do not change a run's identity."""

import importlib
import math
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml  # type: ignore[import-untyped]

from pe_experiments import compare, evaluate_run, load_model, run_experiment
from pe_experiments.comparison.page import render_page
from pe_experiments.evaluation.metrics import Metric, exact_match
from pe_experiments.store.identity import identify
from pe_experiments.terminal.errors import UserError
from tests.conftest import TINY, Script, Tiny, assert_one_sentence

HERE = "tests.unit.evaluation.test_tables"
METRIC = f"evaluation.metrics=[{HERE}.first_error]"


def first_error(batch, answers_BT):
    """Return the index of the first wrong scored token of each row; NaN if there is none."""
    wrong_BT = (answers_BT != batch.labels_BT) & (batch.labels_BT != -100)
    index_BT = (batch.labels_BT != -100).cumsum(dim=1) - 1
    first_B = index_BT.gather(1, wrong_BT.long().argmax(dim=1, keepdim=True))[:, 0]
    return first_B.double().where(wrong_BT.any(dim=1), torch.nan)


WRONG = Metric("wrong", lambda *answers: ~exact_match(*answers), "wrong answers", (0, 1), False, binary=True)


SHARE = Metric(
    "share", lambda *answers: exact_match(*answers), bounds=(0, 1), guess=lambda row: row["chance"] / 2
)


UNGUESSED = Metric("unguessed", lambda *answers: exact_match(*answers), guess=lambda row: row["none"])


def mean_over_the_batch(batch, answers_BT):
    return (answers_BT == batch.labels_BT).float().mean()


def loss(batch, answers_BT):
    return answers_BT[:, 0]


@pytest.mark.parametrize(
    "options",
    [
        ("task=copy", "pe=rope"),
        ("task=deduplicate", "evaluation.decoding=greedy"),  # answers of different lengths
        ("task=flip_flop", "training.min_length=4", "evaluation.lengths=[4,6,12]"),
        ("task=reverse", "model=encoder"),
    ],
)
def test_kept_predictions_give_the_curve(tiny: Tiny, options: tuple[str, ...]) -> None:
    experiment = tiny(*options, METRIC, "evaluation.save=true", "evaluation.examples=130")
    result = run_experiment(experiment.config)
    folder = result.directory.path
    predictions = pd.read_csv(folder / "predictions.csv", dtype=str, keep_default_na=False)
    by_index = pd.read_csv(folder / "index.csv")
    assert by_index["length"].unique().tolist() == [6, 12 if "task=flip_flop" in options else 9]
    assert len(predictions) == 3 * 130
    for row in result.curve:
        rows = predictions[predictions["length"] == str(row["length"])]
        assert (rows["exact"] == "1").mean() == row["exact_match"]
        firsts, right, total, solved = [], 0, 0, 0
        for example in rows.itertuples():
            target, answer = example.target.split(), example.answer.split()
            assert (target == answer) == (example.exact == "1")
            pairs = list(zip(target, answer, strict=True))
            firsts += [next((n for n, (a, b) in enumerate(pairs) if a != b), np.nan)]
            right += sum(a == b for a, b in pairs if a != "E")
            total += sum(a != "E" for a, _ in pairs)
            inputs = torch.tensor([[*map(int, example.input.split())]])
            solved += [str(n) for n in experiment.task.solve(inputs)[0].tolist() if n >= 0] == [
                symbol for symbol in target if symbol != "E"
            ]
        assert solved == 130
        assert row["token_accuracy"] == pytest.approx(right / total)
        assert row["first_error"] == pytest.approx(np.nanmean(firsts))
        if row["length"] in set(by_index["length"]):
            table = by_index[by_index["length"] == row["length"]]
            assert table["tokens"].sum() == total
            assert (table["tokens"] * table["token_accuracy"]).sum() == pytest.approx(right)


def test_a_later_evaluation_adds_a_metric_to_the_comparison(tiny: Tiny, results: Path) -> None:
    experiment = tiny()
    run = run_experiment(experiment.config).directory
    assert identify(tiny(METRIC, "evaluation.save=true")) == identify(experiment)
    evaluation = {**experiment.config.evaluation.model_dump(), "metrics": [f"{HERE}.first_error"]}
    later = evaluate_run(run.path, {"evaluation": evaluation})
    directory = later.directory.path
    assert later.done == "evaluated"
    assert later.directory.path != run.path
    compared = compare(results)
    expected = [row["first_error"] for row in later.curve]
    assert compared.protocols[0].curves["first_error"].tolist() == expected
    page = render_page(compared, "title")
    assert '"title":"first error"' in page
    assert "token accuracy by index in the answer, length 6" in page
    by_metric = compare(results, metric="first_error_in_distribution")
    (row,) = by_metric.table.to_dict("records")
    assert row["first_error_in_distribution"] == later.result["first_error_in_distribution"]
    assert row["first_error@9"] == later.curve[-1]["first_error"]
    (directory / "index.csv").write_text("length,index,tokens,token_accuracy\n6,0,20,0.5\n6,1,2")
    compared = compare(results)  # without that file
    assert any("index.csv" in name for name in compared.runs.left_out)
    render_page(compared, "title")


def test_a_metric_says_its_bounds_and_its_direction(tiny: Tiny, results: Path) -> None:
    for seed in range(3):
        result = run_experiment(tiny(f"evaluation.metrics=[{HERE}.WRONG]", f"seed={seed}").config)
        assert {*WRONG.columns} <= result.curve[0].keys()
    comparison = compare(results, metric="wrong")
    assert comparison.summary.lower_is_better
    assert "lowest" not in next(iter(comparison.sentences.values()))
    row = result.curve[-1]
    assert row["wrong"] == pytest.approx(1 - row["exact_match"])
    assert row["wrong_low"] == pytest.approx(1 - row["exact_match_high"])


def test_an_edited_metric_counts_as_it_was_measured_last(
    tiny: Tiny, results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    noted = []
    for value, seed in ((7.0, 0), (7.0, 1), (3.0, 0), (3.0, 1)):
        Path(tmp_path, "edited_metric.py").write_text(
            f"import torch\ndef constant(batch, answers):\n    return torch.full([len(answers)], {value})\n"
        )
        monkeypatch.delitem(sys.modules, "edited_metric", raising=False)
        importlib.invalidate_caches()
        run_experiment(tiny("evaluation.metrics=[edited_metric.constant]", f"seed={seed}").config)
        comparison = compare(results, metric="constant")
        noted.append("before edited_metric was edited" in " ".join(comparison.notes))
    assert noted == [False, False, True, False]
    assert comparison.table["constant_extrapolation"].tolist() == [3.0]


def test_bounds_are_two_numbers() -> None:
    with pytest.raises(ValueError, match=r"bounds=.* allowed: two numbers, the lower one first, or None"):
        Metric("errors", bounds=(0, math.inf))


def test_a_comparison_counts_a_guess_as_the_run_does(tiny: Tiny, results: Path) -> None:
    result = run_experiment(tiny(f"evaluation.metrics=[{HERE}.SHARE]").config)
    (row,) = compare(results, metric="share").table.to_dict("records")
    assert row["share_extrapolation"] == pytest.approx(result.result["share_extrapolation"])
    assert row["share_extrapolation"] < result.curve[-1]["share"] + 0.01  # a guess counts as 0
    assert "share_guess" not in {metric.name for metric in compare(results).runs.metrics}


def test_an_edited_metric_is_evaluated_again(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    hashes = []
    for value in (1, 2, 2):
        metric = f"def value(batch, answers_BT):\n    return [{value}] * len(answers_BT)\n"
        (tmp_path / "edited_metric.py").write_text(metric)
        sys.modules.pop("edited_metric", None)
        importlib.invalidate_caches()
        result = run_experiment(tiny("evaluation.metrics=[edited_metric.value]").config)
        assert [row["value"] for row in result.curve] == [value] * 3
        hashes.append((result.run.name, result.directory.name, result.done))
    names, directories, done = zip(*hashes, strict=True)
    assert len(set(names)) == 1
    assert directories[0] != directories[1] == directories[2]
    assert done == ("trained", "evaluated", "found")


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (f"[{HERE}.first_eror]", ["no function of that name", "first_error"]),
        (f"[{HERE}.mean_over_the_batch]", ["mean_over_the_batch", "one number for each of the 8 rows"]),
        (f"[{HERE}.loss]", ["loss is a column of a result"]),
        (f"[{HERE}.UNGUESSED]", ["unguessed: guess fails"]),
        (f"[{HERE}.loss] task=text", ["evaluation.metrics: Text has no answers"]),
        ("[] evaluation.save=true task=text", ["evaluation.save: Text has no answers"]),
    ],
)
def test_a_mistake_is_one_sentence(script: Script, results: Path, option: str, words: list[str]) -> None:
    typed = f"evaluation.metrics={option}".split()
    assert_one_sentence(script("train", *TINY, *typed, f"results_dir={results}"), *words)
    assert not results.exists()


def test_a_strangers_metric_needs_trust(tiny: Tiny) -> None:
    run = run_experiment(tiny(METRIC).config).directory
    assert yaml.safe_load(run.config.read_text())["evaluation"]["metrics"] == [f"{HERE}.first_error"]
    with pytest.raises(UserError, match=r"first_error, from outside this package.*trust=true"):
        load_model(run.path)
    assert load_model(run.path, trust=True).experiment.metrics["first_error"] is first_error
