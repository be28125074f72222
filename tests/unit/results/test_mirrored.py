"""The mirrored configurations: the rules of the plan on made-up scores, and the published numbers."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from results.bank.mirrored import study as mirrored
from tests import stranger

MIRRORED = Path(mirrored.__file__).parent
FACTORS = [*mirrored.bank.FACTORS]
# Half of all combinations of levels, in which every two factors are balanced.
LEVELS = [one for one in itertools.product([False, True], repeat=len(FACTORS)) if sum(one) % 2]


def matrix(settings: int, **means: float) -> pd.DataFrame:
    """Return scores [configurations, encodings] that scatter around means."""
    noise = np.random.default_rng(0).normal(0, 0.01, (settings, len(means)))
    return pd.DataFrame(noise + np.array([*means.values()]), columns=[*means])


def rows_of(
    label: str, task: str, values: dict[tuple[bool, ...], float], learned: bool = True
) -> pd.DataFrame:
    """Return a score per combination of the factors' levels."""
    rows = pd.DataFrame([*values], columns=FACTORS)
    score = list(values.values())
    columns = {"label": label, "task": task, "learned": learned, "score": score}
    return rows.assign(**columns, exact_match_at_2x=score, setting=range(len(rows)))


def test_a_best_encoding_is_confirmed_tied_or_refuted() -> None:
    made = mirrored.difference_rows(
        matrix(12, best=0.5, low=0.2, same=0.5, high=0.8),
        [("best", other) for other in ("low", "same", "high")],
    )
    assert made["verdict"].tolist() == ["confirmed", "tied", "refuted"]
    assert made["ahead"].iloc[0] == made["settings"].iloc[0] == 12
    assert made["p"].iloc[0] == pytest.approx(3 * 2 / 2**12)  # Holm over three


def test_an_effect_of_a_factor_is_tested_with_four_learned_configurations_at_each_level() -> None:
    longer = FACTORS.index("training length")
    by_length = {level: 0.1 + 0.5 * level[longer] + 0.001 * i for i, level in enumerate(LEVELS)}
    scores = pd.concat(
        [
            rows_of("kerple_log", "lag", by_length),
            rows_of("kerple_log", "copy", dict.fromkeys(LEVELS, 0.5)),
            rows_of("alibi", "copy", by_length, learned=False),
        ]
    )
    made = mirrored.effect_rows(scores).set_index(["task", "encoding"])
    assert made.loc[("lag", "kerple_log"), "verdict"] == "confirmed"
    assert made.loc[("lag", "kerple_log"), "better"] == "trained to 24"
    assert made.loc[("copy", "kerple_log"), ["verdict", "p"]].tolist() == ["tied", 1.0]
    assert made.loc[("copy", "alibi"), "verdict"] == "not decided"
    shorter = [level for level in LEVELS if not level[longer]]
    few = {level: value for level, value in by_length.items() if level not in shorter[3:]}
    few_rows = mirrored.effect_rows(rows_of("kerple_log", "lag", few))
    assert few_rows["verdict"].iloc[0] == "not decided"
    assert few_rows["learned"].iloc[0] == "8 and 3"


def test_the_one_sided_test_takes_the_stated_direction() -> None:
    heads = FACTORS.index("heads")
    for sign, verdict in ((1, "tied"), (-1, "confirmed")):  # two heads are said to be better
        values = {level: 0.5 + sign * (0.2 * level[heads] + 0.001 * i) for i, level in enumerate(LEVELS)}
        made = mirrored.effect_rows(rows_of("rope", "lag", values)).set_index(["task", "encoding"])
        assert made.loc[("lag", "rope"), "verdict"] == verdict


def test_main_effects_are_those_that_made_the_scores() -> None:
    effects = [0.3, -0.2, 0.1, 0.0, 0.05]
    values = {level: 0.4 + float(np.dot(effects, level)) for level in LEVELS}
    scores = rows_of("fox", "lag", values)
    found = mirrored.main_effects(scores.assign(half=0))
    assert found.empty  # the half is not known apart from the mean
    other = scores.assign(score=scores["score"] + 0.07, half=1)
    found = mirrored.main_effects(pd.concat([scores.assign(half=0), other])).set_index("factor")
    assert found["effect"].reindex(FACTORS).tolist() == pytest.approx(effects)
    assert found["error"].max() < 1e-9


def scores_of_a_stranger(folder: Path) -> dict[str, stranger.Values]:
    """Return scores by task, and their mean, in complete configurations; 0 where a task was not learned."""
    by_task = {
        task: stranger.measured(runs, "score", as_zero=True)
        for task, runs in stranger.bank_runs(folder).items()
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


def check_verdicts(verdicts: pd.DataFrame, scores: dict[str, stranger.Values]) -> None:
    """Compare every difference, p-value and verdict with those of other code."""
    for family, group in verdicts.groupby("family"):
        values = scores[str(family) if family in mirrored.TASKS else "mean"]
        rows = group.to_dict("records")
        tests = [stranger.sign_flip_p(values[row["encoding"]], values[row["other"]]) for row in rows]
        adjusted = stranger.holm([p for _, p, _ in tests])
        for row, (difference, _, settings), p in zip(rows, tests, adjusted, strict=True):
            assert row["settings"] == settings
            assert (row["difference"], row["p"]) == pytest.approx((difference, p)), row
            verdict = "tied" if p > 0.05 else "confirmed" if difference > 0 else "refuted"
            assert row["verdict"] == verdict, row


@pytest.mark.slow
def test_a_stranger_finds_the_published_means_and_verdicts() -> None:
    values = mirrored.blocks(MIRRORED)
    scores = scores_of_a_stranger(MIRRORED)
    assert values["settings"] == len(scores["mean"]["fox"])
    for task, by_label in scores.items():
        for label, by_setting in by_label.items():
            mean = np.mean([*by_setting.values()])
            assert values[f"mirrored/{task}/{label}"] == pytest.approx(mean)
    check_verdicts(pd.read_csv(MIRRORED / "verdicts.csv"), scores)


def test_the_page_says_what_the_tests_found() -> None:
    """The words of the page and of the bank's; its numbers are filled in."""
    verdicts = pd.read_csv(MIRRORED / "verdicts.csv")
    by_family = {family: rows.set_index("other")["verdict"] for family, rows in verdicts.groupby("family")}
    assert set(by_family["over the tasks"]) == {"confirmed"}
    assert by_family["FoX and KERPLE"].tolist() == ["tied"]
    tied = {task: set(own.index[own == "tied"]) for task, own in by_family.items() if task in mirrored.TASKS}
    assert "refuted" not in set(verdicts["verdict"])
    assert (tied["copy"], tied["flip_flop"], tied["induction"]) == ({"fire"}, set(), {"fox"})
    assert len(tied["lag"]) == 11
    _, scores = mirrored.load(MIRRORED)
    means = {
        task: matrix.mean().sort_values().index[::-1] for task, matrix in mirrored.matrices(scores).items()
    }
    assert [*means["mean"][:3]] == ["fox", "kerple_log", "t5"]
    assert means["lag"][0] == "fox"
    effects = mirrored.effect_rows(scores)
    assert (effects["mean"] > effects["other mean"]).all()
    assert effects.loc[effects["verdict"] == "confirmed", "encoding"].tolist() == ["rope"]
