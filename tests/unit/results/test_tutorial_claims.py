"""Test the study of the claims of tutorials: its audits, and how a claim is judged."""

from __future__ import annotations

import pandas as pd
import pytest

from results.tutorial_claims.audits import NOISE, audit_all
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
