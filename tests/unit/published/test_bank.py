"""Verdicts over seeds, and the rule that stops a task early."""

from __future__ import annotations

import numpy as np
import pytest

from pe_experiments.comparison.statistics import difference_interval, permutation_p
from pe_experiments.published.verdicts import (
    BETTER,
    EARLIEST,
    NEITHER,
    NOT_SEPARATED,
    ONLY_OTHER,
    ONLY_YOURS,
    WORSE,
    Outcomes,
    forecast,
    may_stop,
    verdicts,
)

SEEDS = 8


def seeds(values: list[float] | np.ndarray, learned: bool = True) -> Outcomes:
    return Outcomes(tuple(map(float, values)), (learned,) * len(values))


ONES, ZEROS = seeds([1.0] * SEEDS), seeds([0.0] * SEEDS)
UNLEARNED = seeds([0.0] * SEEDS, learned=False)


@pytest.mark.parametrize(
    ("mine", "other", "verdict"),
    [
        (ONES, ZEROS, BETTER),
        (ZEROS, ONES, WORSE),
        (ONES, ONES, NOT_SEPARATED),
        (ZEROS, seeds([1.0, 1, 1, 0, 0, 0, 0, 0]), NOT_SEPARATED),
        (ONES, UNLEARNED, ONLY_YOURS),
        (UNLEARNED, ONES, ONLY_OTHER),
        (UNLEARNED, UNLEARNED, NEITHER),
    ],
)
def test_a_verdict(mine: Outcomes, other: Outcomes, verdict: str) -> None:
    assert verdicts(mine, {"other": other}) == {"other": verdict}


def test_verdicts_are_adjusted_for_the_number_of_baselines() -> None:
    """Five of eight seeds against none is p = 0.026: enough alone, not among four."""
    mine = seeds([1.0] * 5 + [0.0] * 3)
    assert permutation_p(mine.values, ZEROS.values) == pytest.approx(0.0256, abs=1e-4)
    assert verdicts(mine, {"a": ZEROS}) == {"a": BETTER}
    four = dict.fromkeys("abcd", ZEROS)
    assert set(verdicts(mine, four).values()) == {NOT_SEPARATED}


def test_a_forecast_from_all_seeds_is_the_verdict() -> None:
    baselines = {"ones": ONES, "zeros": ZEROS, "unlearned": UNLEARNED}
    mine = seeds([1.0] * 5 + [0.0] * 3)
    found = forecast(mine, baselines, SEEDS)
    assert {name: one.verdict for name, one in found.items()} == verdicts(mine, baselines)
    assert [one.change for one in found.values()] == [0, 0, 0]


def test_what_is_clear_stops_early_and_what_is_not_goes_on() -> None:
    baselines = {"ones": ONES, "zeros": ZEROS}
    clear, mixed = seeds([0.0] * EARLIEST), seeds([1.0, 0.0, 1.0])
    assert may_stop(forecast(clear, baselines, SEEDS).values())
    assert not may_stop(forecast(clear, baselines, SEEDS).values(), change=0.0)  # all seeds are asked for
    assert not may_stop(forecast(mixed, baselines, SEEDS).values())


def test_a_further_seed_may_come_out_as_those_of_a_baseline_did() -> None:
    """Three seeds that agree do not promise that the fourth does."""
    assert 0.05 < forecast(seeds([1.0] * 3), {"zeros": ZEROS}, SEEDS)["zeros"].change < 0.5


def stopped_early(mine: Outcomes, other: Outcomes) -> tuple[str, int]:
    """The verdict against one baseline, and the seeds that it took."""
    for done in range(EARLIEST, SEEDS + 1):
        found = forecast(seeds(mine.values[:done]), {"other": other}, SEEDS)
        if done == SEEDS or may_stop(found.values()):
            break
    return found["other"].verdict, done


def binary(draw: np.random.Generator, p: float) -> Outcomes:
    return seeds((draw.random(SEEDS) < p).astype(float))


def test_stopping_early_keeps_the_error_rate() -> None:
    """Schemes that do not differ are called better or worse in at most 5 % of tasks (one baseline each)."""
    draw, trials = np.random.default_rng(0), 200
    probabilities = draw.uniform(size=trials)
    said, done = zip(*(stopped_early(binary(draw, p), binary(draw, p)) for p in probabilities), strict=True)
    assert sum(word in (BETTER, WORSE) for word in said) / trials <= 0.05
    assert sum(done) / trials < 0.75 * SEEDS


def test_verdicts_that_were_stopped_early_are_those_of_all_seeds() -> None:
    draw, trials, agree = np.random.default_rng(0), 200, 0
    for p, q in draw.uniform(size=(trials, 2)):
        mine, other = binary(draw, p), binary(draw, q)
        agree += stopped_early(mine, other)[0] == verdicts(mine, {"other": other})["other"]
    assert agree / trials >= 0.95


def test_the_interval_of_a_difference_covers_it_and_agrees_with_the_test() -> None:
    draw, covered, trials = np.random.default_rng(0), 0, 300
    for _ in range(trials):
        p, q = draw.uniform(size=2)
        first, second = ((draw.random(5) < share).astype(float) for share in (p, q))
        interval = difference_interval(first, second)
        covered += interval.low <= p - q <= interval.high
        separated = permutation_p(first, second) <= 0.05
        assert (interval.low > 0 or interval.high < 0) == separated
    assert covered / trials >= 0.95
    apart = difference_interval(np.full(5, 1 / 3), np.zeros(5))
    assert 0 < apart.low <= apart.estimate == pytest.approx(1 / 3)
