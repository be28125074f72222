"""Test the study of transfer to text: its statistics and its page against scipy."""

import numpy as np
import pytest
from scipy import stats

from results.transfer import study as transfer


def test_weighted_ranks_are_those_of_repeated_values() -> None:
    values, counts = np.array([[3.0, 1.0, 2.0, 2.0], [4.0, 7.0, 5.0, 4.0]]), np.array([[2, 1, 0, 3]])
    first, second = transfer.weighted_ranks(values, counts)
    expected = stats.spearmanr(*(row.repeat(counts[0]) for row in values)).statistic
    assert first @ second == pytest.approx(expected)


@pytest.mark.slow
def test_the_page_says_what_scipy_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Formulas that were drawn up after the results rank text better than the bank."""
    monkeypatch.setattr(transfer, "RESAMPLES", 20_000)
    past_by_task = np.nanmean(transfer.bank_scores(), axis=2)
    past = past_by_task.mean(axis=1)
    losses = transfer.load(transfer.RESULTS)
    rises = -transfer.rises(losses).groupby("label").mean()[[*transfer.ENCODINGS]]
    blocks = transfer.values(losses)
    of_classes = stats.spearmanr(transfer.CLASSES, rises).statistic
    assert blocks["twelve/classes_rho"] == pytest.approx(of_classes, abs=1e-9)
    assert blocks["twelve/bank_rho"] == pytest.approx(stats.spearmanr(past, rises).statistic, abs=1e-9)
    assert 0.2 <= blocks["without_kth"] < 0.3
