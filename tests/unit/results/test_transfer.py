"""Test the study of transfer to text: its statistics against scipy and loops, and its page."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from results.transfer import study as transfer


def scores(values: np.ndarray, noise: float, seed: int) -> np.ndarray:
    """Return noisy scores [C, 1, S]."""
    return (values[:, None] + noise * np.random.default_rng(seed).normal(size=(len(values), 4)))[:, None]


def rank_residuals(x: np.ndarray, given: np.ndarray) -> np.ndarray:
    """Return the residuals of the ranks of ``x`` after a linear fit to those of ``given``."""
    ranks, ranks_given = stats.rankdata(x), stats.rankdata(given)
    return ranks - np.polyval(np.polyfit(ranks_given, ranks, 1), ranks_given)


def test_the_partial_correlation_is_that_of_the_residuals_of_ranks() -> None:
    """Also for encodings that are drawn more than once."""
    x, y, given = np.random.default_rng(1).normal(size=(3, 12))
    times = np.random.default_rng(2).integers(3, size=12)
    repeated = given.repeat(times)
    expected = stats.pearsonr(
        rank_residuals(x.repeat(times), repeated), rank_residuals(y.repeat(times), repeated)
    ).statistic
    ranks = [transfer.ranked(values, times.astype(float)) for values in (x, y, given)]
    first, second = transfer.residuals(ranks)
    assert first @ second == pytest.approx(expected)


def test_means_cover_the_learned_configurations_that_were_drawn() -> None:
    values = np.array([[[0.2, np.nan, 0.8], [np.nan, np.nan, np.nan]], [[1.0, 0.0, 0.5], [0.4, np.nan, 0.6]]])
    once, last_twice = transfer.means(values, np.array([[1.0, 1, 1], [1.0, 0, 2]]))
    assert once.tolist() == pytest.approx([0.25, 0.5])
    assert last_twice.tolist() == pytest.approx([0.3, ((1 + 2 * 0.5) / 3 + (0.4 + 2 * 0.6) / 3) / 2])


def test_the_p_value_is_that_of_scipy() -> None:
    x, y = np.random.default_rng(2).normal(size=(2, 12))
    x = x + 0.5 * y
    correlation = transfer.correlate(scores(x, 0, 0), scores(y, 0, 0))
    expected = stats.spearmanr(x, y, alternative="greater").pvalue
    assert correlation.p == pytest.approx(expected, abs=0.01)
    assert correlation.ceiling == pytest.approx(1)  # without noise a score is perfectly reliable


@pytest.mark.slow
def test_the_partial_p_value_is_that_of_a_loop_over_permutations() -> None:
    x, y, given = np.random.default_rng(4).normal(size=(3, 12))
    y = y + x
    correlation = transfer.correlate(scores(x, 0, 0), scores(y, 0, 0), scores(given, 0, 0))
    residuals_x, residuals_y = rank_residuals(x, given), rank_residuals(y, given)
    random = np.random.default_rng(7)
    rhos = [stats.pearsonr(random.permutation(residuals_x), residuals_y).statistic for _ in range(2000)]
    assert correlation.p == pytest.approx(np.mean(np.array(rhos) >= correlation.rho), abs=0.02)


@pytest.mark.slow
def test_the_page_says_what_scipy_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Formulas alone rank text better than the bank, which adds nothing to them."""
    monkeypatch.setattr(transfer, "RESAMPLES", 20_000)
    past_by_task = np.nanmean(transfer.bank_scores()[transfer.PAST], axis=2)
    past = past_by_task.mean(axis=1)
    rises = transfer.text_scores()[transfer.PAST][:, 0].mean(axis=1)
    classes = transfer.CLASSES.ravel()
    blocks = transfer.blocks(transfer.RESULTS / "transfer")
    given_classes = stats.pearsonr(rank_residuals(past, classes), rank_residuals(rises, classes)).statistic
    assert blocks["classes"].rho == pytest.approx(stats.spearmanr(classes, rises).statistic, abs=1e-9)
    assert blocks["main"].rho == pytest.approx(stats.spearmanr(past, rises).statistic, abs=1e-9)
    assert blocks["given"].rho == pytest.approx(given_classes, abs=1e-9)
    assert abs(given_classes) < 0.005
    for index, task in enumerate(transfer.TASKS):
        rho = stats.spearmanr(past_by_task[:, index], rises).statistic
        assert f"| `{task}` | {rho:+.2f} |" in blocks["tasks"]
    assert 0.2 <= blocks["without_kth"] < 0.3
