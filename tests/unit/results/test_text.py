"""Test the study of text: the extensions of RoPE with tests of scipy, and its page."""

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
        (*labels[row["name"]], int(row["length"])): float(row["bits_per_byte"])
        for row in recomputation.read_csv(folder / "text.csv")
        if (row["windows"], row["slice"]) == ("sliding", "all")
    }

    def rises(encoding: str, length: int) -> np.ndarray:
        """Return by seed how far bits per byte rise from the training length of 256."""
        label = next(label for label, *_ in bits if label.partition("(")[0] == encoding)
        return np.array([bits[label, f"{seed}", length] - bits[label, f"{seed}", 256] for seed in range(5)])

    lines = text.blocks(text.HERE)["extension"].splitlines()[2:]
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


def test_differences_from_truncated_rope_are_those_of_scipy() -> None:
    """RoPE's windows of 256 bytes end with the bytes that are scored at every context length."""
    labels = {
        row["name"]: (row["label"].partition("(")[0], row["seed"])
        for row in recomputation.read_csv(text.HERE / "runs.csv")
    }
    lines = recomputation.read_csv(text.HERE / "text.csv")
    bits = {
        (*labels[row["name"]], row["length"]): float(row["bits_per_byte"])
        for row in lines
        if (row["windows"], row["slice"]) == ("sliding", "all")
    }
    truncated = np.array([bits["rope", seed, "256"] for seed in "012"])
    blocks = text.blocks(text.HERE)
    rows = [
        [cell.strip(" `") for cell in line.split("|")[1:-1]] for line in blocks["truncated"].splitlines()[2:]
    ]
    assert len(rows) == 11
    differences = [np.array([bits[name, seed, "2048"] for seed in "012"]) - truncated for name, *_ in rows]
    adjusted = recomputation.holm([float(stats.ttest_1samp(values, 0).pvalue) for values in differences])
    for (_, loss, change, published_p), values, p in zip(rows, differences, adjusted, strict=True):
        assert float(loss) == pytest.approx((values + truncated).mean(), abs=0.0051)
        assert float(change.split()[0]) == pytest.approx(values.mean(), abs=0.0051)
        assert published_p == f"{p:.2g}"
    parts = [row for row in lines if row["slice"] == "index" and labels[row["name"]][0] == "fox"]
    by_index = {
        last: np.mean([float(row["bits_per_byte"]) for row in parts if float(row["last_index"]) == last])
        for last in (64, 128, 192, 256)
    }
    assert blocks["fox_index_64"] == pytest.approx(by_index.pop(64))
    assert blocks["fox_later"] == pytest.approx(np.mean([*by_index.values()]))
    for name, folder in (("", text.HERE), ("prose_", text.HERE / "prose"), ("depth_", text.HERE / "depth")):
        seeds = {
            row["name"]: (row["label"], row["seed"]) for row in recomputation.read_csv(folder / "runs.csv")
        }
        at_256 = {
            seeds[row["name"]]: float(row["bits_per_byte"])
            for row in recomputation.read_csv(folder / "text.csv")
            if (row["windows"], row["slice"], row["length"]) == ("sliding", "all", "256")
        }
        chosen = sorted(seed for label, seed in at_256 if label == "alibi")
        test = stats.ttest_rel(*([at_256[label, seed] for seed in chosen] for label in ("alibi", "fox")))
        assert blocks[f"{name}alibi_p"] == pytest.approx(test.pvalue)


def test_statements_written_by_hand_are_true() -> None:
    values = text.blocks(text.HERE)
    lengths = (256, 512, 1024, 2048)
    for name in ("fox", "kerple_log", "alibi"):
        assert abs(values[f"{name}_rise"]) < 0.005
    for length in lengths[:3]:
        assert values[f"t5_at_{length}"] < values[f"alibi_at_{length}"]
    assert values["t5_at_2048"] > values["alibi_at_2048"]


def test_independent_code_finds_the_ranks_of_published_changes() -> None:
    published = recomputation.read_csv(text.HERE / "published.csv")
    rows = text.blocks(text.HERE)["table"].splitlines()[2:]
    cells = [[cell.strip() for cell in row.split("|")] for row in rows]
    rises = {row[1].strip("`"): float(row[6].split()[0]) for row in cells}  # to 2,048 bytes
    lines = text.blocks(text.HERE)["published_ranks"].splitlines()[2:]
    for line in lines:
        _, models, count, rho, _, _ = (cell.strip() for cell in line.split("|"))
        pairs = [
            (float(row["change"]), max(rises[row["encoding"]], 0.0))
            for row in published
            if row["models"] == models
        ]
        assert count == f"{len(pairs)}"
        assert rho == f"{stats.spearmanr(*zip(*pairs, strict=True)).statistic:+.2f}"
    assert len(lines) == 3
