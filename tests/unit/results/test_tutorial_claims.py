"""The study of the tutorials' claims: its audits, a verdict for every claim, a page made of data alone."""

from __future__ import annotations

import re

import pandas as pd
import pytest

from results.tutorial_claims.audits import NOISE, audit_all
from results.tutorial_claims.study import HERE, blocks
from results.tutorial_claims.trained import Difference, Differences, judge_differences, over_seeds
from results.tutorial_claims.untrained import DEPENDS, FAILS, HOLDS, UNSUPPORTED, UNTESTED
from tests.conftest import ROOT

# One claim per row of the table the project grew from, by words of it.
ROWS = (
    "sin(p/10000", "worked table", "oscillate fast", "low frequencies", "learns the frequencies", "every d",
    "module sample", "permutation-invariant", "dog bites man", "own vector", "lie in [-1, 1]",
    "same distance", "linear function", "Relative positions", "binary counter", "do not concatenate",
    "more room", "Fixed sinusoids generalise", "Learned positions adapt", "heatmap",
    "four positions ahead", "four ahead", "12 and 14", "weigh meaning",
)  # fmt: skip


@pytest.fixture(scope="module")
def audits() -> pd.DataFrame:
    return audit_all()


def value(audits: pd.DataFrame, quantity: str) -> float:
    found = audits[audits["quantity"] == quantity]
    assert len(found) == 1
    return float(found["value"].iloc[0])


@pytest.mark.slow
def test_the_published_audits_are_those_of_this_code(audits: pd.DataFrame) -> None:
    published = pd.read_csv(ROOT / "results" / "tutorial_claims" / "audits.csv")
    assert published["quantity"].tolist() == audits["quantity"].tolist()
    assert published["value"].tolist() == pytest.approx(audits["value"].tolist(), rel=1e-3, abs=NOISE)


@pytest.mark.slow
@pytest.mark.parametrize(("width", "margin"), [(2, 6e-5), (4, 0.044), (8, 0.645), (16, 1.01), (64, 1.47)])
def test_the_margins_are_those_of_the_source(audits: pd.DataFrame, width: int, margin: float) -> None:
    assert value(audits, f"closest two positions, d={width}, float32") == pytest.approx(margin, rel=0.02)


@pytest.mark.parametrize(
    ("quantity", "expected"),
    [
        ("formula, error, d=64", 0),
        ("period of the first pair", 6.283),
        ("period of the last pair", 47_117),
        ("spread over positions, sample, batch first", 0),
        ("spread over positions, sample, sequence first", 1.98905),
        ("sample crashes past its table", 1),
        ("encoding here crashes there", 0),
        ("values in a checkpoint, sample", 5000 * 64),
        ("order, encoder, none, output at the same token", 0),
        ("order, decoder of depth 1, none, last output, the prefix permuted", 0),
        ("formula, error of the worked table", 4.70985e-4),
        ("values of the sample more than 1e-3 off", 0),
        ("values above 1 in size, float32", 0),
        ("distance, 12 to 14, float64", 2.71887),
        ("error of 12 to 14 with the linear map of 5 to 7, float32", 0),
        ("positions whose largest logit is 4 ahead, float32", 996),
        ("distance rises up to, d=64", 5),
        ("residual of M_k, k=7, float64", 0),
        ("printed function crashes as extracted", 1),
        ("printed function, joined, error at d=512", 0),
        ("printed function, joined, crashes at d=7", 1),
        ("1010 read in binary", 10),
        ("columns without a k, d=8", 0),
        ("columns without a k, d=7", 1),
        ("columns that change with the position, concat, embedded", 32),
        ("columns that change with the position, concat, after a layer", 64),
        ("parameters, fixed", 0),
        ("parameters, learned", 20 * 64),
        ("raw_index, largest value", 999),
        ("scaled_index, first step of 100", 1 / 99),
        ("binary_counter, largest step over the smallest", 10**0.5),
    ],
)
def test_known_values(audits: pd.DataFrame, quantity: str, expected: float) -> None:
    assert value(audits, quantity) == pytest.approx(expected, rel=1e-3, abs=NOISE)


def test_two_causal_layers_see_order(audits: pd.DataFrame) -> None:
    for quantity in ("last output, the prefix permuted", "dog bites man against man bites dog, pooled"):
        assert value(audits, f"order, decoder of depth 2, none, {quantity}") > 0.01


def test_every_row_of_the_claims_table_has_a_verdict_and_its_figure() -> None:
    page = blocks(HERE)["claims"]
    rows = [[cell.strip() for cell in line.split("|")] for line in page.splitlines()[2:]]
    for words in ROWS:
        assert any(words in row[1] for row in rows), words
    assert {row[5] for row in rows} == {HOLDS, FAILS, DEPENDS, UNSUPPORTED, UNTESTED}
    figures = re.findall(r"\[figure\]\((.*?)\)", page)
    assert figures
    assert all((HERE / figure).exists() for figure in figures)


def on_tasks(difference: Difference, count: int) -> Differences:
    return {f"{number}": difference for number in range(count)}


def test_differences_are_adjusted_within_a_claim() -> None:
    """Nine tests of five seeds each: 9 * 2/252 > 0.05, so that not even a perfect separation decides."""
    low = pd.Series([0.01 * s for s in range(5)])
    high = 1 - low
    apart = over_seeds(high, low)
    assert judge_differences(on_tasks(apart, 6))[1] == HOLDS
    assert judge_differences(on_tasks(apart, 7))[1] == UNSUPPORTED
    other = over_seeds(low, high)
    assert judge_differences({"a": apart, "b": other})[1] == DEPENDS
    assert judge_differences({"a": apart})[1] == HOLDS
    assert judge_differences({"a": apart, "b": None})[1] == UNSUPPORTED  # one of several
    assert judge_differences({"a, at 2x": apart, "a, past training": apart})[1] == HOLDS
    assert (
        judge_differences({"a, at 2x": apart, "a, past training": apart, "b, at 2x": None})[1] == UNSUPPORTED
    )
    same = over_seeds(pd.Series([1.0] * 3), pd.Series([1.0] * 3))
    untested = {f"other {n}": same for n in range(9)}
    assert judge_differences(on_tasks(apart, 6) | untested)[1] == HOLDS
