"""New encodings on text: predictions as the plan asks for, and its tests against independent ones."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import numpy as np
import pandas as pd
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


def test_what_is_predicted_is_the_mean_where_it_was_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    by_task = {
        "copy": pd.DataFrame({"path": [0.2, np.nan, 0.4], "cope": [np.nan] * 3, "rope_pp": [0.9, 0.9, 0.9]}),
        "lag": pd.DataFrame(
            {"path": [0.5, 0.5, 0.5], "cope": [0.8, np.nan, np.nan], "rope_pp": [0.1, 0.1, 0.1]}
        ),
    }
    monkeypatch.setattr(study.new, "matrices", lambda scores: by_task)
    rows = study.predict(pd.DataFrame(), ["rope_pp", "cope", "path"]).set_index("encoding")
    assert rows["score"].to_dict() == pytest.approx({"path": 0.4, "cope": 0.4, "rope_pp": 0.5})
    assert rows["place_by_class"].to_dict() == {"path": 1.5, "cope": 1.5, "rope_pp": 3}
    assert rows["place_by_bank"].to_dict() == {"rope_pp": 1, "path": 2.5, "cope": 2.5}


@pytest.mark.parametrize("seed", range(5))
def test_pairs_within_classes_are_counted_as_a_loop_counts_them(seed: int) -> None:
    draw = np.random.default_rng(seed)
    rises, scores = draw.uniform(0, 0.4, 7), draw.integers(4, size=7) / 4
    classes = np.array([0, 0, 1, 1, 1, 1, 2])

    def share(scores: np.ndarray) -> tuple[float, int]:
        right, pairs = 0.0, 0
        for i in range(7):
            for j in range(7):
                if i < j and classes[i] == classes[j] and abs(rises[i] - rises[j]) >= 0.05:
                    pairs += 1
                    product = (scores[i] - scores[j]) * (rises[j] - rises[i])
                    right += 1.0 if product > 0 else 0.5 if product == 0 else 0.0
        return right / pairs, pairs

    observed, pairs = share(scores)
    orders = ([*a, *b, 6] for a in permutations([0, 1]) for b in permutations([2, 3, 4, 5]))
    others = [share(scores[order])[0] for order in orders]
    found = study.within_classes(rises, scores, classes)
    assert (found.share, found.pairs) == (pytest.approx(observed), pairs)
    assert found.p == pytest.approx(np.mean([other >= observed - 1e-9 for other in others]))


def test_the_bank_knows_more_when_it_orders_every_class_rightly() -> None:
    classes, scores = np.array([0] * 4 + [1] * 4), np.linspace(0, 1, 8)
    right = study.within_classes(-scores, scores, classes)
    assert (right.share, right.pairs, right.verdict) == (1.0, 12, "the bank knows more")
    assert right.p == pytest.approx(1 / 24**2)
    assert study.within_classes(scores, scores, classes).verdict == "not shown"
    close = np.array([0.0, 0.04, 0.08, 0.5])  # one pair is too close, and one encoding is alone in its class
    few = study.within_classes(close, scores[:4], np.array([0, 0, 0, 1]))
    assert (few.pairs, few.verdict) == (1, "not decidable")
    one_class = study.within_classes(-scores[:5], scores[:5], np.zeros(5))
    assert (one_class.share, one_class.p, one_class.verdict) == (1.0, pytest.approx(1 / 120), "not decidable")


def test_the_correlation_of_ranks_is_that_of_scipy_and_its_p_that_of_all_orders() -> None:
    draw = np.random.default_rng(3)
    classes, rises = np.array([0, 0, 1, 1, 2, 2]), draw.normal(size=6)
    rho, p = study.rank_correlation(classes, rises)
    assert rho == pytest.approx(stats.spearmanr(classes, -rises).statistic)
    every = [stats.spearmanr(classes[list(order)], -rises).statistic for order in permutations(range(6))]
    assert p == pytest.approx(np.mean(np.array(every) >= rho - 1e-9))


def test_rises_are_those_at_the_rate_that_the_tuning_seed_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    tuning = ((100, 0.1, 0.5), (100, 0.2, 0.4))
    lines = [
        (f"{label}-{seed}-{rate}", label, seed, "completed", loss, rate)
        for label in ("path", "cope", "fope", "rope_pp")
        for seed, rate, loss in (*tuning, (0, 0.1, 0.0), (0, 0.2, 0.0), (1, 0.2, 0.0), (2, 0.2, 0.0))
    ]
    runs = pd.DataFrame(lines, columns=["name", "label", "seed", "status", "loss_in_distribution", "rate"])
    runs.loc[runs["name"] == "cope-1-0.2", "status"] = "diverged"
    runs.loc[runs["label"] == "rope_pp", "status"] = "diverged"  # everywhere: the smallest rate counts
    lost = runs[(runs["label"] == "rope_pp") & (runs["seed"] < 3) & (runs["rate"] == 0.2)]
    runs.loc[lost.index, ["rate", "name"]] = [(0.1, f"rope_pp-{seed}") for seed in lost["seed"]]
    runs = runs.drop_duplicates(["label", "seed", "rate"])
    runs = runs[runs["name"] != "fope-2-0.2"]  # not complete
    bits = pd.DataFrame({256: 2.0, 2048: 3.0 + runs["rate"].to_numpy()}, index=runs["name"])
    bits.loc["path-0-0.2", 2048] = 4.0
    monkeypatch.setattr(study, "with_settings", lambda runs, rate: runs)
    monkeypatch.setattr(study, "bits_per_byte", lambda given, lengths: bits)
    found, highest = study.rises(runs), (2.0 + 1.2 + 1.2) / 3  # the mean rise of path
    assert found.to_dict("index") == {
        "path": pytest.approx({0: 2.0, 1: 1.2, 2: 1.2}),
        "cope": pytest.approx({0: 1.2, 1: highest, 2: 1.2}),
        "rope_pp": pytest.approx(dict.fromkeys(range(3), highest)),
    }


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
