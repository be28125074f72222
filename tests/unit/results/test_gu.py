"""Mamba's table 11: the verdicts that the plan fixed, on accuracies made up for it."""

from __future__ import annotations

import pandas as pd
import pytest

from results.replications import gu

LENGTHS = [64, 128, 256, 512, 1024, 2048, 4096]
THEIRS = gu.published()


def ours(**rows: list[float]) -> pd.DataFrame:
    """Return accuracies: the published ones, but for the given encodings."""
    table = THEIRS[LENGTHS].astype(float)
    for encoding, row in rows.items():
        table.loc[encoding] = row
    return table


def test_the_published_accuracies_are_those_of_the_paper() -> None:
    assert THEIRS.loc["learned"].tolist() == [100, 99.6, 100, 58.6, 26.6, 18.8, 9.8, 10.9, 7.8]
    assert THEIRS.loc["rope"].tolist() == [100, 100, 100, 83.6, 31.3, 18.4, 8.6, 9.0, 5.5]
    assert THEIRS.loc["xpos"].tolist() == [100, 100, 100, 99.6, 67.6, 25.4, 7.0, 9.0, 7.8]


def test_a_value_agrees_if_six_of_seven_accuracies_lie_within_ten_points() -> None:
    off = THEIRS.loc["rope", LENGTHS] + [0, 0, 0, -10, 10.1, 0, 0]
    assert gu.value_verdicts(THEIRS, ours(rope=off.tolist()))["rope"] == "yes (6 of 7)"
    off[512] -= 1
    verdicts = gu.value_verdicts(THEIRS, ours(rope=off.tolist(), fox=[100.0] * 7))
    assert verdicts == {"learned": "yes (7 of 7)", "rope": "no (5 of 7)", "xpos": "yes (7 of 7)"}


def test_an_encoding_that_did_not_learn_decides_nothing() -> None:
    row = [100, 100, 98.9, 83.6, 31.3, 18.4, 8.6]
    assert gu.value_verdicts(THEIRS, ours(rope=row))["rope"] == gu.NOT_LEARNED
    assert gu.order_verdict(ours(rope=row)) == gu.NOT_LEARNED
    assert gu.order_verdict(ours(fox=[50.0] * 7)) == "agrees"


@pytest.mark.parametrize(
    ("at_512", "at_1024", "verdict"),
    [
        ((50, 60, 70), (20, 30, 40), "agrees"),
        ((50, 60, 70), (30, 20, 40), "agrees"),
        ((50, 60, 70), (20, 35, 40), "partly"),
        ((50, 60, 70), (35, 20, 40), "partly"),
        ((50, 60, 65), (20, 30, 40), "partly"),
        ((60, 50, 70), (20, 30, 34), "does not agree"),
    ],
)
def test_order_asks_for_more_than_five_points(
    at_512: tuple[float, ...], at_1024: tuple[float, ...], verdict: str
) -> None:
    table = ours()
    table.loc[[*gu.PUBLISHED], 512] = at_512
    table.loc[[*gu.PUBLISHED], 1024] = at_1024
    assert gu.order_verdict(table) == verdict


def test_reach_is_the_longest_length_that_is_still_right() -> None:
    reached = gu.reach(ours(fox=[100.0] * 6 + [90.0], alibi=[10.0] * 7))
    assert reached.to_dict() == {"learned": 256, "rope": 256, "xpos": 512, "fox": 4096, "alibi": 0}
