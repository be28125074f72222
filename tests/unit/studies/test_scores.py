"""Test scores, differences and verdicts over paired configurations."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest

from pe_experiments.comparison.runs import Runs
from pe_experiments.store.identity import Record
from pe_experiments.studies.inference import paired_interval, paired_ps
from pe_experiments.studies.scores import score_table
from pe_experiments.studies.verdicts import (
    BETTER,
    NEITHER,
    NOT_SEPARATED,
    ONLY_OTHER,
    ONLY_YOURS,
    TOO_FEW,
    WORSE,
    against_best,
    calibrated_p,
    verdicts_on,
)

RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize(
    "differences",
    [[0.3, 0.2, 0.5], [0.1, -0.2, 0.3, 0.05, 0.0], [0.25] * 6, [0, 0, 1, 0], RANDOM.normal(0.2, 0.4, 12)],
)
def test_a_paired_p_counts_all_signs_and_the_interval_agrees(differences: list[float]) -> None:
    d = np.array(differences, dtype=float)
    signs = np.array(list(itertools.product([1, -1], repeat=len(d))))
    expected = np.mean(np.abs((signs * d).mean(1)) >= abs(d.mean()) - 1e-12)
    (p,) = paired_ps(d[None])
    assert p == pytest.approx(expected)
    assert paired_ps(np.array([[*d, np.nan]])) == pytest.approx([p])  # NaN is no pair
    for alpha in (0.3, 0.05, 0.01, 0.001):
        ends = paired_interval(d, alpha)
        assert (ends.low > 1e-12 or ends.high < -1e-12) == (p <= alpha)


def scores(**encodings: list[float]) -> pd.DataFrame:
    return pd.DataFrame(encodings, dtype=float)


NO = math.nan  # the task was not learned


def test_encodings_are_compared_in_the_configurations_that_both_learned() -> None:
    table = scores(
        new=[0.5 + 0.01 * n for n in range(12)],
        lower=[0.4 + 0.01 * n for n in range(12)],
        higher=[0.9] * 12,
        mixed=[0.55, 0.5] * 6,
        mostly_learned=[0.0] * 10 + [NO, NO],
        rarely_learned=[1.0] * 8 + [NO] * 4,
    )
    rows = verdicts_on(table, "new").set_index("baseline")
    assert rows["verdict"].to_dict() == {
        "lower": BETTER,
        "higher": WORSE,
        "mixed": NOT_SEPARATED,
        "mostly_learned": BETTER,
        "rarely_learned": ONLY_YOURS,
    }
    assert rows.loc["lower", "difference"] == pytest.approx(0.1)
    assert rows.loc["mostly_learned", "difference"] == pytest.approx(0.545)
    assert rows.loc["mostly_learned", ["pairs", "higher", "learned", "baseline_learned"]].tolist() == [
        10, 10, 12, 10,
    ]  # fmt: skip
    excludes_zero = (rows["low"] > 0) | (rows["high"] < 0)
    assert excludes_zero.tolist() == rows["verdict"].isin([BETTER, WORSE]).tolist()
    others = verdicts_on(table, "rarely_learned").set_index("baseline")
    assert others.loc["new", "verdict"] == ONLY_OTHER
    unlearned = table[["rarely_learned"]].assign(never_learned=NO)
    assert verdicts_on(unlearned, "rarely_learned")["verdict"].tolist() == [NEITHER]


def test_verdicts_are_adjusted_for_the_number_of_encodings() -> None:
    new = [0.5] * 7
    lower = [0.4 - 0.01 * n for n in range(7)]
    assert verdicts_on(scores(new=new, a=lower), "new")["verdict"].tolist() == [BETTER]  # p is 2 / 2^7
    against_four = verdicts_on(scores(new=new, **dict.fromkeys("abcd", lower)), "new")
    assert set(against_four["verdict"]) == {TOO_FEW}  # 4 * 2 / 2^7 > 0.05
    mixed = [1.0, *lower[1:]]
    assert verdicts_on(scores(new=new, a=mixed), "new")["verdict"].tolist() == [NOT_SEPARATED]


def test_the_calibrated_p_corrects_for_the_choice_of_the_best() -> None:
    """At the nominal level of 0.05 it is about 0.14 with twelve encodings, and 0.05 with two."""
    assert 0.12 <= calibrated_p(0.05, 12, 12) <= 0.17
    assert calibrated_p(0.05, 2, 12) == pytest.approx(0.05, abs=0.01)
    assert calibrated_p(0.0, 12, 12) == 0


def test_a_score_needs_configurations_and_lengths_that_all_encodings_have() -> None:
    """NoPE lacks configuration 1 and one run of RoPE has a further length. The lower loss counts."""
    rows = []
    points = []
    saved = {}
    for label, setting, rate in itertools.product(("rope", "none"), (0, 1), (0.001, 0.003)):
        if (label, setting) == ("none", 1):
            continue
        name = f"{label}-{setting}-{rate}"
        run = {"name": name, "seed": setting, "task": "kth"}
        is_better = rate == {"rope": 0.003, "none": 0.001}[label]
        loss = 0.1 if is_better else 0.5
        saved[name] = Record(name, {"training": {"learning_rate": rate}, "task": {}}, 1, {})
        rows.append(
            run
            | {"label": label, "max_length": 10, "loss_in_distribution": loss, "solved_in_distribution": True}
        )
        exact_match = {5: 1.0, 10: 1.0, 20: 0.6 if is_better else 0.9, 40: 0.1, 80: 0.2}
        for length, value in exact_match.items():
            points.append(
                run | {"content_length": length, "exact_match": value, "answer_tokens": 5, "bag_ceiling": 0.5}
            )
    points.append(points[-1] | {"name": "rope-0-0.003", "seed": 0, "content_length": 30, "exact_match": 0.0})
    runs = Runs(pd.DataFrame(rows), pd.DataFrame(points), saved=saved)
    table = score_table(runs)
    assert list(table["name"]) == ["none-0-0.001", "rope-0-0.003"]
    assert table["score"].to_list() == pytest.approx([(0.8 + 0.35 + 0.15) / 3] * 2)


def test_a_single_encoding_is_ranked_without_a_test() -> None:
    (row,) = against_best(pd.DataFrame({"rope": [0.1, 0.4, 0.2]})).to_dict("records")
    assert row["mean"] == pytest.approx(0.7 / 3)
    assert (row["difference"], row["p"], row["tied"]) == (0.0, 1.0, True)
