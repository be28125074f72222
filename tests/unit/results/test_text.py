"""The study of text: what extends RoPE, by tests within seeds."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from results.text import study as text


def rising(by: dict[int, float], noise: int) -> pd.DataFrame:
    """Bits per byte of five seeds that rise by so much to each context."""
    seeds = np.arange(5)
    wobble = 0.01 * np.random.default_rng(noise).normal(size=5)
    base = 2 + 0.1 * seeds
    return pd.DataFrame({256: base, **{n: base + rise + wobble for n, rise in by.items()}}, index=seeds)


def test_a_rescaling_extends_rope_if_it_rises_less() -> None:
    groups = {"rope": rising({512: 2.0, 1024: 3.0}, 0), "alibi": rising({512: 0.0, 1024: 0.0}, 1)}
    rises = {
        "rope_linear": (0.0, 3.0),
        "rope_ntk": (1.0, 1.0),
        "rope_dynamic_ntk": (2.5, 3.0),
        "rope_yarn": (0.0, 0.0),
    }
    for index, (name, pair) in enumerate(rises.items()):
        groups[name] = rising(dict(zip((512, 1024), pair, strict=True)), 2 + index)
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in text.extension_table(groups).splitlines()[2:]
    ]
    level = "yes; not separated from ALiBi"
    assert {(row[0], row[1]): row[-1] for row in rows} == {
        ("`rope_linear`", "512"): level, ("`rope_linear`", "1,024"): "no",
        ("`rope_ntk`", "512"): "yes", ("`rope_ntk`", "1,024"): "yes",
        ("`rope_dynamic_ntk`", "512"): "no", ("`rope_dynamic_ntk`", "1,024"): "no",
        ("`rope_yarn`", "512"): level, ("`rope_yarn`", "1,024"): level,
    }  # fmt: skip
    rise = {name: own[512] - own[256] for name, own in groups.items()}
    raw = stats.ttest_rel(rise["rope_ntk"], rise["rope"]).pvalue
    told = next(row for row in rows if row[:2] == ["`rope_ntk`", "512"])
    assert raw <= float(told[2].partition("(p ")[2].rstrip(")")) <= 16.001 * raw  # Holm's factor


def test_a_rise_is_clear_only_by_an_interval_adjusted_for_the_number_of_encodings() -> None:
    rise = pd.Series([0.17, 0.19, 0.21])
    half = stats.t.ppf(0.975, 2) * stats.sem(rise)  # 0.05
    assert [text.verdict(rise + by, 1) for by in (0, -0.15, half)] == ["yes", "unclear", "yes"]
    assert text.verdict(rise, 12) == "unclear"
    assert text.verdict(rise / 1000, 12) == "no"


@pytest.mark.parametrize("gap", [0.01, 0.02, 0.03, 0.04, 0.06])
def test_an_interval_leaves_out_zero_where_its_test_is_significant(gap: float) -> None:
    """Gaps of one to six times the noise, among which an interval of 95 % and Holm's tests disagree."""
    groups = {"rope": rising({512: 1.0, 1024: 1.0}, 0), "alibi": rising({512: 0.0, 1024: gap}, 1)}
    for index, name in enumerate(text.RESCALED):
        groups[name] = rising({512: 1 - gap, 1024: gap / 2}, 2 + index)
    cells = [cell for line in text.extension_table(groups).splitlines()[2:] for cell in line.split("|")[3:5]]
    for cell in cells:
        _, low, high, p = map(float, re.findall(r"[-+]?[0-9.]+(?:e-\d+)?", cell))
        assert (low > 0 or high < 0) == (p <= 0.05) or 0 in (low, high), cell


@pytest.mark.slow
def test_the_page_is_made_from_the_csvs_of_the_folder_it_is_given(tmp_path: Path) -> None:
    """When a study is published, its new CSVs are not yet in its place."""
    shutil.copytree(text.HERE, tmp_path / "text")
    lines = pd.read_csv(tmp_path / "text" / "text.csv")
    lines.assign(bits_per_byte=lines["bits_per_byte"] + 1).to_csv(tmp_path / "text" / "text.csv", index=False)
    there, here = (text.blocks(folder)["table"] for folder in (tmp_path / "text", text.HERE))
    assert "| `fox` | 3.12 |" in there
    assert "| `fox` | 2.12 |" in here
