"""Rates and steps beyond the bank's: a lower loss decides which run counts, and with it what is said."""

import pytest

from results.bank.edges import study as edges
from tests import stranger
from tests.conftest import ROOT


@pytest.mark.slow
def test_a_stranger_finds_the_verdicts_that_change() -> None:
    folder = ROOT / "results" / "bank" / "edges"
    banks = [
        stranger.bank_runs(edges.BANK),
        stranger.bank_runs(edges.BANK, folder, without=("steps=12000", "steps=16000")),
    ]

    def said(bank: stranger.Bank, task: str, as_zero: bool) -> dict[str, str]:
        values = stranger.measured(bank[task], "score", as_zero)
        best, others = stranger.best_against_others(values)
        words = {name: "lower" if p <= 0.05 else "tied" for name, (_, p) in others.items()}
        return {best: "best"} | words

    rows = edges.changed_verdicts(*edges.load(folder)[:2]).to_dict("records")
    assert len(rows) == 8
    for row in rows:
        before, after = (said(bank, row["task"], row["unlearned"] == "0") for bank in banks)
        assert f"`{next(iter(before))}`" == row["best"]
        assert f"`{next(iter(after))}`" == row["best with the new rate"]
        changed = {
            f"`{name}`: {before[name]}, now {after.get(name, 'not compared')}"
            for name in before
            if before[name] != after.get(name)
        }
        assert changed == set(row["verdicts that change"].split("; ")) - {"–"}, row
