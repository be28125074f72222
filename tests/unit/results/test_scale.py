"""Test the decisions about larger models with stand-ins for their scores."""

from __future__ import annotations

import itertools

import pandas as pd
import pytest
from scipy import stats

from results.bank.scale import study

ENCODINGS = [*study.RECOMMENDED, *study.OTHERS]


def stand_in(means: list[float]) -> pd.DataFrame:
    """Return scores of six cases around the mean of each encoding."""
    rows = []
    for label, mean in zip(ENCODINGS, means, strict=True):
        for case, (task, seed) in enumerate(itertools.product(study.TASKS, (0, 1))):
            score = mean + 0.01 * case
            rows.append([task, label, seed, True, score, score, score])
    return pd.DataFrame(rows, columns=["task", "label", "setting", "learned", *study.METRICS])


@pytest.mark.parametrize(
    ("larger", "order", "recommendation"),
    [
        ([0.9, 0.8, 0.7, 0.5, 0.3], "holds", "holds"),
        ([0.8, 0.9, 0.7, 0.5, 0.3], "holds", "holds"),  # rho is 0.9, in floating point a little less
        ([0.9, 0.5, 0.7, 0.6, 0.3], "is unclear", "does not hold"),
        ([0.3, 0.5, 0.7, 0.8, 0.9], "changes", "does not hold"),
    ],
)
def test_the_decisions_follow_from_ranks_and_means(
    larger: list[float], order: str, recommendation: str
) -> None:
    smallest = [0.9, 0.8, 0.7, 0.5, 0.3]
    decision = study.decide(stand_in(smallest), stand_in(larger))
    assert decision["rho"] == pytest.approx(stats.spearmanr(smallest, larger).statistic)
    assert (decision["order"], decision["recommendation"]) == (order, recommendation)
