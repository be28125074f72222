"""Test the study of transfer to text: its statistics and its page against scipy."""

import numpy as np
import pytest
from scipy import stats

from results.transfer import study as transfer


def test_the_p_value_is_that_of_scipy() -> None:
    x, y = np.random.default_rng(2).normal(size=(2, 12))
    x = x + 0.5 * y
    correlation = transfer.correlate(*(values[:, None, None].repeat(4, -1) for values in (x, y)))
    expected = stats.spearmanr(x, y, alternative="greater").pvalue
    assert correlation.p == pytest.approx(expected, abs=0.01)


@pytest.mark.slow
def test_the_page_says_what_scipy_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Formulas that were drawn up after the results rank text better than the bank."""
    monkeypatch.setattr(transfer, "RESAMPLES", 20_000)
    past_by_task = np.nanmean(transfer.bank_scores(), axis=2)
    past = past_by_task.mean(axis=1)
    rises = transfer.text_scores()[:, 0].mean(axis=1)
    classes = transfer.CLASSES.ravel()
    blocks = transfer.values(transfer.RESULTS / "transfer")
    assert blocks["classes"].rho == pytest.approx(stats.spearmanr(classes, rises).statistic, abs=1e-9)
    assert blocks["main"].rho == pytest.approx(stats.spearmanr(past, rises).statistic, abs=1e-9)
    assert 0.2 <= blocks["without_kth"] < 0.3
