"""The study of the tutorials' claims: its audits, a verdict for every claim, a page made of data alone."""

from __future__ import annotations

import csv
import filecmp
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pe_experiments.comparison import Runs
from pe_experiments.errors import UserError
from pe_experiments.evaluation import summarise
from results.tutorial_claims.audits import NOISE, audited
from results.tutorial_claims.study import write
from results.tutorial_claims.trained import EXTENSIONS, Difference, Trained, of_training, weigh
from results.tutorial_claims.untrained import (
    CASES,
    DEPENDS,
    FAILS,
    HOLDS,
    OURS,
    UNSUPPORTED,
    Verdict,
    judged,
)
from tests.conftest import ROOT

LENGTHS = (5, 10, 20, 40, 80)
SUMMARIES = ("exact_match_in_distribution", "exact_match_at_2x", "exact_match_extrapolation")
SCHEMES = ("none", "sinusoidal", "learned", "learned_sinusoidal")
CONCAT = ("sinusoidal(combine=concat)", "learned(combine=concat)")
# One claim per row of the table the project grew from, by words of it.
ROWS = (
    "sin(p/10000", "worked table", "oscillate fast", "low frequencies", "learns the frequencies", "every d",
    "module sample", "permutation-invariant", "dog bites man", "own vector", "bounded", "same distance",
    "linear function", "Relative positions", "binary counter", "do not concatenate", "more room",
    "Fixed sinusoids generalise", "Learned positions adapt", "heatmap",
)  # fmt: skip


@pytest.fixture(scope="module")
def audits() -> pd.DataFrame:
    return audited()


def value(audits: pd.DataFrame, quantity: str) -> float:
    found = audits[audits["quantity"] == quantity]
    assert len(found) == 1
    return float(found["value"].iloc[0])


@pytest.mark.slow
def test_the_published_audits_are_those_of_this_code(audits: pd.DataFrame) -> None:
    published = pd.read_csv(ROOT / "results" / "tutorial_claims" / "audits.csv")
    assert published["quantity"].tolist() == audits["quantity"].tolist()
    assert published["value"].tolist() == pytest.approx(audits["value"].tolist(), rel=1e-3, abs=NOISE)


@pytest.mark.parametrize(("width", "margin"), [(2, 6e-5), (4, 0.044), (8, 0.645), (16, 1.01), (64, 1.47)])
def test_the_margins_are_those_of_the_source(audits: pd.DataFrame, width: int, margin: float) -> None:
    assert value(audits, f"closest two positions, d={width}") == pytest.approx(margin, rel=0.02)


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
        ("largest norm", 32**0.5),
        ("distance rises up to, d=64", 5),
        ("residual of M_k, k=7", 0),
        ("printed sample crashes", 1),
        ("1010 read in binary", 10),
        ("columns left empty, d=7", 1),
        ("parameters, fixed", 0),
        ("parameters, learned", 20 * 64),
        ("raw_index, holds, bounded", 0),
        ("scaled_index, holds, same step", 0),
        ("binary_counter, holds, no jumps", 0),
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
            "content_length": length,
            "exact_match": level if length <= 10 else past + wobble,
            "token_accuracy": level if length <= 10 else level * 10 / length,
            "chance": 0.5,
            "answer_tokens": 10,
            "in_summary": True,
        }
        for length in LENGTHS
    ]


def synthetic(seeds: int = 5, everything: bool = True) -> Trained:
    """A study in which no encoding learns nothing and adding beats concatenation."""
    groups: list[tuple[str, str, int, str, float, float]] = []
    for task, model in (("copy", "decoder"), ("precedence", "encoder")):
        groups += [(task, model, 64, label, 0.5 if label == "none" else 0.95, 0.2) for label in SCHEMES]
        widths = (64, 128) if everything else (64,)
        groups += [(task, model, width, label, 0.95, 0.1) for label in CONCAT for width in widths]
        groups += [(task, model, width, "sinusoidal", 0.5 + width / 512, 0.1) for width in (8, 128)]
    groups.append(("copy", "decoder", 64, "rope", 0.95, 0.0))
    groups += [("lag", "decoder", 64, "sinusoidal", 1.0, 0.0)] * everything
    rows, curves, saved = [], [], {}
    for task, model, width, label, level, past in groups:
        for seed in range(seeds):
            points = curve(label, seed, f"{task}-{width}", level, past)
            curves += points
            row = {key: points[0][key] for key in ("name", "label", "seed", "protocol")}
            rows.append(row | {"task": task, "model": model, "max_length": 10} | summarise(points, 10))
            saved[row["name"]] = {"identity": {"trained": {"model": {"d_model": width}}}}
    read = [
        {"scheme": scheme, **point, "length": point["content_length"]}
        for index, scheme in enumerate(("rope", *EXTENSIONS))
        for seed in range(seeds)
        for point in curve("rope", seed, "copy-64", 0.95, 0.1 * index)
    ]
    columns = ["name", "seed", "scheme", "length", "exact_match", "token_accuracy"]
    return Trained(Runs(pd.DataFrame(rows), pd.DataFrame(curves), saved=saved), pd.DataFrame(read)[columns])


def verdicts(audits: pd.DataFrame, trained: Trained) -> list[Verdict]:
    return [*judged(audits), *of_training(trained)]


