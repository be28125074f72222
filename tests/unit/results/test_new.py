"""Encodings that joined the bank later: what is complete counts, and the verdicts are those of other code."""

from __future__ import annotations

import pandas as pd
import pytest

from pe_experiments.published import read_archive
from pe_experiments.published.archive import select_runs, write_archive
from results.bank.new import study as new

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> tuple[pd.DataFrame, list[str]]:
    """Two of the bank's encodings under new names; `partial` lacks a run."""
    bank = read_archive(new.BANK)
    names = {"kerple_log": "mine", "rope": "partial"}
    chosen = bank.runs["label"].isin(names) & bank.runs["task"].isin(new.TASKS)
    missing = bank.runs.index[chosen & (bank.runs["label"] == "rope")][0]
    runs = select_runs(bank, chosen & (bank.runs.index != missing))
    for frame in (runs.runs, runs.curves, runs.training):
        frame["label"] = frame["label"].map(names)
    runs.tuning.clear()
    folder = tmp_path_factory.mktemp("bank") / "new"
    write_archive(runs, folder)
    return new.load(folder)


def test_an_encoding_is_published_when_all_its_runs_are_there(loaded: tuple[pd.DataFrame, list[str]]) -> None:
    scores, names = loaded
    assert names == ["mine"]
    assert set(scores["label"]) == {"mine", *pd.read_csv(new.BANK / "scores.csv")["label"]}


def test_an_encoding_has_the_scores_and_verdicts_of_its_twin_in_the_bank(
    loaded: tuple[pd.DataFrame, list[str]],
) -> None:
    scores, names = loaded
    means = new.summary(scores)
    assert means.loc["mine"].tolist() == means.loc["kerple_log"].tolist()
    (fox,) = (
        row for row in new.against_recommended(scores, names).to_dict("records") if row["other"] == "fox"
    )
    assert fox["verdict"] == "not separated"
    assert fox["difference"] == pytest.approx(means.loc["kerple_log", "mean"] - means.loc["fox", "mean"])
    banked = pd.read_csv(new.BANK / "verdicts.csv")
    banked = banked[(banked["task"] == "induction") & (banked["measure"] == "area")].set_index("encoding")
    rows = new.by_task(scores, names)
    rows = rows[rows["task"] == "induction"].set_index("other")
    assert banked["best"].eq("kerple_log").all()
    for name in banked.index:
        assert rows.loc[name, "difference"] == pytest.approx(banked.loc[name, "difference"])
        assert rows.loc[name, "settings"] == banked.loc[name, "settings"]
    assert rows.loc["kerple_log", "p"] == 1.0
    own, twin = (new.view_table(scores, [name]).splitlines()[-1] for name in ("mine", "kerple_log"))
    assert own.replace("mine", "kerple_log") == twin
    learned = scores[(scores["label"] == "mine") & (scores["task"] == "induction") & scores["learned"]]
    assert f" {means.loc['mine', 'induction']:.2f} / {learned['score'].mean():.2f} |" in own
    verdict_row = new.verdict_table(rows.reset_index()).splitlines()[-1]
    assert "`kerple_log`" in verdict_row.split("|")[4]  # tied
