"""Encodings over paired settings: the run that counts, its score above a floor, differences."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from pe_experiments.bank.scores import SCORE, score_table, scores_by_setting
from pe_experiments.bank.verdicts import (
    BETTER,
    NEITHER,
    NOT_SEPARATED,
    ONLY_OTHER,
    ONLY_YOURS,
    TOO_FEW,
    WORSE,
    best,
    calibrated_p,
    turning_factors,
    verdicts_on,
)
from pe_experiments.comparison.runs import Runs
from pe_experiments.comparison.statistics import paired_interval, paired_ps
from pe_experiments.terminal.errors import UserError

DRAW = np.random.default_rng(0)


@pytest.mark.parametrize(
    "differences",
    [[0.3, 0.2, 0.5], [0.1, -0.2, 0.3, 0.05, 0.0], [0.25] * 6, [0, 0, 1, 0], DRAW.normal(0.2, 0.4, 12)],
)
def test_a_paired_test_counts_all_signs_and_its_interval_agrees(differences: list[float]) -> None:
    d = np.array(differences, dtype=float)
    signs = np.array(list(itertools.product([1, -1], repeat=len(d))))
    expected = np.mean(np.abs((signs * d).mean(1)) >= abs(d.mean()) - 1e-12)
    (p,) = paired_ps(d[None])
    assert p == pytest.approx(expected)
    assert paired_ps(np.array([[*d, np.nan]])) == pytest.approx([p])  # NaN is no pair
    for alpha in (0.3, 0.05, 0.01, 0.001):
        ends = paired_interval(d, alpha)
        assert (ends.low > 1e-12 or ends.high < -1e-12) == (p <= alpha)


def test_the_interval_covers_the_mean_of_a_symmetric_variable() -> None:
    made = [paired_interval(DRAW.normal(0.1, 0.3, 8)) for _ in range(400)]
    assert 0.92 <= np.mean([one.low <= 0.1 <= one.high for one in made]) <= 0.98


def scores(**encodings: list[float]) -> pd.DataFrame:
    return pd.DataFrame(encodings, dtype=float)


NO = math.nan  # not learned


def test_encodings_are_compared_within_the_settings_that_both_learned() -> None:
    table = scores(
        mine=[0.5 + 0.01 * n for n in range(12)],
        below=[0.4 + 0.01 * n for n in range(12)],
        above=[0.9] * 12,
        mixed=[0.55, 0.5] * 6,
        partly=[0.0] * 10 + [NO, NO],
        rarely=[1.0] * 8 + [NO] * 4,
    )
    made = verdicts_on(table, "mine")
    assert {name: one.verdict for name, one in made.items()} == {
        "below": BETTER,
        "above": WORSE,
        "mixed": NOT_SEPARATED,
        "partly": BETTER,
        "rarely": ONLY_YOURS,
    }
    assert made["below"].interval.estimate == pytest.approx(0.1)
    assert made["partly"].settings == 10
    for one in made.values():
        excluded = one.interval.low > 0 or one.interval.high < 0
        assert excluded == (one.verdict in (BETTER, WORSE))
    assert verdicts_on(table, "rarely")["mine"].verdict == ONLY_OTHER
    assert verdicts_on(table[["rarely"]].assign(other=NO), "rarely")["other"].verdict == NEITHER


def test_verdicts_are_adjusted_for_the_number_of_others() -> None:
    mine = [0.5] * 7
    other = [0.4 - 0.01 * n for n in range(7)]
    assert verdicts_on(scores(mine=mine, one=other), "mine")["one"].verdict == BETTER  # p is 2 / 2^7
    four = verdicts_on(scores(mine=mine, **dict.fromkeys("abcd", other)), "mine")
    assert {one.verdict for one in four.values()} == {TOO_FEW}  # four times 2 / 2^7 is more than 0.05
    mixed = [1.0, *other[1:]]
    assert verdicts_on(scores(mine=mine, one=mixed), "mine")["one"].verdict == NOT_SEPARATED


def test_no_encoding_is_best_that_did_not_learn() -> None:
    first, others = best(scores(lucky=[1.0, 1.0, NO, NO], steady=[0.2] * 4))
    assert first == "steady"
    assert others["lucky"].verdict == ONLY_YOURS
    assert best(scores(lucky=[1.0, 1.0, NO, NO])) == ("", {})


def test_a_factor_turns_a_difference_around_if_almost_every_setting_says_so() -> None:
    factors = pd.DataFrame({"heads": list("24" * 6), "layers": list("222444" * 2)})
    apart = pd.Series([0.3 if heads == "2" else -0.2 for heads in factors["heads"]])
    assert turning_factors(apart, factors) == ["heads"]
    apart[0] = -0.3
    assert turning_factors(apart, factors) == ["heads"]
    apart[3] = 0.2
    assert turning_factors(apart, factors) == []
    assert turning_factors(pd.Series([0.3, -0.2] * 2), factors[:4]) == []  # of so few, chance makes some


def test_the_best_of_equals_seems_better_than_some_other_too_often() -> None:
    """Calibrated, the nominal level of 0.05 is about 0.14 with twelve encodings, and itself with two."""
    assert 0.12 <= calibrated_p(0.05, 12, 12) <= 0.17
    assert calibrated_p(0.05, 2, 12) == pytest.approx(0.05, abs=0.01)
    assert calibrated_p(0.0, 12, 12) == 0


def test_an_unlearned_setting_is_left_out_or_counts_as_nothing() -> None:
    rows = pd.DataFrame({"label": "rope", "setting": [0, 1], "score": [0.4, 0.3], "learned": [True, False]})
    assert scores_by_setting(rows)["rope"].tolist() == pytest.approx([0.4, math.nan], nan_ok=True)
    assert scores_by_setting(rows, unlearned=0.0)["rope"].tolist() == [0.4, 0.0]


def test_the_rate_with_the_lower_loss_counts_and_scores_are_above_the_floor() -> None:
    made: list[dict[str, Any]] = []
    points = []
    saved = {}
    for label, setting, rate in itertools.product(("rope", "none"), range(2), (0.001, 0.003)):
        if (label, setting) == ("none", 1):
            continue  # not finished: the setting does not count for anybody
        name = f"{label}-{setting}-{rate}"
        good = rate == (0.003 if label == "rope" else 0.001)
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
    runs = Runs(pd.DataFrame(made), curves, saved=saved)
    table = score_table(runs, floors, (SCORE, "exact_match_at_2x", "exact_match_at_4x"))
    assert list(table["name"]) == ["none-0-0.001", "rope-0-0.003"]
    assert list(table["learned"]) == [False, True]
    high = floors.assign(floor=floors["content_length"].eq(10) * 0.9)
    curves.loc[curves["content_length"] == 10, "exact_match"] = 0.94  # less than half of what 0.9 leaves
    assert not score_table(runs, high)["learned"].any()
    curves.loc[curves["content_length"] == 10, "exact_match"] = 0.96
    assert list(score_table(runs, high)["learned"]) == [False, True]
    curves.loc[curves["content_length"] == 10, "exact_match"] = 1.0
    assert table["score"].to_list() == pytest.approx([(0.75 + 0.25) / 3] * 2)  # above: 1, 0.5, 0, 0
    assert table["exact_match_at_2x"].to_list() == [0.6, 0.6]
    more = curves.iloc[:1].assign(name="rope-0-0.003", content_length=30, exact_match=0.0)  # of one run alone
    pd.testing.assert_frame_equal(
        score_table(replace(runs, curves=pd.concat([curves, more])), floors)[[SCORE]], table[[SCORE]]
    )
    assert table["exact_match_at_4x"].to_list() == [0.1, 0.1]
    assert score_table(runs, None)["score"].to_list() == pytest.approx([(0.8 + 0.35 + 0.15) / 3] * 2)
    with pytest.raises(UserError, match=r"metric=exact_match_at_3x: not measured; allowed: score, .*_at_2x"):
        score_table(runs, floors, ["exact_match_at_3x"])
