"""The study of the tutorials' claims: its audits, a verdict for every claim, a page made of data alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from pe_experiments.comparison import Runs
from pe_experiments.evaluation.summary import summarise
from pe_experiments.terminal.errors import UserError
from results.tutorial_claims.audits import NOISE, audit_all
from results.tutorial_claims.study import HERE, OURS, claim_table, counts, judge, quotation
from results.tutorial_claims.trained import (
    AHEAD,
    BANK,
    Difference,
    Differences,
    Trained,
    judge_differences,
    judge_trained,
    over_seeds,
    solved,
    within_settings,
)
from results.tutorial_claims.untrained import DEPENDS, FAILS, HOLDS, UNSUPPORTED, UNTESTED, judge_untrained
from tests.conftest import ROOT

LENGTHS = (5, 10, 20, 40, 80)
ENCODINGS = ("none", "sinusoidal", "learned", "learned_sinusoidal")
CONCAT = ("sinusoidal(combine=concat)", "learned(combine=concat)")
# One claim per row of the table the project grew from, by words of it.
ROWS = (
    "sin(p/10000", "worked table", "oscillate fast", "low frequencies", "learns the frequencies", "every d",
    "module sample", "permutation-invariant", "dog bites man", "own vector", "lie in [-1, 1]",
    "same distance", "linear function", "Relative positions", "binary counter", "do not concatenate",
    "more room", "Fixed sinusoids generalise", "Learned positions adapt", "heatmap",
    "four positions ahead", "four ahead", "12 and 14", "weigh meaning",
)  # fmt: skip


@pytest.fixture(scope="module")
def audits() -> pd.DataFrame:
    return audit_all()


def value(audits: pd.DataFrame, quantity: str) -> float:
    found = audits[audits["quantity"] == quantity]
    assert len(found) == 1
    return float(found["value"].iloc[0])


@pytest.mark.slow
def test_the_published_audits_are_those_of_this_code(audits: pd.DataFrame) -> None:
    published = pd.read_csv(ROOT / "results" / "tutorial_claims" / "audits.csv")
    assert published["quantity"].tolist() == audits["quantity"].tolist()
    assert published["value"].tolist() == pytest.approx(audits["value"].tolist(), rel=1e-3, abs=NOISE)


@pytest.mark.slow
@pytest.mark.parametrize(("width", "margin"), [(2, 6e-5), (4, 0.044), (8, 0.645), (16, 1.01), (64, 1.47)])
def test_the_margins_are_those_of_the_source(audits: pd.DataFrame, width: int, margin: float) -> None:
    assert value(audits, f"closest two positions, d={width}, float32") == pytest.approx(margin, rel=0.02)


@pytest.mark.parametrize(
    ("quantity", "expected"),
    [
        ("formula, error, d=64", 0),
        ("period of the first pair", 6.283),
        ("period of the last pair", 47_117),
        ("spread over positions, sample, batch first", 0),
        ("spread over positions, sample, sequence first", 1.98905),
        ("sample crashes past its table", 1),
        ("encoding here crashes there", 0),
        ("values in a checkpoint, sample", 5000 * 64),
        ("order, encoder, none, output at the same token", 0),
        ("order, decoder of depth 1, none, last output, the prefix permuted", 0),
        ("formula, error of the worked table", 4.70985e-4),
        ("values of the sample more than 1e-3 off", 0),
        ("values above 1 in size, float32", 0),
        ("distance, 12 to 14, float64", 2.71887),
        ("error of 12 to 14 with the linear map of 5 to 7, float32", 0),
        ("positions whose largest logit is 4 ahead, float32", 996),
        ("distance rises up to, d=64", 5),
        ("residual of M_k, k=7, float64", 0),
        ("printed function crashes as extracted", 1),
        ("printed function, joined, error at d=512", 0),
        ("printed function, joined, crashes at d=7", 1),
        ("1010 read in binary", 10),
        ("columns without a k, d=8", 0),
        ("columns without a k, d=7", 1),
        ("columns that change with the position, concat, embedded", 32),
        ("columns that change with the position, concat, after a layer", 64),
        ("parameters, fixed", 0),
        ("parameters, learned", 20 * 64),
        ("raw_index, largest value", 999),
        ("scaled_index, first step of 100", 1 / 99),
        ("binary_counter, largest step over the smallest", 10**0.5),
    ],
)
def test_known_values(audits: pd.DataFrame, quantity: str, expected: float) -> None:
    assert value(audits, quantity) == pytest.approx(expected, rel=1e-3, abs=NOISE)


def test_two_causal_layers_see_order(audits: pd.DataFrame) -> None:
    for quantity in ("last output, the prefix permuted", "dog bites man against man bites dog, pooled"):
        assert value(audits, f"order, decoder of depth 2, none, {quantity}") > 0.01


def curve(label: str, seed: int, protocol: str, level: float, past: float = 0.0) -> list[dict[str, Any]]:
    """Exact match at ``level`` within training and near ``past`` beyond, with a little of the seed in it."""
    wobble = 0.001 * ((5 * seed + len(label)) % 7)
    return [
        {
            "name": f"{protocol}-{label}-s{seed}",
            "label": label,
            "seed": seed,
            "protocol": protocol,
            "task": protocol.partition("-")[0],
            "content_length": length,
            "exact_match": level if length <= 10 else past + wobble,
            "token_accuracy": level if length <= 10 else level * 10 / length,
            "chance": 0.5,
            "answer_tokens": 10,
            "in_summary": True,
        }
        for length in LENGTHS
    ]


def synthetic(seeds: int = 5) -> Trained:
    """A study in which no encoding learns nothing and adding beats concatenation."""
    groups: list[tuple[str, str, int, str, float, float]] = []
    for task, model in (("copy", "decoder"), ("precedence", "encoder")):
        groups += [(task, model, 64, label, 0.5 if label == "none" else 0.95, 0.2) for label in ENCODINGS]
        groups += [(task, model, width, label, 0.95, 0.1) for label in CONCAT for width in (64, 128)]
        groups += [(task, model, width, "sinusoidal", 0.5 + width / 512, 0.1) for width in (8, 128)]
    groups += [
        (task, "bank", 64, label, 1.0, past)
        for task, past in (("kth", 0.95), ("lag", 0.0))
        for label in ENCODINGS
    ]
    groups += [("lag", model, 64, "sinusoidal", 1.0, 0.0) for model in ("decoder", "encoder")]
    rows, curves, saved = [], [], {}
    for task, model, width, label, level, past in groups:
        k = -4 if (task, model) == ("lag", "encoder") else 3
        for seed in range(seeds):
            points = curve(label, seed, f"{task}-{model}-{width}", level, past)
            curves += points
            row = {key: points[0][key] for key in ("name", "label", "seed", "protocol")}
            rows.append(row | {"task": task, "model": model, "max_length": 10} | summarise(points, 10))
            saved[row["name"]] = {"identity": {"trained": {"model": {"d_model": width}, "task": {"k": k}}}}
    table = pd.DataFrame(rows)
    ours, bank = table[table["model"] != "bank"], table[table["model"] == "bank"]
    bank = bank.assign(learned=bank["solved_in_distribution"])
    return Trained(Runs(ours, pd.DataFrame(curves), saved=saved), bank)


def test_every_row_of_the_claims_table_has_a_verdict(audits: pd.DataFrame) -> None:
    found = judge(audits, synthetic())
    assert found["claim"].is_unique
    for words in ROWS:
        assert found["claim"].str.contains(words, regex=False).any(), words
    assert set(found["verdict"]) == {HOLDS, FAILS, DEPENDS, UNSUPPORTED, UNTESTED}
    untested = found[found["verdict"] == UNTESTED]
    same = "Learned positions adapt better to the task"  # at the ceiling: every run has the same value
    assert [words.split()[0] for words in untested["claim"]] == ["Addition", "A", "Learned"]
    assert set(judge_trained(synthetic())) == set(found.loc[found["holds_if"] == "", "claim"]) - {
        *untested["claim"][untested["claim"] != same]
    }
    assert (found["source"].eq(OURS) == found["quotation"].eq("")).all()
    assert all(measured and "nan" not in measured for measured in found["measured"])


JUDGED = {
    "The module sample can be used as it is": DEPENDS,
    "Without positions `dog bites man` = `man bites dog`": DEPENDS,
    "Relative positions are easily learnt": DEPENDS,
    "Add, do not concatenate (a larger vector)": HOLDS,
    "Add, do not concatenate (a vector as large)": HOLDS,
    "The worked table, 3 positions by d=4": HOLDS,
    "The sample function makes the encodings": DEPENDS,
    "Every position has its own vector": HOLDS,
    "Attention can focus four positions ahead": HOLDS,
    "Training easily finds attention to the word four ahead": DEPENDS,
    "A larger d_model gives the encoding more room": UNTESTED,
    "Fixed sinusoids generalise to lengths not seen": DEPENDS,
    "Learned positions do not generalise to lengths not seen": DEPENDS,
    "Fixed sinusoids reach further than learned positions": UNSUPPORTED,
    "A learned table should start from sinusoids": UNSUPPORTED,
}


def test_verdicts_follow_their_rules(audits: pd.DataFrame) -> None:
    made = judge(audits, synthetic()).set_index("claim")["verdict"]
    assert {claim: made[claim] for claim in JUDGED} == JUDGED


def test_what_speaks_against_a_claim_and_what_does_not_decide_are_two_things() -> None:
    claim = "Add, do not concatenate (a vector as large)"
    swapped = {
        "learned": CONCAT[1], CONCAT[1]: "learned", "sinusoidal": CONCAT[0], CONCAT[0]: "sinusoidal"
    }  # fmt: skip
    t = synthetic()
    common = {
        (task, swapped[n], d): t.groups[task, n, d] for task, n, d in t.groups if n in swapped and d == 64
    }
    t.groups |= common
    assert judge_trained(t)[claim][1] == FAILS
    t = synthetic()
    for runs in t.groups.values():
        runs["exact_match_extrapolation"] = 0.0
    assert judge_trained(t)[claim][1] == UNTESTED


def on_tasks(difference: Difference, count: int) -> Differences:
    return {f"{number}": difference for number in range(count)}


def test_differences_are_adjusted_within_a_claim() -> None:
    """Nine tests of five seeds each: 9 * 2/252 > 0.05, so that not even a perfect separation decides."""
    low = pd.Series([0.01 * s for s in range(5)])
    high = 1 - low
    apart = over_seeds(high, low)
    assert judge_differences(on_tasks(apart, 6))[1] == HOLDS
    assert judge_differences(on_tasks(apart, 7))[1] == UNSUPPORTED
    other = over_seeds(low, high)
    assert judge_differences({"a": apart, "b": other})[1] == DEPENDS
    assert judge_differences({"a": apart})[1] == HOLDS
    assert judge_differences({"a": apart, "b": None})[1] == UNSUPPORTED  # one of several
    assert judge_differences({"a, at 2x": apart, "a, past training": apart})[1] == HOLDS
    assert (
        judge_differences({"a, at 2x": apart, "a, past training": apart, "b, at 2x": None})[1] == UNSUPPORTED
    )
    same = over_seeds(pd.Series([1.0] * 3), pd.Series([1.0] * 3))
    untested = {f"other {n}": same for n in range(9)}
    assert judge_differences(on_tasks(apart, 6) | untested)[1] == HOLDS


def test_settings_are_paired_and_count_where_both_learned() -> None:
    """Differences of 0.1 within settings that differ by far more; the last is not learned by the second."""
    first = pd.Series(np.linspace(0.1, 0.9, 8))
    second = (first - 0.1).drop(7)
    assert within_settings(first, second).mean == pytest.approx(0.1)
    assert within_settings(first, second).p == pytest.approx(2 / 2**7)
    assert over_seeds(first, second).p > 0.2
    assert np.isnan(within_settings(first, first).p)
    t = synthetic()
    runs = t.groups["kth", "learned", BANK]
    t.groups["kth", "learned", BANK] = runs.assign(learned=[False, True, True, True, True])
    assert len(t.values("kth", "learned", BANK, "exact_match_at_2x")) == 4
    assert len(t.values("kth", "learned", BANK, "exact_match_in_distribution")) == 5


def test_an_encoding_works_where_every_seed_does() -> None:
    assert solved(pd.Series([0.9, 1.0, 0.95])) is True
    assert solved(pd.Series([0.0] * 8), tests=9) is False
    assert solved(pd.Series([0.89, 1.0, 0.95])) is None
    t = synthetic()
    t.everywhere = [("lag", BANK), ("precedence", 64)]
    claims = [
        f"{words} to lengths not seen"
        for words in ("Fixed sinusoids generalise", "Learned positions do not generalise")
    ]
    assert [judge_trained(t)[claim][1] for claim in claims] == [FAILS, HOLDS]


@pytest.mark.parametrize(
    ("learned", "twice", "verdict"), [(3, 0.0, DEPENDS), (2, 0.0, FAILS), (3, 0.95, HOLDS)]
)
def test_an_offset_is_judged_on_both_sides_of_a_token(learned: int, twice: float, verdict: str) -> None:
    t = synthetic()
    t.groups[AHEAD, "sinusoidal", 64]["learned"] = [seed < learned for seed in range(5)]
    t.groups[AHEAD, "sinusoidal", 64]["exact_match_at_2x"] = twice
    found = judge_trained(t)
    assert found["Training easily finds attention to the word four ahead"][1] == verdict
    assert found["Relative positions are easily learnt"][1] == DEPENDS


def test_too_few_seeds_decide_nothing() -> None:
    found = judge_trained(synthetic(seeds=2))
    measured, verdict = found["Fixed sinusoids generalise to lengths not seen"]
    assert verdict == UNSUPPORTED
    assert found["Add, do not concatenate (a vector as large)"][1] == UNTESTED
    assert "(2 seeds)" in measured
    assert "[" not in measured


def test_a_missing_run_is_named() -> None:
    t = synthetic()
    del t.groups["copy", "learned", 64]
    with pytest.raises(UserError, match=r"no runs of copy, learned at d_model=64; .*sweep=tutorial_claims"):
        judge_trained(t)


def test_a_missing_audit_is_named(audits: pd.DataFrame) -> None:
    with pytest.raises(UserError, match=r"no row columns; publish"):
        judge(audits[audits["quantity"] != "columns"], synthetic())


def test_the_page_shows_every_claim_and_its_figure(audits: pd.DataFrame) -> None:
    made = judge(audits, synthetic())
    page = claim_table(made)
    for row in made.to_dict("records"):
        cells = [row["claim"], quotation(row), *(row[key] for key in ("tested", "measured", "verdict"))]
        assert f"| {' | '.join(cells)} |" in page
        assert not row["figure"] or (HERE / "figures" / f"{row['figure']}.png").exists()
    stated = made[made["source"] != OURS]
    vectors = stated[stated["holds_if"] != ""]["verdict"]
    counted = counts(made)
    assert (counted["vectors_hold"], counted["vectors"]) == ((vectors == HOLDS).sum(), len(vectors))
    assert counted["trained"] == len(stated) - len(vectors)


def test_another_value_is_another_finding(audits: pd.DataFrame) -> None:
    claims = pd.DataFrame([{"claim": "c", "holds_if": "columns > 0.9", "measured": "{columns}"}])
    assert judge_untrained(claims, audits)["c"] == ("512", HOLDS)
    smaller = audits["value"].mask(audits["quantity"] == "columns", 0.123)
    assert judge_untrained(claims, audits.assign(value=smaller))["c"] == ("0.123", FAILS)
    trained = judge_trained(synthetic())
    t, key = synthetic(), ("kth", "sinusoidal", BANK)
    t.groups[key] = t.groups[key].assign(exact_match_at_2x=0.123)
    assert judge_trained(t) != trained
