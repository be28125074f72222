"""Test the published verdicts on encodings that joined the bank later."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pandas as pd
import pytest

from results.bank.new import study as new
from tests import recomputation

NEW = Path(new.__file__).parent


@pytest.mark.slow
def test_independent_code_finds_the_verdicts() -> None:
    """By task, and over the tasks against the two recommended encodings."""
    counts = Counter(row["label"] for row in recomputation.read_csv(NEW / "runs.csv"))
    unfinished = tuple(f"pe={label} " for label, runs in counts.items() if runs < new.RUNS)
    bank = recomputation.bank_runs(new.BANK)
    added = recomputation.bank_runs(NEW, floors_of=new.BANK, without=unfinished)
    published = {
        (row["encoding"], row["task"], row["other"]): row
        for row in recomputation.read_csv(NEW / "verdicts.csv")
    }
    labels = {encoding for encoding, _, _ in published}
    assert labels == set(added["copy"])
    means = recomputation.over_tasks(bank, new.TASKS, "score")
    means |= recomputation.over_tasks(added, new.TASKS, "score")
    compared = 0
    for label in labels:
        values_by_task = {new.MEAN: {name: means[name] for name in (label, *new.RECOMMENDED)}}
        for task in new.TASKS:
            learned = recomputation.measured(bank[task], "score")
            learned[label] = recomputation.measured(added[task], "score")[label]
            values_by_task[task] = learned
        for task, values in values_by_task.items():
            tests = recomputation.against_others(values, label)
            for name in values.keys() - {label}:
                row = published[label, task, name]
                assert bool(row["p"]) == (name in tests), row
                if name in tests:
                    difference, p = tests[name]
                    verdict = "not separated"
                    if p <= 0.05:
                        verdict = "better" if difference > 0 else "worse"
                    assert float(row["difference"]) == pytest.approx(difference, abs=1e-9)
                    assert float(row["p"]) == pytest.approx(p)
                    assert row["verdict"] == verdict, row
                    compared += 1
    assert compared > 10 * len(labels)


@pytest.mark.slow
def test_statements_written_by_hand_on_the_page_are_true() -> None:
    rows = pd.read_csv(NEW / "verdicts.csv").set_index(["encoding", "task", "other"])["verdict"].sort_index()
    scores, complete = new.load(NEW)
    assert set(complete) == set(rows.index.unique("encoding"))
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
