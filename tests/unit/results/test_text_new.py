"""New encodings on text: classes as planned, and the outcome by other code."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from results.text.new import study
from tests import stranger

PLAN = (Path(study.__file__).parents[2] / "transfer" / "plan.md").read_text("utf-8")


def test_the_classes_are_those_of_the_plan() -> None:
    rows = {
        level: next(line for line in PLAN.splitlines() if line.startswith(f"| {words}"))
        for level, words in enumerate(("longer inputs bring", "the rest", "a bias keeps falling"))
    }
    for label, level in study.CLASSES.items():
        assert f"`{label}`" in rows[level], label
    assert sum(row.count("`") // 2 for row in rows.values()) == len(study.CLASSES) + 1  # one is in two rows


def test_a_stranger_finds_the_outcome() -> None:
    """From the CSVs by loops alone: rises, pairs of a class, and the page's words."""
    folder = Path(study.__file__).parent
    predicted = {row["encoding"]: row for row in stranger.read_csv(folder / "predictions.csv")}
    runs = {row["name"]: row for row in stranger.read_csv(folder / "runs.csv")}
    bits = {
        (row["name"], row["length"]): float(row["bits_per_byte"])
        for row in stranger.read_csv(folder / "text.csv")
        if (row["windows"], row["slice"]) == ("sliding", "all")
    }
    rate = {
        name: row["command"].partition("training.learning_rate=")[2].split()[0] for name, row in runs.items()
    }
    rises = {}
    for label in predicted:
        own = [name for name, row in runs.items() if row["label"] == label]
        tuned = {
            rate[name]: float(runs[name]["loss_in_distribution"])
            for name in own
            if runs[name]["seed"] == "100"
        }
        best = min(tuned, key=lambda tried: tuned[tried])
        assert len(tuned) >= 3
        assert min(tuned, key=float) != best != max(tuned, key=float)  # it is at no end
        names = [name for name in own if runs[name]["seed"] != "100" and rate[name] == best]
        assert sorted(runs[name]["seed"] for name in names) == ["0", "1", "2"]
        rises[label] = sum(bits[name, "2048"] - bits[name, "256"] for name in names) / 3
    scores = {label: float(row["score"]) for label, row in predicted.items()}
    groups = [[label for label in predicted if predicted[label]["class"] == level] for level in "012"]

    def share(scores: dict[str, float]) -> tuple[float, int]:
        right = [
            (scores[one] - scores[other]) * (rises[other] - rises[one]) > 0
            for group in groups
            for one in group
            for other in group
            if one < other and abs(rises[one] - rises[other]) >= 0.05
        ]
        return sum(right) / len(right), len(right)

    (group,) = [group for group in groups if len(group) > 1]
    others = [
        share(scores | dict(zip(group, (scores[label] for label in order), strict=True)))[0]
        for order in permutations(group)
    ]
    found = study.blocks(folder)
    assert (found["share"], found["pairs"]) == (pytest.approx(share(scores)[0]), share(scores)[1])
    assert found["p"] == pytest.approx(np.mean([other >= found["share"] - 1e-9 for other in others]))
    assert found["smallest_p"] == pytest.approx(np.mean([other == max(others) for other in others]))
    levels = [int(predicted[label]["class"]) for label in rises]
    assert found["classes_rho"] == pytest.approx(
        stats.spearmanr(levels, [-rise for rise in rises.values()])[0]
    )
    assert found["verdict"] == "not shown"
    assert found["smallest_p"] > 0.05
    assert found["classes_p"] > 0.05
    kept = [label for label, rise in rises.items() if abs(rise) < 0.01]
    assert sorted(kept) == ["cpb_linear", "cpb_log", "fox(initial_bias=4)"]
    assert max(group, key=lambda label: rises[label]) == min(group, key=lambda label: scores[label]) == "fope"
