"""Test the mirrored configurations: the rules of the plan, and the published numbers."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from results.bank.mirrored import study as mirrored
from tests import recomputation

MIRRORED = Path(mirrored.__file__).parent
FACTORS = [*mirrored.bank.FACTORS]
# Half of all combinations of levels, in which every two factors are balanced.
LEVELS = [levels for levels in itertools.product([False, True], repeat=len(FACTORS)) if sum(levels) % 2]


def test_main_effects_are_recovered_from_scores_that_they_make() -> None:
    effects = [0.3, -0.2, 0.1, 0.0, 0.05]
    scores = pd.DataFrame(LEVELS, columns=FACTORS).assign(label="fox", task="lag", learned=True)
    scores["score"] = 0.4 + scores[FACTORS].to_numpy(float) @ effects
    first_half = scores.assign(half=0)
    assert mirrored.main_effects(first_half).empty  # the half cannot be separated from the mean
    second_half = scores.assign(score=scores["score"] + 0.07, half=1)
    fitted = mirrored.main_effects(pd.concat([first_half, second_half])).set_index("factor")
    assert fitted["effect"].reindex(FACTORS).tolist() == pytest.approx(effects)
    assert fitted["error"].max() < 1e-9


def test_independent_code_finds_the_effects_of_factors() -> None:
    """One-sided, over all splits of the configurations that learned the task."""
    scores = pd.read_csv(MIRRORED / "scores.csv")
    rows = mirrored.effect_rows(scores).to_dict("records")
    ps = []
    for row, (task, encoding, measure, factor, higher) in zip(rows, mirrored.EFFECTS, strict=True):
        learned = scores[(scores["task"] == task) & (scores["label"] == encoding) & scores["learned"]]
        better = learned.loc[learned[factor] == higher, measure].to_list()
        worse = learned.loc[learned[factor] != higher, measure].to_list()
        assert min(len(better), len(worse)) >= 4
        assert (row["mean"], row["other mean"]) == pytest.approx((np.mean(better), np.mean(worse)))
        sums = [sum(chosen) for chosen in itertools.combinations(better + worse, len(better))]
        ps.append(float(np.mean(np.array(sums) >= sum(better) - 1e-9)))
    adjusted = recomputation.holm(ps)
    assert [row["p"] for row in rows] == pytest.approx(adjusted)
    assert [row["verdict"] == "confirmed" for row in rows] == [p <= 0.05 for p in adjusted]


def recomputed_scores(folder: Path) -> dict[str, recomputation.Values]:
    """Return scores by task, and their mean, in complete configurations; 0 where a task was not learned."""
    by_task = {
        task: recomputation.measured(runs, "score", as_zero=True)
        for task, runs in recomputation.bank_runs(folder).items()
    }
    complete = sorted(set.intersection(*(set(by_task[task]["fox"]) for task in mirrored.TASKS)))
    scores = {
        task: {label: {n: values[n] for n in complete} for label, values in by_task[task].items()}
        for task in mirrored.TASKS
    }
    means = {
        label: {n: float(np.mean([scores[task][label][n] for task in mirrored.TASKS])) for n in complete}
        for label in scores["copy"]
    }
    return scores | {"mean": means}


def check_verdicts(verdicts: pd.DataFrame, scores: dict[str, recomputation.Values]) -> None:
    """Compare every published difference, p-value and verdict."""
    for family, group in verdicts.groupby("family"):
        values = scores[str(family) if family in mirrored.TASKS else "mean"]
        rows = group.to_dict("records")
        tests = [recomputation.sign_flip_p(values[row["encoding"]], values[row["other"]]) for row in rows]
        adjusted = recomputation.holm([p for _, p, _ in tests])
        for row, (difference, _, settings), p in zip(rows, tests, adjusted, strict=True):
            assert row["settings"] == settings
            assert (row["difference"], row["p"]) == pytest.approx((difference, p)), row
            verdict = "tied"
            if p <= 0.05:
                verdict = "confirmed" if difference > 0 else "refuted"
            assert row["verdict"] == verdict, row


@pytest.mark.slow
def test_independent_code_finds_the_published_means_and_verdicts() -> None:
    values = mirrored.blocks(MIRRORED)
    scores = recomputed_scores(MIRRORED)
    assert values["settings"] == len(scores["mean"]["fox"])
    for task, by_label in scores.items():
        for label, by_setting in by_label.items():
            mean = np.mean([*by_setting.values()])
            assert values[f"mirrored/{task}/{label}"] == pytest.approx(mean)
    check_verdicts(pd.read_csv(MIRRORED / "verdicts.csv"), scores)


def confirmed_over(
    scores: dict[str, recomputation.Values], tasks: list[str], left_out: set[int]
) -> list[float]:
    """Return the adjusted p-values of FoX and KERPLE against the ten others that are significant."""
    means = {
        label: {
            n: float(np.mean([scores[task][label][n] for task in tasks])) for n in values if n not in left_out
        }
        for label, values in scores["copy"].items()
    }
    pairs = itertools.product(("fox", "kerple_log"), set(means) - {"fox", "kerple_log"})
    tests = [recomputation.sign_flip_p(means[best], means[other]) for best, other in pairs]
    adjusted = recomputation.holm([p for _, p, _ in tests])
    return [p for (difference, _, _), p in zip(tests, adjusted, strict=True) if p <= 0.05 and difference > 0]


def test_independent_code_finds_the_analyses_beside_the_plan() -> None:
    """Without the repeats or a task, at other lengths, and with tasks drawn like configurations."""
    values = mirrored.blocks(MIRRORED)
    runs = recomputation.bank_runs(MIRRORED)
    scores = {task: recomputation.measured(runs[task], "score", as_zero=True) for task in mirrored.TASKS}
    without_repeats = confirmed_over(scores, mirrored.TASKS, {22, 23})
    assert values["ten/confirmed"] == len(without_repeats) == 20
    assert values["ten/p"] == pytest.approx(max(without_repeats))
    for task in mirrored.TASKS:
        others = [other for other in mirrored.TASKS if other != task]
        assert values[f"without {task}/confirmed"] == len(confirmed_over(scores, others, set()))
    for times in ("2x", "4x"):
        at_times = {task: recomputation.measured(runs[task], times, as_zero=True) for task in mirrored.TASKS}
        assert values[f"at {times}/confirmed"] == len(confirmed_over(at_times, mirrored.TASKS, set()))
    induction = {
        label: {n: s for n, s in rows.items() if n < 22} for label, rows in scores["induction"].items()
    }
    against = recomputation.against_others(induction, "kerple_log", 10)
    assert values["ten/induction/alibi/p"] == pytest.approx(against["alibi"][1])
    assert values["ten/induction/alibi/p"] > 0.05 > values["twelve/induction/alibi/p"]
    first = recomputation.bank_runs(mirrored.BANK)
    halves = [
        {**recomputation.measured(first[task], "score", as_zero=True)[label], **scores[task][label]}
        for task in mirrored.TASKS
        for label in scores["copy"]
    ]
    names = [*scores["copy"]]
    stacked = np.array([[*half.values()] for half in halves]).reshape(4, len(names), 24)
    random = np.random.default_rng(5)
    best = [names.index(label) for label in ("fox", "kerple_log")]
    on_top = []
    for _ in range(4000):
        tasks, settings = random.integers(4, size=4), random.integers(24, size=24)
        means = stacked[tasks][:, :, settings].mean(axis=(0, 2))
        on_top.append(means[best].min() > np.delete(means, best).max())
    assert values["both/top"] == pytest.approx(np.mean(on_top), abs=0.03)
