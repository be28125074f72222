"""Test the verdicts and the recommendation of the bank with independent code."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch

from pe_experiments.published.pages import load_study
from pe_experiments.tasks.state import FlipFlop
from tests import recomputation
from tests.conftest import ROOT

BANK = ROOT / "results" / "bank" / "v2"
NEED_ORDER = ("copy", "lag", "induction", "flip_flop", "kth")


@pytest.fixture(scope="module")
def bank() -> recomputation.Bank:
    return recomputation.bank_runs(BANK)


def values_of(bank: recomputation.Bank, task: str, measure: str) -> recomputation.Values:
    """Return the values behind one row of ``verdicts.csv``."""
    if task == "mean":
        by_task = [recomputation.measured(bank[name], "score", as_zero=True) for name in NEED_ORDER]
        return {
            name: {n: float(np.mean([values[name][n] for values in by_task])) for n in range(12)}
            for name in by_task[0]
        }
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


@pytest.mark.slow
def test_independent_code_finds_the_table_of_scores_and_the_ranks(bank: recomputation.Bank) -> None:
    """The table shows scores with unlearned configurations as 0 and left out, by the mean over tasks."""
    blocks = load_study(BANK).blocks(BANK)
    rows = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in blocks["views"].splitlines()]
    assert rows[0][2:] == list(NEED_ORDER)
    means = {name: np.mean(list(values.values())) for name, values in values_of(bank, "mean", "area").items()}
    by_mean = sorted(means, key=lambda name: -means[name])
    assert [row[0] for row in rows[2:]] == by_mean
    for name, mean, *cells in rows[2:]:
        assert mean == f"{means[name]:.2f}"
        for task, cell in zip(NEED_ORDER, cells, strict=True):
            learned = list(recomputation.measured(bank[task], "score")[name].values())
            expected = f"{sum(learned) / 12:.2f} / {np.mean(learned):.2f}"
            if len(learned) < 12:
                expected += f" ({len(learned)} of 12)"
            assert cell == expected
    ranks = [line.split("|") for line in blocks["ranks"].splitlines()[2:]]
    assert [cells[1].strip(" `") for cells in ranks] == by_mean
    assert [cells[2].split()[0] for cells in ranks] == [str(n) for n in range(1, 13)]


class Standing(NamedTuple):
    best: str
    tied: set[str]
    lower: set[str]
    second: str


def standing(bank: recomputation.Bank, task: str, measure: str = "area") -> Standing:
    values = values_of(bank, task, measure)
    best, differences = recomputation.best_against_others(values)
    lower = {name for name, (_, p) in differences.items() if p <= 0.05}
    means = {name: np.mean(list(values[name].values())) for name in (best, *differences)}
    second = sorted(means, key=lambda name: -means[name])[1]
    return Standing(best, set(differences) - lower, lower, second)


def test_statements_written_by_hand_about_the_best_encodings_are_true(bank: recomputation.Bank) -> None:
    means = values_of(bank, "mean", "area")
    order = sorted(means, key=lambda name: -sum(means[name].values()))
    assert order[:3] == ["fox", "kerple_log", "alibi"]
    ahead = [
        sum(means[first][n] > means[second][n] for n in range(12))
        for first in order[:2]
        for second in order[2:]
    ]
    assert min(ahead) == 11
    assert standing(bank, "mean").tied == {"kerple_log"}
    for left_out in NEED_ORDER:
        tasks = [task for task in NEED_ORDER if task != left_out]
        scores = [values_of(bank, task, "area, unlearned as 0") for task in tasks]
        sums = {name: sum(sum(values[name].values()) for values in scores) for name in means}
        assert set(sorted(sums, key=lambda name: -sums[name])[:2]) == {"fox", "kerple_log"}


def test_statements_written_by_hand_about_single_tasks_are_true(bank: recomputation.Bank) -> None:
    best, tied, lower, _ = standing(bank, "induction")
    assert (best, tied, len(lower)) == ("kerple_log", {"fox", "alibi"}, 9)

    scores = pd.read_csv(BANK / "scores.csv")
    lag = scores[scores["task"] == "lag"].set_index("label")
    fox = lag.loc["fox"]
    assert (fox["learned"] == (fox["layers"] | ~fox["symbols"])).all()
    assert fox["learned"].sum() == 9
    assert lag.loc["rope", "learned"].all()
    best, tied, _, _ = standing(bank, "lag", "area, unlearned as 0")
    assert (best, len(tied)) == ("fox", 5)
    assert "rope" in tied

    best, tied, _, second = standing(bank, "copy")
    assert (best, tied, second) == ("kerple_log", set(), "fire")
    assert standing(bank, "copy", "at 4x").lower == set()
    best, tied, _, second = standing(bank, "flip_flop")
    assert (best, tied, second) == ("fox", set(), "kerple_log")
    assert standing(bank, "flip_flop", "at 2x").tied == {"kerple_log", "rope+random_subset"}
    assert len(standing(bank, "kth").tied) == 8


def test_statements_written_by_hand_about_calibrated_differences_are_true(bank: recomputation.Bank) -> None:
    verdicts = pd.read_csv(BANK / "verdicts.csv")
    lower = verdicts[verdicts["calibrated_p"] <= 0.05].groupby(["task", "measure"])["encoding"].agg(set)
    assert "lag" not in lower.index.get_level_values("task")
    assert ("copy", "at 2x") not in lower.index
    assert len(lower["copy", "area"]) == 7
    assert "fire" not in lower["copy", "area"]
    assert lower["flip_flop", "area"] == standing(bank, "flip_flop").lower


def test_statements_written_by_hand_about_copying_are_true() -> None:
    scores = pd.read_csv(BANK / "scores.csv")
    copy = scores[scores["task"] == "copy"].set_index("label")
    kerple = copy.loc["kerple_log"]
    four_layers_to_12 = kerple["layers"] & ~kerple["training length"]
    assert (kerple.loc[four_layers_to_12, "exact_match_at_2x"] == 0).all()
    alibi = copy.loc["alibi"]
    copies = alibi[alibi["exact_match_at_2x"] > 0.01]
    assert copies["exact_match_at_2x"].round(2).tolist() == [0.93, 0.94]
    assert copies[["layers", "training length", "heads"]].to_numpy().tolist() == [[False, True, True]] * 2


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
