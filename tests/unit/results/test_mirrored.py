"""Test the mirrored configurations: the published numbers, with independent code."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from results.bank.mirrored import study as mirrored
from tests import recomputation

MIRRORED = Path(mirrored.__file__).parent
FACTORS = [*mirrored.bank.FACTORS]


def test_independent_code_finds_the_effects_of_factors() -> None:
    """One-sided, over all splits of the configurations that learned the task."""
    scores = pd.read_csv(MIRRORED / "scores.csv")
    rows = mirrored.effect_rows(scores).to_dict("records")
    ps = []
    for row, (task, encoding, measure, factor, higher) in zip(rows, mirrored.EFFECTS, strict=True):
        learned = scores[(scores["task"] == task) & (scores["label"] == encoding) & scores["learned"]]
        better = learned.loc[learned[factor] == higher, measure].to_list()
        worse = learned.loc[learned[factor] != higher, measure].to_list()
        assert min(len(better), len(worse)) >= 4
        assert (row["mean"], row["other mean"]) == pytest.approx((np.mean(better), np.mean(worse)))
        sums = [sum(chosen) for chosen in itertools.combinations(better + worse, len(better))]
        ps.append(float(np.mean(np.array(sums) >= sum(better) - 1e-9)))
    adjusted = recomputation.holm(ps)
    assert [row["p"] for row in rows] == pytest.approx(adjusted)
    assert [row["verdict"] == "confirmed" for row in rows] == [p <= 0.05 for p in adjusted]


def check_verdicts(verdicts: pd.DataFrame, scores: dict[str, recomputation.Values]) -> None:
    """Compare every published difference, p-value and verdict."""
    for family, group in verdicts.groupby("family"):
        values = scores[str(family) if family in mirrored.TASKS else "mean"]
        rows = group.to_dict("records")
        tests = [recomputation.sign_flip_p(values[row["encoding"]], values[row["other"]]) for row in rows]
        adjusted = recomputation.holm([p for _, p, _ in tests])
        for row, (difference, _, settings), p in zip(rows, tests, adjusted, strict=True):
            assert row["settings"] == settings
            assert (row["difference"], row["p"]) == pytest.approx((difference, p)), row
            verdict = "tied"
            if p <= 0.05:
                verdict = "confirmed" if difference > 0 else "refuted"
            assert row["verdict"] == verdict, row


@pytest.mark.slow
def test_independent_code_finds_the_published_means_and_verdicts() -> None:
    values = mirrored.blocks(MIRRORED)
    bank = recomputation.bank_runs(MIRRORED)
    scores = {task: recomputation.measured(bank[task], "score", as_zero=True) for task in mirrored.TASKS}
    scores["mean"] = recomputation.over_tasks(bank, mirrored.TASKS, "score")
    assert values["settings"] == len(scores["mean"]["fox"])
    for task, by_label in scores.items():
        for label, by_setting in by_label.items():
            mean = np.mean([*by_setting.values()])
            assert values[f"mirrored/{task}/{label}"] == pytest.approx(mean)
    check_verdicts(pd.read_csv(MIRRORED / "verdicts.csv"), scores)
