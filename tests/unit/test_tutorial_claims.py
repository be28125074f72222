"""The study of the tutorials' claims: its audits, a verdict for every claim, a page made of data alone."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pe_experiments.comparison.runs_table import Runs
from pe_experiments.comparison.statistics import mean_interval
from pe_experiments.errors import UserError
from pe_experiments.evaluation import summarise
from pe_experiments.studies.audits import NOISE, measure
from pe_experiments.studies.tutorial_claims import EXTENSIONS, verdicts, write

LENGTHS = (5, 10, 20, 40, 80)
SUMMARIES = ("exact_match_in_distribution", "exact_match_at_2x", "token_accuracy_extrapolation")
SCHEMES = ("none", "sinusoidal", "learned", "learned_sinusoidal")
CONCAT = ("sinusoidal(combine=concat)", "learned(combine=concat)")
# One claim per row of the table the project grew from, by words of it.
ROWS = (
    "sin(p/10000", "worked table", "oscillate fast", "low frequencies", "learns the frequencies", "every d",
    "module sample", "permutation-invariant", "dog bites man", "own vector", "bounded", "same distance",
    "linear function", "relative positions", "binary counter", "do not concatenate", "more room",
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
        ("fitted-offset", "d=64", "largest error of one coordinate beyond", 1.55),
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
    assert value(audits, "order", "decoder of depth 2, none", "last output, the prefix permuted") > 0.01


def curve(label: str, seed: int, protocol: str, level: float) -> list[dict[str, Any]]:
    """Exact match near ``level`` inside, next to nothing beyond; a little of the seed in it."""
    wobble = 0.001 * ((5 * seed + len(label)) % 7)
    return [
        {
            "name": f"{protocol}-{label}-s{seed}",
            "label": label,
            "seed": seed,
            "protocol": protocol,
            "content_length": length,
            "exact_match": level - wobble if length <= 10 else wobble,
            "token_accuracy": level - wobble if length <= 10 else level * 10 / length,
            "chance": 0.5,
            "in_summary": True,
        }
        for length in LENGTHS
    ]


def synthetic(seeds: int = 5) -> Frames:
    """Table, curves and extension of a study in which none learns nothing and concatenation is worse."""
    groups: list[tuple[str, str, int, str, float]] = []
    for task, model in (("copy", "decoder"), ("precedence", "encoder")):
        groups += [(task, model, 64, label, 0.5 if label == "none" else 0.95) for label in SCHEMES]
        groups += [(task, model, 64, label, 0.9) for label in CONCAT]
        groups += [(task, model, width, "sinusoidal", 0.5 + width / 512) for width in (8, 128)]
    groups.append(("copy", "decoder", 64, "rope", 0.95))
    table, curves = [], []
    for task, model, width, label, level in groups:
        protocol = f"{task}-{width}"
        runs = [curve(label, seed, protocol, level) for seed in range(seeds)]
        curves += [point for run in runs for point in run]
        row: dict[str, Any] = {"task": task, "model": model, "protocol": protocol, "scheme": label}
        row |= {
            "seeds": seeds,
            "max_length": 10,
            "settings": f"model.causal=True; model.d_model={width}; x=1",
        }
        for metric in SUMMARIES:
            interval = mean_interval([summarise(run, 10)[metric] for run in runs])
            row |= {metric: interval.estimate, f"{metric}_low": interval.low, f"{metric}_high": interval.high}
        table.append(row)
    read = [
        {"scheme": scheme, **point, "length": point["content_length"]}
        for place, scheme in enumerate(("rope", *EXTENSIONS))
        for seed in range(seeds)
        for point in curve("rope", seed, "copy-64", 0.9 + 0.02 * place)
    ]
    columns = ["name", "seed", "scheme", "length", "exact_match", "token_accuracy"]
    return pd.DataFrame(table), pd.DataFrame(curves), pd.DataFrame(read)[columns]


def test_every_row_of_the_claims_table_has_a_verdict(audits: pd.DataFrame) -> None:
    found = verdicts(audits, *synthetic())
    assert len({verdict.claim for verdict in found}) == len(found)
    for words in ROWS:
        assert any(words in verdict.claim for verdict in found), words
    assert {verdict.verdict for verdict in found} == {"holds", "does not hold", "depends"}
    assert all(verdict.finding and "nan" not in verdict.finding for verdict in found)


def test_verdicts_follow_the_data(audits: pd.DataFrame) -> None:
    table, curves, extension = synthetic()
    made = {verdict.claim: verdict for verdict in verdicts(audits, table, curves, extension)}
    assert made["Add, do not concatenate"].verdict == "holds"
    swapped = {
        "learned": CONCAT[1], CONCAT[1]: "learned", "sinusoidal": CONCAT[0], CONCAT[0]: "sinusoidal"
    }  # fmt: skip
    common = curves["protocol"].str.endswith("-64")
    other = curves.assign(label=curves["label"].where(~common, curves["label"].replace(swapped)))
    made = {verdict.claim: verdict for verdict in verdicts(audits, table, other, extension)}
    assert made["Add, do not concatenate"].verdict == "does not hold"


def test_too_few_seeds_are_an_observation_and_decide_nothing(audits: pd.DataFrame) -> None:
    found = {verdict.claim: verdict for verdict in verdicts(audits, *synthetic(seeds=2))}
    fixed = found["Fixed sinusoids generalise to lengths not seen"]
    assert fixed.verdict == found["Add, do not concatenate"].verdict == "depends"
    assert "observation" in fixed.finding


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
        for row in csv.DictReader(file):
            assert f"| {row['claim']} | {row['tested']} | {row['finding']} | {row['verdict']} |" in page
            assert not row["figure"] or (tmp_path / "first" / "figures" / f"{row['figure']}.png").exists()


@pytest.mark.parametrize("frame", ["audits", "table", "curves", "extension"])
def test_another_number_is_another_finding(audits: pd.DataFrame, frame: str) -> None:
    table, curves, extension = synthetic()
    frames = {"audits": audits, "table": table, "curves": curves, "extension": extension}
    before = verdicts(**frames)
    changed = frames[frame].copy()
    column = {"audits": "value", "table": SUMMARIES[0]}.get(frame, "exact_match")
    if frame == "audits":
        rows = changed.index[changed["quantity"] == "largest error of one coordinate beyond"][-1:]
    elif frame == "table":
        rows = changed.index[(changed["scheme"] == "sinusoidal") & (changed["protocol"] == "copy-64")]
    else:
        rows = changed.index[changed["seed"] == 0]
    changed.loc[rows, column] = 0.123
    assert verdicts(**{**frames, frame: changed}) != before
