"""Mamba's table 11: the verdicts that the plan fixed, on accuracies made up for it."""

from __future__ import annotations

import pandas as pd
import pytest

from pe_experiments.published import read_archive
from results.replications import gu
from tests import stranger

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


def test_a_stranger_finds_the_verdicts_in_the_csvs() -> None:
    theirs = {
        (row["encoding"], int(row["length"])): float(row["accuracy"])
        for row in stranger.read_csv(gu.HERE / "gu2023.csv")
    }
    ours = {
        (row["label"], int(row["content_length"])): 100 * float(row["exact_match"])
        for row in stranger.read_csv(gu.HERE / "gu" / "curves.csv")
    }
    page = (gu.HERE / "README.md").read_text("utf-8")
    names = {name for name, _ in ours}
    assert {"learned", "rope", "xpos"} < names
    for name in names:
        learned = ours[name, 256] >= 99
        near = (
            sum(abs(ours[name, n] - theirs[name, n]) <= 10 for n in LENGTHS) if (name, 64) in theirs else None
        )
        reach = max((n for n in LENGTHS if ours[name, n] >= 90), default=0)
        (line,) = (one for one in gu.accuracy_table().splitlines() if one.startswith(f"| `{name}` |"))
        *_, told_reach, verdict, _ = (cell.strip() for cell in line.split("|"))
        assert told_reach == (f"{reach:,}" if learned else "not learned")
        if near is None:
            assert verdict == "–"
        else:
            assert verdict == (f"{'yes' if near >= 6 else 'no'} ({near} of 7)" if learned else "not learned")
        assert line in page
    decided = gu.order_verdict(gu.accuracies(read_archive(gu.HERE / "gu")))
    assert (decided == gu.NOT_LEARNED) == (ours["rope", 256] < 99) == ("could not be judged" in page)
