"""Test that independent code finds the published verdicts on table 11 of Mamba."""

from __future__ import annotations

from pe_experiments.studies import read_archive
from results.replications import gu
from tests import recomputation

LENGTHS = [64, 128, 256, 512, 1024, 2048, 4096]


def test_independent_code_finds_the_verdicts() -> None:
    original = {
        (row["encoding"], int(row["length"])): float(row["accuracy"])
        for row in recomputation.read_csv(gu.HERE / "gu2023.csv")
    }
    replicated = {
        (row["label"], int(row["content_length"])): 100 * float(row["exact_match"])
        for row in recomputation.read_csv(gu.HERE / "gu" / "curves.csv")
    }
    page = (gu.HERE / "README.md").read_text("utf-8")
    rows = {}
    for line in gu.accuracy_table().splitlines():
        assert line in page
        cells = [cell.strip(" `") for cell in line.split("|")]
        rows[cells[1]] = cells
    names = {name for name, _ in replicated}
    assert {"learned", "rope", "xpos"} < names
    for name in names:
        reach = max((n for n in LENGTHS if replicated[name, n] >= 90), default=0)
        near = sum(abs(replicated[name, n] - original.get((name, n), 1e9)) <= 10 for n in LENGTHS)
        expected_reach, verdict = f"{reach:,}", f"{'yes' if near >= 6 else 'no'} ({near} of 7)"
        if replicated[name, 256] < 99:
            expected_reach = verdict = "not learned"
        if (name, 64) not in original:
            verdict = "–"
        assert rows[name][-3:-1] == [expected_reach, verdict], name
    order = gu.order_verdict(gu.accuracies(read_archive(gu.HERE / "gu")))
    rope_is_unlearned = replicated["rope", 256] < 99
    assert (order == gu.NOT_LEARNED) == rope_is_unlearned == ("could not be judged" in page)
