"""Test the study of text: the extensions of RoPE with tests of scipy."""

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

    lines = text.values(text.HERE)["rescaled"].splitlines()[2:]
    rows = {label.strip(" |"): cells for label, *cells in (line.split(" | ") for line in lines)}
    encodings = ["rope_linear", "rope_ntk", "rope_dynamic_ntk", "rope_yarn"]
    lengths = [512, 1024, 2048]
    pairs = [*product(encodings, lengths, ("rope", "alibi"))]
    differences = [rises(encoding, n) - rises(other, n) for encoding, n, other in pairs]
    adjusted = recomputation.holm([float(stats.ttest_1samp(by_seed, 0).pvalue) for by_seed in differences])
    for (encoding, n, other), by_seed, p in zip(pairs, differences, adjusted, strict=True):
        cells = rows[f"`{encoding}`"]
        assert float(cells[1 + lengths.index(n)]) == pytest.approx(rises(encoding, n).mean(), abs=0.0051)
        below, above = (cell.strip(" |").split(", ") for cell in cells[-2:])
        direction, listed = (-1, below) if other == "rope" else (1, above)
        assert (f"{n:,}" in listed) == (p <= 0.05 and direction * by_seed.mean() > 0)
    assert min(adjusted) <= 0.05 < max(adjusted)


def test_no_encoding_is_significantly_below_truncated_rope() -> None:
    """The table of losses names each encoding, sorted, and its tests are those of scipy."""
    rows = {row["name"]: row for row in recomputation.read_csv(text.HERE / "runs.csv")}
    bits: dict[tuple[str, int], list[float]] = {}
    for (name, length), value in sorted(recomputation.sliding_bits(text.HERE).items()):
        if rows[name]["seed"] in ("0", "1", "2"):
            label = re.sub(r"\(max_positions=\d+\)", "", rows[name]["label"])
            bits.setdefault((label, length), []).append(value)
    labels = [label for label, length in bits if length == 2048 and label != "rope"]
    ps = [float(stats.ttest_rel(bits[label, 2048], bits["rope", 256]).pvalue) for label in labels]
    adjusted = dict(zip(labels, recomputation.holm(ps), strict=True))
    values = text.values(text.HERE)
    lines = [line.split(" | ") for line in values["table"].splitlines()[2:]]
    means = [float(line[2]) for line in lines]
    assert means == sorted(means)
    assert {line[0].strip("| `") for line in lines} == {*labels, "rope"}
    for line in lines:
        label = line[0].strip("| `")
        assert float(line[2]) == pytest.approx(np.mean(bits[label, 2048]), abs=0.0051)
        if label != "rope":
            assert float(line[-1].strip(" |")) == pytest.approx(adjusted[label], rel=0.06)
    lower = [label for label in labels if np.mean(bits[label, 2048]) < np.mean(bits["rope", 256])]
    assert values["below"] == sum(adjusted[label] <= 0.05 for label in lower) == 0
