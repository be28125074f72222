"""Mamba's table 11: other code finds the published verdicts."""

from __future__ import annotations

from pe_experiments.published import read_archive
from results.replications import gu
from tests import stranger

LENGTHS = [64, 128, 256, 512, 1024, 2048, 4096]


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
