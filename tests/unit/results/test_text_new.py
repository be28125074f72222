"""New encodings on text: predictions as the plan asks for, and its tests against independent ones."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from results.text.new import study

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
