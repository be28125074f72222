"""Schemes over paired settings: the run that counts, its score above a floor, differences."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pandas as pd
import pytest

from pe_experiments.comparison.runs import Runs
from pe_experiments.comparison.statistics import paired_interval, paired_p
from pe_experiments.published.settings import NOT_LEARNED, best, compared, outcomes
from pe_experiments.published.verdicts import BETTER, NOT_SEPARATED, WORSE

DRAW = np.random.default_rng(0)


@pytest.mark.parametrize(
    "differences",
    [[0.3, 0.2, 0.5], [0.1, -0.2, 0.3, 0.05, 0.0], [0.25] * 6, [0, 0, 1, 0], DRAW.normal(0.2, 0.4, 12)],
)
def test_a_paired_test_counts_all_signs_and_its_interval_agrees(differences: list[float]) -> None:
    d = np.array(differences, dtype=float)
    signs = np.array(list(itertools.product([1, -1], repeat=len(d))))
    expected = np.mean(np.abs((signs * d).mean(1)) >= abs(d.mean()) - 1e-12)
    assert paired_p(d) == pytest.approx(expected)
    for alpha in (0.3, 0.05, 0.01, 0.001):
        ends = paired_interval(d, alpha)
        assert (ends.low > 1e-12 or ends.high < -1e-12) == (paired_p(d) <= alpha)


def test_the_interval_covers_the_mean_of_a_symmetric_variable() -> None:
    made = [paired_interval(DRAW.normal(0.1, 0.3, 8)) for _ in range(400)]
    assert 0.92 <= np.mean([one.low <= 0.1 <= one.high for one in made]) <= 0.98


def rows(scores: list[float], learned: list[bool] | None = None) -> pd.DataFrame:
    count = len(scores)
    return pd.DataFrame({"setting": range(count), "score": scores, "learned": learned or [True] * count})


def test_schemes_are_compared_within_the_settings_that_both_learned() -> None:
    mine = rows([0.5 + 0.01 * n for n in range(12)])
    others = {
        "below": rows([0.4 + 0.01 * n for n in range(12)]),
        "above": rows([0.9] * 12),
        "mixed": rows([0.55, 0.5] * 6),
        "partly": rows([0.0] * 10 + [1.0, 1.0], [True] * 10 + [False] * 2),
        "rarely": rows([1.0] * 12, [True] * 8 + [False] * 4),
    }
    made = compared(mine, others)
    assert {name: one.verdict for name, one in made.items()} == {
        "below": BETTER,
        "above": WORSE,
        "mixed": NOT_SEPARATED,
        "partly": BETTER,  # of ten settings; where it did not learn it would win
        "rarely": NOT_LEARNED,
    }
    assert made["below"].interval.estimate == pytest.approx(0.1)
    assert made["partly"].settings == 10
    for one in made.values():
        excluded = one.interval.low > 0 or one.interval.high < 0
        assert excluded == (one.verdict in (BETTER, WORSE))


def test_verdicts_are_adjusted_for_the_number_of_others() -> None:
    mine, other = rows([0.5] * 7), rows([0.4 - 0.01 * n for n in range(7)])
    assert compared(mine, {"one": other})["one"].verdict == BETTER  # p is 2 / 2^7
    four = compared(mine, dict.fromkeys("abcd", other))
    assert {one.verdict for one in four.values()} == {NOT_SEPARATED}


def test_no_scheme_is_best_that_did_not_learn() -> None:
    table = pd.concat([rows([1.0] * 4, [True, True, False, False]).assign(label="lucky"),
                       rows([0.2] * 4).assign(label="steady")])  # fmt: skip
    first, others = best(table)
    assert first == "steady"
    assert others["lucky"].verdict == NOT_LEARNED
    assert best(table[table["label"] == "lucky"]) == ("", {})


def test_the_rate_with_the_lower_loss_counts_and_scores_are_above_the_floor() -> None:
    made: list[dict[str, Any]] = []
    points, saved = [], {}
    for label, setting, rate in itertools.product(("rope", "none"), range(2), (0.001, 0.003)):
        if (label, setting) == ("none", 1):
            continue  # not finished: the setting does not count for anybody
        name, good = f"{label}-{setting}-{rate}", rate == (0.003 if label == "rope" else 0.001)
        run: dict[str, Any] = {"name": name, "label": label, "seed": setting, "task": "kth", "max_length": 10}
        made.append(
            run | {"loss_in_distribution": 0.1 if good else 0.5, "solved_in_distribution": label == "rope"}
        )
        saved[name] = {"identity": {"trained": {"training": {"learning_rate": rate}}}}
        for times, exact in ((0.5, 1.0), (1, 1.0), (2, 0.6 if good else 0.9), (4, 0.1), (8, 0.2)):
            points.append(run | {"content_length": int(10 * times), "exact_match": exact})
    curves = pd.DataFrame(points).drop(columns=["label", "max_length"])
    where = itertools.product((0, 1), (5, 10, 20, 40, 80))
    floors = pd.DataFrame(
        [{"task": "kth", "setting": s, "content_length": n, "floor": 0.2} for s, n in where]
    )
    table = outcomes(Runs(pd.DataFrame(made), curves, saved=saved), floors)
    assert list(table["name"]) == ["none-0-0.001", "rope-0-0.003"]
    assert list(table["learned"]) == [False, True]
    assert table["score"].to_list() == pytest.approx([(0.75 + 0.25) / 3] * 2)  # above: 1, 0.5, 0, 0
    assert table["at_2x"].to_list() == [0.6, 0.6]
    assert table["at_4x"].to_list() == [0.1, 0.1]
