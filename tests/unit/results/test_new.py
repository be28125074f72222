"""Encodings that joined the bank later: what is complete counts, and the verdicts are those of other code."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pe_experiments.published import read_archive
from pe_experiments.published.archive import select_runs, write_archive
from results.bank.new import study as new
from tests import stranger

pytestmark = pytest.mark.slow
NEW = Path(new.__file__).parent


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


def test_a_stranger_finds_the_verdicts() -> None:
    """On every task, and over the tasks against the two that are recommended."""
    counts = Counter(row["label"] for row in stranger.read_csv(NEW / "runs.csv"))
    unfinished = tuple(f"pe={label} " for label, runs in counts.items() if runs < new.RUNS)
    bank = stranger.bank_runs(new.BANK)
    added = stranger.bank_runs(NEW, floors_of=new.BANK, without=unfinished)
    rows = stranger.read_csv(NEW / "verdicts.csv")
    labels = {row["encoding"] for row in rows}
    assert labels == set(added["copy"])
    means = {
        name: {
            n: float(
                np.mean(
                    [source[task][name][n]["score"] * source[task][name][n]["learned"] for task in new.TASKS]
                )
            )
            for n in range(12)
        }
        for source in (bank, added)
        for name in source["copy"]
    }
    compared = 0
    for label in labels:
        cases = {"mean": {name: means[name] for name in (label, "fox", "kerple_log")}}
        for task in new.TASKS:
            learned = stranger.measured(bank[task], "score") | stranger.measured(added[task], "score")
            cases[task] = {name: learned[name] for name in (label, *bank[task])}
        for task, values in cases.items():
            told = {row["other"]: row for row in rows if (row["encoding"], row["task"]) == (label, task)}
            found = stranger.against_others(values, label)
            assert {name for name, row in told.items() if row["p"]} == set(found), (label, task)
            for name, (difference, p) in found.items():
                compared += 1
                assert float(told[name]["difference"]) == pytest.approx(difference, abs=1e-9)
                assert float(told[name]["p"]) == pytest.approx(p)
                verdict = "not separated" if p > 0.05 else "better" if difference > 0 else "worse"
                assert told[name]["verdict"] == verdict, (label, task, name)
    assert compared > 10 * len(labels)


def test_what_the_page_says_in_words_is_true() -> None:
    rows = pd.read_csv(NEW / "verdicts.csv").set_index(["encoding", "task", "other"])["verdict"].sort_index()
    scores = new.load(NEW)[0]
    means = new.summary(scores)
    gate = "fox(initial_bias=4)"
    assert list(means.index[:4]) == [gate, "cpb_log", "cope", "fox"]
    assert set(rows["cpb_log", "mean"]) == set(rows[gate, "mean"]) == {"not separated"}
    assert rows[gate, "copy", "fox"] == rows[gate, "flip_flop", "kerple_log"] == "better"
    assert rows[gate, "copy", "kerple_log"] == "not separated"
    assert "worse" not in set(rows[gate])
    assert scores.loc[(scores["label"] == gate) & (scores["task"] == "lag"), "learned"].sum() == 9
    assert set(rows["cpb_log", "lag"]) == set(rows["cpb_linear", "lag"]) == {"better"}
    assert len(rows["cpb_log", "lag"]) == 12
    assert rows["cpb_log", "copy", "kerple_log"] == rows["cope", "copy", "kerple_log"] == "worse"
    assert set(rows["cope", "mean"]) == {"not separated"}
    assert scores.loc[(scores["label"] == "cope") & (scores["task"] == "lag"), "learned"].sum() == 12
    assert set(rows["rope_clipped", "mean"]) == set(rows["fope", "mean"]) == {"worse"}
    against_rope = {task: rows["fope", task, "rope"] for task in new.TASKS}
    assert against_rope.pop("lag") == "worse"
    assert set(against_rope.values()) == {"not separated"}
