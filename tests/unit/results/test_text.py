"""The study of text: what extends RoPE, by other code and scipy's tests; the page of another folder."""

from __future__ import annotations

import re
import shutil
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from results.text import study as text
from tests import stranger


def test_what_extends_rope_is_what_scipy_finds() -> None:
    folder = text.HERE / "rope"
    labels = {row["name"]: (row["label"], row["seed"]) for row in stranger.read_csv(folder / "runs.csv")}
    bits = {
        (*labels[row["name"]], int(row["length"])): float(row["bits_per_byte"])
        for row in stranger.read_csv(folder / "text.csv")
        if (row["windows"], row["slice"]) == ("sliding", "all")
    }

    def rises(encoding: str, length: int) -> np.ndarray:
        name = next(label for label, *_ in bits if label.partition("(")[0] == encoding)
        return np.array([bits[name, f"{seed}", length] - bits[name, f"{seed}", 256] for seed in range(5)])

    lines = text.blocks(text.HERE)["extension"].splitlines()[2:]
    rows = {tuple(line.split(" | ")[:2]): line.split(" | ")[2:] for line in lines}
    encodings = ["rope_linear", "rope_ntk", "rope_dynamic_ntk", "rope_yarn"]
    lengths = sorted({length for *_, length in bits if length > 256})
    pairs = [*product(encodings, lengths, ("rope", "alibi"))]
    assert len(rows) == len(encodings) * len(lengths)
    tests = [stats.ttest_rel(rises(encoding, n), rises(other, n)) for encoding, n, other in pairs]
    adjusted = stranger.holm([float(test.pvalue) for test in tests])
    verdicts = []
    for (encoding, n, other), p in zip(pairs, adjusted, strict=True):
        *cells, extends = rows[f"| `{encoding}`", f"{n:,}"]
        estimate, low, high, told = map(float, re.findall(r"[-+]?[0-9.]+(?:e-\d+)?", cells[other == "alibi"]))
        assert estimate == pytest.approx((rises(encoding, n) - rises(other, n)).mean(), abs=0.0051)
        assert told == pytest.approx(p, rel=0.06)
        assert (low > 0 or high < 0) == (p <= 0.05) or 0 in (low, high)
        if other == "rope":
            assert extends.startswith("yes") == (p <= 0.05 and estimate < 0)
        verdicts.append(p <= 0.05)
    assert 0 < sum(verdicts) < len(verdicts)


@pytest.mark.slow
def test_the_page_is_made_from_the_csvs_of_the_folder_it_is_given(tmp_path: Path) -> None:
    """When a study is published, its new CSVs are not yet in its place."""
    shutil.copytree(text.HERE, tmp_path / "text")
    lines = pd.read_csv(tmp_path / "text" / "text.csv")
    lines.assign(bits_per_byte=lines["bits_per_byte"] + 1).to_csv(tmp_path / "text" / "text.csv", index=False)
    there, here = (text.blocks(folder)["table"] for folder in (tmp_path / "text", text.HERE))
    assert "| `fox` | 3.12 |" in there
    assert "| `fox` | 2.12 |" in here
