"""The study of transfer to text: its statistics against independent ones, and what its outcomes mean."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from results.transfer import study as transfer


def scores(values: np.ndarray, noise: float, seed: int) -> np.ndarray:
    """[C, 1, S]"""
    return (values[:, None] + noise * np.random.default_rng(seed).normal(size=(len(values), 4)))[:, None]


def test_rho_is_that_of_scipy_with_ties_and_of_encodings_drawn_more_than_once() -> None:
    draw = np.random.default_rng(0)
    one, other = draw.integers(4, size=(2, 12)).astype(float)
    assert transfer.ranked(one) @ transfer.ranked(other) == pytest.approx(
        stats.spearmanr(one, other).statistic
    )
    times = draw.integers(3, size=12)
    repeated = stats.spearmanr(one.repeat(times), other.repeat(times)).statistic
    weighted = [transfer.ranked(values, times.astype(float)) for values in (one, other)]
    assert weighted[0] @ weighted[1] == pytest.approx(repeated)


def test_the_partial_correlation_is_that_of_the_residuals_of_ranks() -> None:
    one, other, given = np.random.default_rng(1).normal(size=(3, 12))
    times = np.random.default_rng(2).integers(3, size=12)
    a, b, c = (stats.rankdata(values.repeat(times)) for values in (one, other, given))
    expected = stats.pearsonr(*(x - np.polyval(np.polyfit(c, x, 1), c) for x in (a, b))).statistic
    first, second = transfer.residuals([transfer.ranked(x, times.astype(float)) for x in (one, other, given)])
    assert first @ second == pytest.approx(expected)


def test_means_are_over_what_was_learned_in_the_settings_drawn() -> None:
    values = np.array([[[0.2, np.nan, 0.8], [np.nan, np.nan, np.nan]], [[1.0, 0.0, 0.5], [0.4, np.nan, 0.6]]])
    every, twice_the_last = transfer.means(values, np.array([[1.0, 1, 1], [1.0, 0, 2]]))
    assert every.tolist() == pytest.approx([0.25, 0.5])
    assert twice_the_last.tolist() == pytest.approx([0.3, ((1 + 2 * 0.5) / 3 + (0.4 + 2 * 0.6) / 3) / 2])


def test_the_p_value_is_that_of_scipy() -> None:
    one, other = np.random.default_rng(2).normal(size=(2, 12))
    one = one + 0.5 * other
    made = transfer.correlate(scores(one, 0, 0), scores(other, 0, 0))
    expected = stats.spearmanr(one, other, alternative="greater").pvalue
    assert made.p == pytest.approx(expected, abs=0.01)
    assert made.ceiling == pytest.approx(1)  # without noise a score is perfectly reliable


@pytest.mark.slow
def test_the_partial_p_value_is_that_of_a_loop_over_permutations() -> None:
    one, other, given = np.random.default_rng(4).normal(size=(3, 12))
    other = other + one
    made = transfer.correlate(scores(one, 0, 0), scores(other, 0, 0), scores(given, 0, 0))
    a, b, c = map(stats.rankdata, (one, other, given))
    left = [x - np.polyval(np.polyfit(c, x, 1), c) for x in (a, b)]
    draw = np.random.default_rng(7)
    drawn = [stats.pearsonr(draw.permutation(left[0]), left[1]).statistic for _ in range(2000)]
    assert made.p == pytest.approx(np.mean(np.array(drawn) >= made.rho), abs=0.02)


@pytest.mark.slow
def test_the_interval_is_that_of_a_loop_over_groups_and_repetitions() -> None:
    values = np.random.default_rng(8).normal(size=12)
    one, other = scores(values, 0.5, 0), scores(values, 1.0, 1)
    made = transfer.correlate(one, other)
    draw = np.random.default_rng(9)
    rhos = []
    place = {encoding: index for index, encoding in enumerate(transfer.ENCODINGS)}
    for _ in range(3000):
        groups = draw.integers(len(transfer.GROUPS), size=len(transfer.GROUPS))
        seeds = draw.integers(4, size=4)
        picked = [place[encoding] for group in groups for encoding in transfer.GROUPS[group]]
        rhos.append(
            stats.spearmanr(*(own[picked, 0][:, seeds].mean(axis=1) for own in (one, other))).statistic
        )
    assert (made.low, made.high) == pytest.approx(np.nanquantile(rhos, [0.025, 0.975]), abs=0.05)
    assert 0 < made.error < 0.01


def test_noise_lowers_the_ceiling() -> None:
    values = np.linspace(0, 1, 12)
    noisy = transfer.correlate(scores(values, 1.0, 0), scores(values, 0.0, 1))
    assert noisy.ceiling < 0.95


def test_classes_follow_from_formulas_alone() -> None:
    found = {
        encoding: int(level)
        for encoding, level in zip(transfer.ENCODINGS, transfer.CLASSES.ravel(), strict=True)
    }
    assert {encoding for encoding, level in found.items() if level == 0} == set(transfer.UNSEEN)
    assert {encoding for encoding, level in found.items() if level == 2} == {"alibi", "kerple_log", "fox"}


@pytest.mark.slow
def test_the_page_says_what_scipy_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    """That the formulas rank text better than the bank, which adds nothing; how much hangs on a task."""
    monkeypatch.setattr(transfer, "RESAMPLES", 20_000)
    bank = transfer.bank_scores()
    text = transfer.text_scores()[transfer.PAST]
    past = np.nanmean(bank[transfer.PAST], axis=2)
    rises = text[:, 0].mean(axis=1)
    classes = stats.spearmanr(transfer.CLASSES.ravel(), rises).statistic
    alone = stats.spearmanr(past.mean(axis=1), rises).statistic
    ranks = [stats.rankdata(values) for values in (past.mean(axis=1), rises, transfer.CLASSES.ravel())]
    left = [x - np.polyval(np.polyfit(ranks[2], x, 1), ranks[2]) for x in ranks[:2]]
    given = stats.pearsonr(*left).statistic
    blocks = transfer.blocks(transfer.RESULTS / "transfer")
    for value, name in ((classes, "classes"), (alone, "main"), (given, "given")):
        assert blocks[name].rho == pytest.approx(value, abs=1e-9)
    assert abs(given) < 0.005
    for index, task in enumerate(transfer.TASKS):
        rho = stats.spearmanr(past[:, index], rises).statistic
        told = f"| `{task}` | {rho:+.2f} |"
        assert told in blocks["tasks"]
    assert 0.2 <= blocks["without_kth"] < 0.3
