"""Test the decisions about larger models with stand-ins for their scores."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from results.bank.scale import study

FOLDER = Path(study.__file__).parent
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
    rho = stats.spearmanr(smallest, larger).statistic
    orders = [stats.spearmanr(smallest, permuted).statistic for permuted in itertools.permutations(larger)]
    assert decision["rho"] == pytest.approx(rho)
    assert decision["p"] == pytest.approx(np.mean(np.abs(orders) >= abs(rho) - 1e-9))
    assert (decision["order"], decision["recommendation"]) == (order, recommendation)


def test_an_incomplete_size_is_not_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = {width: stand_in([0.9, 0.8, 0.7, 0.5, 0.3]) for width in (64, 128)}
    for made, words in ((60, "The order holds"), (59, "not measured: 59 of 60 runs")):
        counts = {64: 60, 128: made, 256: 0}
        monkeypatch.setattr(study, "load", lambda folder, counts=counts: (counts, scores))
        answer = study.answer(FOLDER)
        assert words in answer
        assert answer.endswith("At 6.3 million parameters not measured: 0 of 60 runs.")
        decided = study.decision_table(counts, scores).splitlines()
        assert ("not decided" in decided[2]) == (made < 60)
        assert "not decided" in decided[3]
