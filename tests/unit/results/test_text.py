"""Test the study of text: the extensions of RoPE with tests of scipy."""

from __future__ import annotations

import re
from itertools import product

import numpy as np
import pytest
from scipy import stats

from results.text import study as text
from tests import recomputation


def test_what_extends_rope_is_what_scipy_finds() -> None:
    folder = text.HERE / "rope"
    labels = {row["name"]: (row["label"], row["seed"]) for row in recomputation.read_csv(folder / "runs.csv")}
    bits = {
        (*labels[name], length): value for (name, length), value in recomputation.sliding_bits(folder).items()
    }

    def rises(encoding: str, length: int) -> np.ndarray:
        """Return by seed how far bits per byte rise from the training length of 256."""
        label = next(label for label, *_ in bits if label.partition("(")[0] == encoding)
        return np.array([bits[label, f"{seed}", length] - bits[label, f"{seed}", 256] for seed in range(5)])

    lines = text.values(text.HERE)["extension"].splitlines()[2:]
    rows = {tuple(line.split(" | ")[:2]): line.split(" | ")[2:] for line in lines}
    encodings = ["rope_linear", "rope_ntk", "rope_dynamic_ntk", "rope_yarn"]
    lengths = sorted({length for *_, length in bits if length > 256})
    assert len(rows) == len(encodings) * len(lengths)
    pairs = [*product(encodings, lengths, ("rope", "alibi"))]
    differences = [rises(encoding, n) - rises(other, n) for encoding, n, other in pairs]
    adjusted = recomputation.holm([float(stats.ttest_1samp(by_seed, 0).pvalue) for by_seed in differences])
    for (encoding, n, other), by_seed, p in zip(pairs, differences, adjusted, strict=True):
        against_rope, against_alibi, extends = rows[f"| `{encoding}`", f"{n:,}"]
        cell = against_rope if other == "rope" else against_alibi
        estimate, low, high, published_p = map(float, re.findall(r"[-+]?[0-9.]+(?:e-\d+)?", cell))
        assert estimate == pytest.approx(by_seed.mean(), abs=0.0051)
        assert published_p == pytest.approx(p, rel=0.06)
        assert (low > 0 or high < 0) == (p <= 0.05) or 0 in (low, high)
        if other == "rope":
            assert extends.startswith("yes") == (p <= 0.05 and estimate < 0)
    assert min(adjusted) <= 0.05 < max(adjusted)
