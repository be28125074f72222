"""Test the study of longer trainings: its counts are recomputed from the CSVs by the words of its plan."""

from collections import Counter, defaultdict
from pathlib import Path

import pytest

from results.longer_training import study
from tests import recomputation
from tests.conftest import ROOT

FOLDER = ROOT / "results" / "longer_training"


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        (0.5, 0.4, "stays"),
        (0.405, 0.3, "falls"),
        (0.96, 0.86, "stays"),
        (0.5, 0.605, "rises"),
        (0.1, 0.0, "at the floor"),
        (0.1, 0.2, "at the floor"),
        (0.0, 0.105, "rises"),
    ],
)
def test_changes_are_judged_as_planned(before: float, after: float, verdict: str) -> None:
    assert study.judge(before, after) == verdict


def evaluations(folder: Path) -> dict[str, dict[int, dict[int, int]]]:
    """Return the number of right answers, of 200, by run, step and length."""
    right: dict[str, dict[int, dict[int, int]]] = defaultdict(lambda: defaultdict(dict))
    for row in recomputation.read_csv(folder / "by_step.csv"):
        assert row["examples"] == "200"
        count = round(200 * float(row["exact_match"]))
        right[row["name"]][int(row["step"])][int(row["length"])] = count
    return right


def test_counts_follow_from_the_curves_of_the_training() -> None:
    counts: Counter[str] = Counter()
    for by_length_and_step in evaluations(FOLDER).values():
        assert len(by_length_and_step) == 40
        steps = sorted(by_length_and_step)
        learned = [
            step for step in steps if sum(by_length_and_step[step][n] for n in (6, 12, 18, 24)) >= 0.9 * 800
        ]
        if not learned:
            continue
        counts["learned"] += 1
        before, after = (by_length_and_step[step][48] for step in (learned[0], steps[-1]))
        counts["risen"] += before > 20 and after - before > 20
        counts["able"] += before > 20
        counts["fallen"] += before > 20 and after - before < -20
    values = study.values(FOLDER)
    assert {name: values[name] for name in counts} == counts


def test_the_bank_runs_have_the_same_rate_and_a_quarter_of_the_steps() -> None:
    """The last values are those of the longer run's own curve, and the first those of the bank's."""
    bank = {row["name"]: row for row in recomputation.read_csv(FOLDER.parent / "bank" / "scores.csv")}
    at_48 = {
        (row["name"]): round(200 * float(row["exact_match"]))
        for folder in ("bank", "longer_training")
        for row in recomputation.read_csv(FOLDER.parent / folder / "curves.csv")
        if row["content_length"] == "48"
    }
    counted = {(row["task"], row["label"], row["configuration"]): name for name, row in bank.items()}
    able = fallen = 0
    for row in recomputation.read_csv(FOLDER / "runs.csv"):
        name = counted[row["task"], row["label"], row["seed"]]
        assert f"training.learning_rate={float(bank[name]['rate']):g}" in row["command"].split()
        able += at_48[name] > 20
        fallen += at_48[name] > 20 and at_48[row["name"]] - at_48[name] < -20
    values = study.values(FOLDER)
    assert (values["bank_able"], values["bank_fallen"]) == (able, fallen)


def test_pages_repeat_the_counts() -> None:
    values = study.values(FOLDER)
    assert values["fallen"] == 0
    answer = (ROOT / "docs" / "questions.md").read_text()
    assert f"falls in none of {values['able']} runs and rises in {values['risen']}" in answer
    assert min(map(float, values["copied/rope_nope"].split(" to "))) >= 0.85  # "reached 0.9", in README
