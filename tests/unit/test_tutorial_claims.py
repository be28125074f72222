"""The study of the tutorials' claims: its audits, a verdict for every claim, a page made of data alone."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pe_experiments.studies.audit_verdicts import DEPENDS, FAILS, HOLDS, UNSUPPORTED
from pe_experiments.studies.audits import NOISE, measure
from pe_experiments.studies.trained_verdicts import EXTENSIONS, Difference, weigh
from pe_experiments.studies.tutorial_claims import DOCUMENTS, verdicts, write

from pe_experiments.comparison.runs_table import Runs
from pe_experiments.errors import UserError

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

Frames = tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]


@pytest.fixture(scope="module")
def audits() -> pd.DataFrame:
    return measure()


def value(audits: pd.DataFrame, claim: str, setting: str, quantity: str) -> float:
    found = audits[
        (audits["claim"] == claim) & (audits["setting"] == setting) & (audits["quantity"] == quantity)
    ]
    assert len(found) == 1
    return float(found["value"].iloc[0])


@pytest.mark.parametrize(("width", "margin"), [(2, 6e-5), (4, 0.044), (8, 0.645), (16, 1.01), (64, 1.47)])
def test_the_margins_are_those_of_the_source(audits: pd.DataFrame, width: int, margin: float) -> None:
    found = value(audits, "unique", f"d={width}", "closest two of 5000 positions")
    assert found == pytest.approx(margin, rel=0.02)


@pytest.mark.parametrize(
    ("claim", "setting", "quantity", "expected"),
    [
        ("formula", "d=64", "largest error against a loop of scalars", 0),
        ("frequency", "d=64", "period of the first dimension", 6.283),
        ("frequency", "d=64", "period of the last dimension", 47_117),
        ("frequency", "d=64", "trainable parameters", 0),
        ("sample", "module sample", "spread over positions, batch first", 0),
        ("sample", "module sample", "crashes at 5001 tokens", 1),
        ("sample", "sinusoidal", "crashes at 5001 tokens", 0),
        ("sample", "module sample", "numbers in a checkpoint", 5000 * 64),
        ("order", "encoder, none", "output at the same token", 0),
        ("order", "decoder of depth 1, none", "last output, the prefix permuted", 0),
        ("bounded", "d=64", "largest norm", 32**0.5),
        ("same-distance", "d=64", "offset up to which the distance rises", 5),
        ("exact-offset", "d=64, k=7", "largest residual of M_k", 0),
        ("sample", "module sample", "spread over positions, sequence first", 1.98905),
        ("documents", "sample that defines position and reads s", "crashes", 1),
        ("documents", "binary counter", "1010 read in binary", 10),
        ("documents", "loop over k below d // 2, d=7", "columns left empty", 1),
        ("documents", "20 positions, d=64", "parameters, fixed", 0),
        ("documents", "20 positions, d=64", "parameters, learned", 20 * 64),
        ("baselines", "raw_index", "holds: bounded", 0),
        ("baselines", "scaled_index", "holds: same step", 0),
        ("baselines", "binary_counter", "holds: no jumps", 0),
    ],
)
def test_known_figures(
    audits: pd.DataFrame, claim: str, setting: str, quantity: str, expected: float
) -> None:
    assert value(audits, claim, setting, quantity) == pytest.approx(expected, rel=1e-3, abs=NOISE)


def test_two_causal_layers_see_order(audits: pd.DataFrame) -> None:
    decoder = "decoder of depth 2, none"
    assert value(audits, "order", decoder, "last output, the prefix permuted") > 0.01
    assert value(audits, "order", decoder, "dog bites man against man bites dog, pooled") > 0.01


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
            "in_summary": True,
        }
        for length in LENGTHS
    ]


def synthetic(seeds: int = 5, everything: bool = True) -> Frames:
    """Table, curves and extension of a study in which none learns nothing and adding beats concatenation."""
    groups: list[tuple[str, str, int, str, float, float]] = []
    for task, model in (("copy", "decoder"), ("precedence", "encoder")):
        groups += [(task, model, 64, label, 0.5 if label == "none" else 0.95, 0.2) for label in SCHEMES]
        widths = (64, 128) if everything else (64,)
        groups += [(task, model, width, label, 0.95, 0.1) for label in CONCAT for width in widths]
        groups += [(task, model, width, "sinusoidal", 0.5 + width / 512, 0.1) for width in (8, 128)]
    groups.append(("copy", "decoder", 64, "rope", 0.95, 0.0))
    groups += [("lag", "decoder", 64, "sinusoidal", 1.0, 0.0)] * everything
    table, curves = [], []
    for task, model, width, label, level, past in groups:
        protocol = f"{task}-{width}"
        runs = [curve(label, seed, protocol, level, past) for seed in range(seeds)]
        curves += [point for run in runs for point in run]
        row: dict[str, Any] = {"task": task, "model": model, "protocol": protocol, "scheme": label}
        row |= {
            "seeds": seeds,
            "max_length": 10,
            "settings": f"model.causal=True; model.d_model={width}; x=1",
        }
        table.append(row)
    read = [
        {"scheme": scheme, **point, "length": point["content_length"]}
        for place, scheme in enumerate(("rope", *EXTENSIONS))
        for seed in range(seeds)
        for point in curve("rope", seed, "copy-64", 0.95, 0.1 * place)
    ]
    columns = ["name", "seed", "scheme", "length", "exact_match", "token_accuracy"]
    return pd.DataFrame(table), pd.DataFrame(curves), pd.DataFrame(read)[columns]


def test_every_row_of_the_claims_table_has_a_verdict(audits: pd.DataFrame) -> None:
    found = verdicts(audits, *synthetic())
    assert len({verdict.claim for verdict in found}) == len(found)
    for words in ROWS:
        assert any(words in verdict.claim for verdict in found), words
    assert {verdict.verdict for verdict in found} == {HOLDS, FAILS, DEPENDS, UNSUPPORTED}
    assert all(verdict.finding and "nan" not in verdict.finding for verdict in found)
    assert set(DOCUMENTS) <= {verdict.claim for verdict in found}


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


@pytest.mark.parametrize("claim", JUDGED)
def test_verdicts_follow_their_rules(audits: pd.DataFrame, claim: str) -> None:
    made = {verdict.claim: verdict.verdict for verdict in verdicts(audits, *synthetic())}
    assert made[claim] == JUDGED[claim]


def test_what_speaks_against_a_claim_and_what_does_not_decide_are_two_things(audits: pd.DataFrame) -> None:
    table, curves, extension = synthetic()
    swapped = {
        "learned": CONCAT[1], CONCAT[1]: "learned", "sinusoidal": CONCAT[0], CONCAT[0]: "sinusoidal"
    }  # fmt: skip
    common = curves["protocol"].str.endswith("-64")
    other = curves.assign(label=curves["label"].where(~common, curves["label"].replace(swapped)))
    made = {verdict.claim: verdict.verdict for verdict in verdicts(audits, table, other, extension)}
    assert made["Add, do not concatenate (a vector as large)"] == FAILS
    same = curves.assign(exact_match=curves["exact_match"].where(curves["content_length"] <= 10, 0.0))
    made = {verdict.claim: verdict.verdict for verdict in verdicts(audits, table, same, extension)}
    assert made["Add, do not concatenate (a vector as large)"] == UNSUPPORTED


def test_differences_are_adjusted_within_a_claim() -> None:
    """Nine tests of five seeds each: 9 * 2/252 > 0.05, so that not even a perfect separation decides."""
    apart = Difference({s: 1.0 - 0.01 * s for s in range(5)}, {s: 0.01 * s for s in range(5)})
    assert weigh([apart] * 6) == HOLDS
    assert weigh([apart] * 7) == UNSUPPORTED
    other = Difference(apart.second, apart.first)
    assert weigh([apart, other]) == DEPENDS
    same = Difference({0: 1.0, 1: 1.0, 2: 1.0}, {0: 1.0, 1: 1.0, 2: 1.0})
    assert weigh([apart] * 6 + [same] * 9) == HOLDS  # nothing to test, so no test


def test_runs_that_are_not_there_yet_are_said_so(audits: pd.DataFrame) -> None:
    found = {verdict.claim: verdict for verdict in verdicts(audits, *synthetic(everything=False))}
    for claim in ("Relative positions are easily learnt", "Add, do not concatenate (a larger vector)"):
        assert found[claim].verdict == "not tested"
        assert "sweep=tutorial_claims" in found[claim].finding


def test_too_few_seeds_decide_nothing(audits: pd.DataFrame) -> None:
    found = {verdict.claim: verdict for verdict in verdicts(audits, *synthetic(seeds=2))}
    fixed = found["Fixed sinusoids generalise to lengths not seen"]
    assert fixed.verdict == found["Add, do not concatenate (a vector as large)"].verdict == UNSUPPORTED
    assert "(2 seeds)" in fixed.finding
    assert "[" not in fixed.finding


def test_a_missing_run_is_named(audits: pd.DataFrame) -> None:
    table, curves, extension = synthetic()
    with pytest.raises(UserError, match=r"0 protocols of copy, decoder, rope .*sweep=tutorial_claims"):
        verdicts(audits, table[table["scheme"] != "rope"], curves, extension)


def test_the_folder_is_made_of_the_data_alone(audits: pd.DataFrame, tmp_path: Path) -> None:
    table, curves, extension = synthetic()
    runs = Runs(pd.DataFrame(), curves)
    first, again = (write(tmp_path / name, audits, runs, table, extension) for name in ("first", "again"))
    assert [path.name for path in first] == [path.name for path in again]
    assert all(a.read_bytes() == b.read_bytes() for a, b in zip(first, again, strict=True))
    page = (tmp_path / "first" / "README.md").read_text()
    assert len(page.splitlines()) <= 90
    assert str(tmp_path) not in page
    with (tmp_path / "first" / "claims.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        cells = [row[key] for key in ("claim", "document", "tested", "finding", "verdict")]
        assert f"| {' | '.join(cells)} |" in page
        assert not row["figure"] or (tmp_path / "first" / "figures" / f"{row['figure']}.png").exists()
    assert f"{[row['document'] for row in rows].count('ours')} claims are ours" in page


@pytest.mark.parametrize("frame", ["audits", "curves", "extension"])
def test_another_number_is_another_finding(audits: pd.DataFrame, frame: str) -> None:
    table, curves, extension = synthetic()
    frames = {"audits": audits, "table": table, "curves": curves, "extension": extension}
    before = verdicts(**frames)
    changed = frames[frame].copy()
    column = "value" if frame == "audits" else "exact_match"
    if frame == "audits":
        rows = changed.index[changed["quantity"] == "largest norm"]
    else:
        rows = changed.index[changed["seed"] == 0]
    changed.loc[rows, column] = 0.123
    assert verdicts(**{**frames, frame: changed}) != before
