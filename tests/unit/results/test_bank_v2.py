"""Test the verdicts and the recommendation of the bank with independent code."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from scipy import stats

from pe_experiments.studies.pages import load_study
from pe_experiments.tasks.state import FlipFlop
from tests import recomputation
from tests.conftest import ROOT

BANK = ROOT / "results" / "bank" / "v2"
NEW = ROOT / "results" / "bank" / "new"
TELLING = ("copy", "lag", "induction", "flip_flop")  # the tasks of the mean


@pytest.fixture(scope="module")
def bank() -> recomputation.Bank:
    return recomputation.bank_runs(BANK)


def values_of(bank: recomputation.Bank, task: str, measure: str) -> recomputation.Values:
    """Return the values behind one row of ``verdicts.csv``."""
    if task == "mean":
        return recomputation.over_tasks(bank, TELLING, "score")
    column = {"at 2x": "2x", "at 4x": "4x"}.get(measure, "score")
    return recomputation.measured(bank[task], column, as_zero=measure.endswith("as 0"))


def test_independent_code_finds_the_verdicts(bank: recomputation.Bank) -> None:
    """By every measure, with unlearned configurations left out and as 0."""
    rows = recomputation.read_csv(BANK / "verdicts.csv")
    groups = itertools.groupby(rows, key=lambda row: (row["task"], row["measure"]))
    published = {key: list(group) for key, group in groups}
    assert len(published) == 6 * 4 + 1
    for key, rows in published.items():
        best, differences = recomputation.best_against_others(values_of(bank, *key))
        assert {row["best"] for row in rows} == {best}, key
        tested = [row for row in rows if row["difference"]]
        assert {row["encoding"] for row in tested} == set(differences), key
        for row in tested:
            difference, p = differences[row["encoding"]]
            assert float(row["difference"]) == pytest.approx(difference, abs=1e-9)
            assert float(row["p"]) == pytest.approx(p)
            assert (row["verdict"] == "better") == (p <= 0.05)


@pytest.fixture(scope="module")
def together(bank: recomputation.Bank) -> recomputation.Bank:
    """Return the bank's runs on the four tasks with those of the complete newer encodings."""
    counts = Counter(row["label"] for row in recomputation.read_csv(NEW / "runs.csv"))
    unfinished = tuple(f"pe={label} " for label, runs in counts.items() if runs < 4 * 12 * 2)
    added = recomputation.bank_runs(NEW, floors_of=BANK, without=unfinished)
    return {task: {**bank[task], **added[task]} for task in TELLING}


def test_independent_code_finds_the_ranking(together: recomputation.Bank) -> None:
    published = {row["encoding"]: row for row in recomputation.read_csv(BANK / "ranking.csv")}
    assert len(published) == len(together["copy"]) == 18
    scores = recomputation.over_tasks(together, TELLING, "score")
    best, differences = recomputation.best_against_others(scores)
    assert next(iter(published)) == best == "fox(initial_bias=4)"
    for name, row in published.items():
        assert float(row["mean"]) == pytest.approx(np.mean([*scores[name].values()]))
        for task in TELLING:
            values = recomputation.measured(together[task], "score", as_zero=True)[name]
            assert float(row[task]) == pytest.approx(np.mean([*values.values()]))
        for times in ("2x", "4x"):
            mean = np.mean([*recomputation.over_tasks(together, TELLING, times)[name].values()])
            assert float(row[f"exact_match_at_{times}"]) == pytest.approx(mean)
        learned = sum(runs["learned"] for task in TELLING for runs in together[task][name].values())
        assert (int(row["learned"]), int(row["cases"])) == (learned, 48)
        if name != best:
            assert (float(row["difference"]), float(row["p"])) == pytest.approx(differences[name])
    tied = [name for name, row in published.items() if row["tied"] == "True"]
    assert tied == ["fox(initial_bias=4)", "cpb_log", "cope", "fox", "cpb_linear", "kerple_log"]
    assert all((float(row["calibrated_p"]) > 0.05) == (name in tied) for name, row in published.items())


def test_a_loop_over_samples_of_tasks_and_configurations_finds_the_intervals(
    together: recomputation.Bank,
) -> None:
    """Intervals and shares of first places agree within the error of both samples."""
    published = {row["encoding"]: row for row in recomputation.read_csv(BANK / "ranking.csv")}
    names = [*published]
    values = np.array(
        [
            [
                [*recomputation.measured(together[task], "score", as_zero=True)[name].values()]
                for name in names
            ]
            for task in TELLING
        ]
    )
    random = np.random.default_rng(3)
    means = []
    for _ in range(6000):
        tasks, settings = random.integers(4, size=4), random.integers(12, size=12)
        means.append(values[tasks][:, :, settings].mean(axis=(0, 2)))
    samples = np.array(means)
    first = np.bincount(samples.argmax(axis=1), minlength=len(names)) / len(samples)
    for place, name in enumerate(names):
        low, high = np.quantile(samples[:, 0] - samples[:, place], [0.025, 0.975])
        row = published[name]
        assert (float(row["both_low"]), float(row["both_high"])) == pytest.approx((low, high), abs=0.03)
        assert float(row["first"]) == pytest.approx(first[place], abs=0.025)
    on_top = np.mean(samples[:, :6].min(axis=1) > samples[:, 6:].max(axis=1))
    blocks = load_study(BANK).blocks(BANK)
    assert blocks["both/on top"] == pytest.approx(on_top, abs=0.03)
    by_task = values.mean(axis=2)
    ps = [float(stats.ttest_rel(by_task[:, 0], by_task[:, n]).pvalue) for n in range(1, len(names))]
    assert blocks["tasks/lower"] == sum(p <= 0.05 for p in recomputation.holm(ps)) == 0
    assert blocks["both/open"] == 0


@pytest.mark.parametrize("ignore", [0.8, 0.9])
def test_the_floor_of_flip_flop_is_the_majority_of_the_bits_so_far(ignore: float) -> None:
    task = FlipFlop(ignore)
    total = 0.0
    inputs, targets = task.sample(20, 4000, torch.Generator().manual_seed(1))
    for row, answers in zip(inputs.tolist(), targets.tolist(), strict=True):
        counts = [0, 0]
        chance = 1.0
        for place in range(0, 20, 2):
            if row[place] == task.write:
                counts[row[place + 1]] += 1
            elif answers[place] >= 0 and counts[0] == counts[1]:
                chance *= 0.5
            elif answers[place] >= 0:
                chance *= answers[place] == (counts[1] > counts[0])
        total += chance
    floor = load_study(BANK).majority_of_bits(ignore, 20)
    assert floor == pytest.approx(total / 4000, abs=0.02)
