"""Rates and steps beyond the bank's: a lower loss decides which run counts, and with it what is said."""

import pandas as pd
import pytest

from results.bank.edges import study as edges
from tests import stranger
from tests.conftest import ROOT

SETTINGS = range(12)


def runs(label: str, rate: float, score: float, loss: float, steps: int = 100) -> list[dict[str, object]]:
    """A run of an encoding in each configuration; scores rise a little with it."""
    return [
        {
            "task": "copy", "label": label, "setting": setting, "rate": rate, "steps": steps,
            "name": f"{label}-{rate}-{steps}-{setting}",
            "score": score + 0.001 * setting, "learned": score > 0,
            "loss_in_distribution": loss, "exact_match_in_distribution": 1.0 if score else 0.5,
        }
        for setting in SETTINGS
    ]  # fmt: skip


BANK = pd.DataFrame(
    [
        row
        for label, score in (("fox", 0.6), ("rope", 0.2), ("none", 0.0))
        for rate, loss in ((0.001, 0.2), (0.003, 0.1))
        for row in runs(label, rate, score if rate == 0.003 else score / 2, loss)
    ]
)


def test_a_rate_counts_where_its_loss_is_lower() -> None:
    new = pd.DataFrame(runs("rope", 0.006, 0.9, loss=0.3))
    new.loc[new["setting"] < 6, "loss_in_distribution"] = 0.05
    (row,) = edges.rate_rows(BANK, new).to_dict("records")
    assert (row["new rate"], row["lower loss"]) == ("0.006", "6 of 12")
    assert (row["score"], row["with the new rate"]) == (
        "0.21",
        "0.56",
    )  # (6 * 0.9 + 6 * 0.2) / 12, and the rise


def test_a_verdict_is_named_only_if_it_changes() -> None:
    unchanged, better = (pd.DataFrame(runs("rope", 0.006, 0.9, loss)) for loss in (0.3, 0.05))
    rows = edges.changed_verdicts(BANK, unchanged).to_dict("records")
    assert [row["unlearned"] for row in rows] == ["left out", "0"]
    assert {row["verdicts that change"] for row in rows} == {"–"}
    for row in edges.changed_verdicts(BANK, better).to_dict("records"):
        assert (row["best"], row["best with the new rate"]) == ("`fox`", "`rope`")
        assert set(row["verdicts that change"].split("; ")) == {
            "`fox`: best, now lower", "`rope`: lower, now best",
        }  # fmt: skip


def test_slow_is_what_most_configurations_learn_in_more_steps() -> None:
    longer = pd.DataFrame(runs("none", 0.003, 0.3, loss=0.1, steps=200)[:3])
    for count, word in ((2, "slow"), (1, "not learned with twice the steps")):
        some = longer.assign(learned=[index < count for index in range(3)])
        (row,) = edges.step_rows(BANK, some).to_dict("records")
        assert (row["learned"], row["so it is"]) == (f"{count} of 3", word)
        assert (row["exact match"], row["with half the steps"]) == ("1.00, 1.00, 1.00", "0.50, 0.50, 0.50")


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
