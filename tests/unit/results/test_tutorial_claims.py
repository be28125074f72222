"""Test the study of the claims of tutorials: its audits, and how a claim is judged."""

from __future__ import annotations

import pandas as pd
import pytest

from results.tutorial_claims.audits import NOISE, audit_all
from results.tutorial_claims.trained import Difference, Differences, judge_differences, over_seeds
from results.tutorial_claims.untrained import DEPENDS, HOLDS, UNSUPPORTED
from tests.conftest import ROOT


@pytest.fixture(scope="module")
def audits() -> pd.DataFrame:
    return audit_all()


def value(audits: pd.DataFrame, quantity: str) -> float:
    (number,) = audits.loc[audits["quantity"] == quantity, "value"]
    return float(number)


@pytest.mark.slow
def test_the_published_audits_are_those_of_the_code(audits: pd.DataFrame) -> None:
    published = pd.read_csv(ROOT / "results" / "tutorial_claims" / "audits.csv")
    assert published["quantity"].tolist() == audits["quantity"].tolist()
    assert published["value"].tolist() == pytest.approx(audits["value"].tolist(), rel=1e-3, abs=NOISE)


@pytest.mark.parametrize(
    ("quantity", "expected"),
    [
        ("formula, error, d=64", 0),
        ("period of the first pair", 6.283),
        ("period of the last pair", 47_117),
        ("spread over positions, sample, batch first", 0),
        ("order, encoder, none, output at the same token", 0),
        ("values of the sample more than 1e-3 off", 0),
        ("residual of M_k, k=7, float64", 0),
        ("columns that change with the position, concat, after a layer", 64),
        ("raw_index, largest value", 999),
        ("scaled_index, first step of 100", 1 / 99),
        ("binary_counter, largest step over the smallest", 10**0.5),
    ],
)
def test_known_values(audits: pd.DataFrame, quantity: str, expected: float) -> None:
    assert value(audits, quantity) == pytest.approx(expected, rel=1e-3, abs=NOISE)


SEEDS = pd.Series([0.01 * seed for seed in range(5)])
HIGHER = over_seeds(1 - SEEDS, SEEDS)
LOWER = over_seeds(SEEDS, 1 - SEEDS)
EQUAL = over_seeds(pd.Series([1.0] * 3), pd.Series([1.0] * 3))


def on_tasks(difference: Difference, count: int) -> Differences:
    return {f"task {number}": difference for number in range(count)}


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ({"a": HIGHER}, HOLDS),
        (on_tasks(HIGHER, 6), HOLDS),
        (on_tasks(HIGHER, 7), UNSUPPORTED),  # 7 * 2/252 > 0.05: even perfect separation cannot be significant
        (on_tasks(HIGHER, 6) | {f"equal {number}": EQUAL for number in range(9)}, HOLDS),  # not tested
        ({"a": HIGHER, "b": LOWER}, DEPENDS),
        ({"a": HIGHER, "b": None}, UNSUPPORTED),
        ({"a, at 2x": HIGHER, "a, past training": HIGHER}, HOLDS),
        ({"a, at 2x": HIGHER, "a, past training": HIGHER, "b, at 2x": None}, UNSUPPORTED),
    ],
)
def test_a_claim_is_judged_by_its_adjusted_differences(differences: Differences, verdict: str) -> None:
    assert judge_differences(differences)[1] == verdict
