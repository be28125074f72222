"""Test the verdicts of the bank that change with a further learning rate."""

import pytest

from results.bank.edges import study as edges
from tests import recomputation
from tests.conftest import ROOT


def outcomes(bank: recomputation.Bank, task: str, as_zero: bool) -> dict[str, str]:
    """Return the best encoding, and which others are tied with it or lower."""
    values = recomputation.measured(bank[task], "score", as_zero)
    best, others = recomputation.best_against_others(values)
    return {best: "best"} | {name: "lower" if p <= 0.05 else "tied" for name, (_, p) in others.items()}


@pytest.mark.slow
def test_independent_code_finds_the_verdicts_that_change() -> None:
    folder = ROOT / "results" / "bank" / "edges"
    bank = recomputation.bank_runs(edges.BANK)
    with_new_rate = recomputation.bank_runs(edges.BANK, folder, without=("steps=12000", "steps=16000"))
    rows = edges.changed_verdicts(*edges.load(folder)[:2]).to_dict("records")
    assert len(rows) == 8
    for row in rows:
        as_zero = row["unlearned"] == "0"
        before = outcomes(bank, row["task"], as_zero)
        after = outcomes(with_new_rate, row["task"], as_zero)
        assert f"`{next(iter(before))}`" == row["best"]
        assert f"`{next(iter(after))}`" == row["best with the new rate"]
        changes = {
            f"`{name}`: {outcome}, now {after.get(name, 'not compared')}"
            for name, outcome in before.items()
            if outcome != after.get(name)
        }
        assert changes == set(row["verdicts that change"].split("; ")) - {"–"}, row
