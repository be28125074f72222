"""Test the study of longer trainings: its counts are recomputed from the CSVs by the words of its plan."""

from collections import Counter

import pandas as pd

from results.longer_training import study
from tests.conftest import ROOT

FOLDER = ROOT / "results" / "longer_training"


def test_counts_follow_from_the_curves_of_the_training() -> None:
    """In right answers, of 200 at each length."""
    points = pd.read_csv(FOLDER / "by_step.csv")
    assert set(points["examples"]) == {200}
    points["right"] = (200 * points["exact_match"]).round()
    counts: Counter[str] = Counter()
    for _, of_run in points.groupby("name"):
        right = of_run.pivot(index="step", columns="length", values="right")
        assert len(right) == 40
        has_learned = right[[6, 12, 18, 24]].sum(axis="columns") >= 0.9 * 800
        if not has_learned.any():
            continue
        before, after = right.loc[has_learned.idxmax(), 48], right[48].iloc[-1]
        counts["learned"] += 1
        counts["risen"] += before > 20 and after - before > 20
        counts["able"] += before > 20
        counts["fallen"] += before > 20 and after - before < -20
    values = study.values(FOLDER)
    assert {name: values[name] for name in counts} == counts


def test_the_bank_runs_have_the_same_rate_and_a_quarter_of_the_steps() -> None:
    keys = ["task", "label", "configuration"]
    longer = pd.read_csv(FOLDER / "runs.csv").rename(columns={"seed": "configuration"})
    counted = pd.read_csv(FOLDER.parent / "bank" / "scores.csv")
    pairs = longer[[*keys, "name", "command"]].merge(counted, on=keys, suffixes=("", "_in_bank"))
    assert len(pairs) == len(longer) == 24
    for row in pairs.itertuples():
        assert f"training.learning_rate={row.rate:g}" in row.command.split()
    curves = pd.concat(
        [pd.read_csv(FOLDER.parent / folder / "curves.csv") for folder in ("bank", FOLDER.name)]
    )
    at_48 = (200 * curves[curves["content_length"] == 48].set_index("name")["exact_match"]).round()
    before, after = (pairs[column].map(at_48) for column in ("name_in_bank", "name"))
    values = study.values(FOLDER)
    assert values["bank_able"] == (before > 20).sum()
    assert values["bank_fallen"] == ((before > 20) & (after - before < -20)).sum()