def test_every_row_of_the_claims_table_has_a_verdict(audits: pd.DataFrame) -> None:
    found = verdicts(audits, synthetic())
    assert len({verdict.claim for verdict in found}) == len(found)
    for words in ROWS:
        assert any(words in verdict.claim for verdict in found), words
    assert {verdict.verdict for verdict in found} == {HOLDS, FAILS, DEPENDS, UNSUPPORTED}
    assert all(verdict.measured and "nan" not in verdict.measured for verdict in found)
    assert len(found) == len(CASES) + 11


JUDGED = {
    "The module sample can be used as it is": DEPENDS,
    "Without positions `dog bites man` = `man bites dog`": DEPENDS,
    "Relative positions are easily learnt": DEPENDS,
    "Add, do not concatenate (a larger vector)": HOLDS,
    "Add, do not concatenate (a vector as large)": HOLDS,
    "Fixed sinusoids generalise to lengths not seen": FAILS,
    "Learned positions adapt, but not beyond their length": HOLDS,
    "Fixed sinusoids reach further than learned positions": UNSUPPORTED,
    "Rescaled frequencies carry RoPE to longer inputs without training": DEPENDS,
}


def test_verdicts_follow_their_rules(audits: pd.DataFrame) -> None:
    made = {verdict.claim: verdict.verdict for verdict in verdicts(audits, synthetic())}
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
    assert {v.claim: v.verdict for v in of_training(t)}[claim] == FAILS
    t = synthetic()
    for runs in t.groups.values():
        runs["exact_match_extrapolation"] = 0.0
    assert {v.claim: v.verdict for v in of_training(t)}[claim] == UNSUPPORTED


def test_differences_are_adjusted_within_a_claim() -> None:
    """Nine tests of five seeds each: 9 * 2/252 > 0.05, so that not even a perfect separation decides."""
    apart = Difference(pd.Series([1.0 - 0.01 * s for s in range(5)]), pd.Series([0.01 * s for s in range(5)]))
    assert weigh([apart] * 6) == HOLDS
    assert weigh([apart] * 7) == UNSUPPORTED
    other = Difference(apart.second, apart.first)
    assert weigh([apart, other]) == DEPENDS
    same = Difference(pd.Series([1.0] * 3), pd.Series([1.0] * 3))
    assert weigh([apart] * 6 + [same] * 9) == HOLDS  # nothing to test, so no test


def test_runs_that_are_not_there_yet_are_said_so() -> None:
    found = {verdict.claim: verdict for verdict in of_training(synthetic(everything=False))}
    for claim in ("Relative positions are easily learnt", "Add, do not concatenate (a larger vector)"):
        assert found[claim].verdict == "not tested"
        assert "sweep=tutorial_claims" in found[claim].measured


def test_too_few_seeds_decide_nothing() -> None:
    found = {verdict.claim: verdict for verdict in of_training(synthetic(seeds=2))}
    fixed = found["Fixed sinusoids generalise to lengths not seen"]
    assert fixed.verdict == found["Add, do not concatenate (a vector as large)"].verdict == UNSUPPORTED
    assert "(2 seeds)" in fixed.measured
    assert "[" not in fixed.measured


def test_a_missing_run_is_named() -> None:
    t = synthetic()
    del t.groups["copy", "learned", 64]
    with pytest.raises(UserError, match=r"no runs of copy, learned at d_model=64; .*sweep=tutorial_claims"):
        of_training(t)


def test_a_missing_audit_is_named(audits: pd.DataFrame) -> None:
    with pytest.raises(UserError, match=r"no row largest norm; publish"):
        judged(audits[audits["quantity"] != "largest norm"])


@pytest.mark.slow
def test_the_folder_is_made_of_the_data_alone(audits: pd.DataFrame, tmp_path: Path) -> None:
    names = []
    for out in (tmp_path / "first", tmp_path / "again"):
        out.mkdir()
        write(out, audits, synthetic())
        names.append(sorted(str(path.relative_to(out)) for path in out.rglob("*.*")))
    assert names[0] == names[1]
    assert filecmp.cmpfiles(tmp_path / "first", tmp_path / "again", names[0], shallow=False)[0] == names[0]
    page = (tmp_path / "first" / "README.md").read_text()
    assert len(page.splitlines()) <= 90
    assert str(tmp_path) not in page
    with (tmp_path / "first" / "claims.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        cells = [row[key] for key in ("claim", "document", "tested", "measured", "verdict")]
        assert f"| {' | '.join(cells)} |" in page
        assert not row["figure"] or (tmp_path / "first" / "figures" / f"{row['figure']}.png").exists()
    assert f"{[row['document'] for row in rows].count(OURS)} of the claims are ours" in page


def test_another_value_is_another_finding(audits: pd.DataFrame) -> None:
    before, norms = judged(audits), audits["quantity"] == "largest norm"
    assert judged(audits.assign(value=audits["value"].mask(norms, 0.123))) != before
    trained = of_training(synthetic())
    for scheme in ("sinusoidal", "rope_yarn"):
        t = synthetic()
        t.groups["copy", scheme, 64].loc[0, "exact_match_at_2x"] = 0.123
        assert of_training(t) != trained
