"""Test the studies on text and of pretrained models with independent code and tests of scipy."""

import re
from collections.abc import Sequence
from itertools import combinations, permutations, product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from results.pretrained import study as pretrained
from results.text import study as text
from results.transfer import study as transfer
from tests import recomputation
from tests.conftest import ROOT


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


EXTENSION = ROOT / "results" / "extension"
CHANGES = [
    "rope", "rope(base=40000)", "rope(base=160000)", "rope_linear", "rope_ntk", "rope_yarn", "rope_llama3",
    "p_rope", "none", "drope",
]  # fmt: skip


def model_of(command: str) -> tuple[str, int]:
    """Return the name of the model that a run trains, and its steps."""
    arguments = dict(word.split("=") for word in command.split() if "=" in word)
    steps = int(arguments.get("training.steps", 1500))
    is_long = arguments.get("training.max_length") == "1024"
    model = arguments["pe"]
    if "pe.base" in arguments:
        model += f"(base={float(arguments['pe.base']):.0f})"
    if "init_from" in arguments and not is_long:
        model = "drope"
    if "init_from" not in arguments and model == "rope":
        model = "scratch" if is_long else "parent"
    return model, 0 if steps == 1 else steps


def bits_in(folder: Path) -> dict[tuple[str, int, int, int], float]:
    """Return bits per byte by model, steps, context length and seed."""
    runs = {row["name"]: row for row in recomputation.read_csv(folder / "runs.csv")}
    return {
        (*model_of(runs[name]["command"]), length, int(runs[name]["seed"])): value
        for (name, length), value in recomputation.sliding_bits(folder).items()
    }


def test_the_families_are_those_of_the_plan_and_their_numbers_those_of_scipy() -> None:
    by_seed = bits_in(EXTENSION)

    def bits(model: tuple[str, int, int]) -> np.ndarray:
        """Return the values of seeds 0 to 4 of a model after so many steps at a context length."""
        return np.array([by_seed[(*model, seed)] for seed in range(5)])

    rows = recomputation.read_csv(EXTENSION / "tests.csv")
    changes = CHANGES[1:]
    expected = {
        "what_to_change": [((change, 150, 1024), ("rope", 150, 1024)) for change in changes],
        "without_training": [((change, 0, 1024), ("parent", 1500, 1024)) for change in changes[:-1]],
        "beyond": [((change, 150, 4096), ("scratch", 1950, 4096)) for change in CHANGES],
        "what_to_start_from": [
            (("rope_yarn", 450, n), (other, 1950, n)) for n in (1024, 4096) for other in ("alibi", "fox")
        ],
    }
    control = ("parent", 1950, 256)
    expected["control"] = [(("fox", 1950, 4096), control), (("alibi", 1950, 4096), control)]
    assert [len(pairs) for pairs in expected.values()] == [9, 8, 10, 4, 2]
    significant = []
    for name, pairs in expected.items():
        tests = [stats.ttest_rel(bits(first), bits(second)) for first, second in pairs]
        adjusted = recomputation.holm([float(test.pvalue) for test in tests])
        published = [row for row in rows if row["family"] == name]
        for row, (first, second), p in zip(published, pairs, adjusted, strict=True):
            estimate, low, high = (float(row[column]) for column in ("difference", "low", "high"))
            assert estimate == pytest.approx((bits(first) - bits(second)).mean())
            assert float(row["p"]) == pytest.approx(p)
            assert (low > 0 or high < 0) == (p <= 0.05)
            significant.append(p <= 0.05)
    assert 5 < sum(significant) < len(significant)
    # "less than half of FoX's advantage remains, and not significantly"; ALiBi is above the control.
    assert significant[-2:] == [False, True]
    fox, parents = bits(("fox", 1950, 4096)), bits(("parent", 1500, 256))
    assert (fox - bits(control)).mean() > (fox - parents).mean() / 2


def rise_of(label: str) -> float:
    """Return the rise of bits per byte from 256 to 2,048 bytes at the tuned rate, a mean over three seeds."""
    runs = pd.read_csv(text.HERE / "runs.csv").query("label == @label")
    rates = runs["command"].str.extract(r"training\.learning_rate=(\S+)")[0]
    is_tuning = runs["seed"] == 100
    losses = runs[is_tuning].groupby(rates)["loss_in_distribution"].mean()
    best = losses.idxmin()
    assert len(losses) >= 3
    assert min(losses.index, key=float) != best != max(losses.index, key=float)  # not at the edge of the grid
    counted = runs[~is_tuning & (rates == best)]
    assert sorted(counted["seed"]) == [0, 1, 2]
    bits = recomputation.sliding_bits(text.HERE)
    return float(np.mean([bits[name, 2048] - bits[name, 256] for name in counted["name"]]))


def permutation_p(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """Return the one-sided p-value of Spearman's rho over all orders of the predictions."""
    observed = stats.spearmanr(predicted, measured).statistic
    rhos = [stats.spearmanr(order, measured).statistic for order in permutations(predicted)]
    return float(np.mean(np.array(rhos) >= observed - 1e-9))


def test_independent_code_finds_the_outcome() -> None:
    predictions = pd.read_csv(ROOT / "results" / "transfer" / "predictions.csv", index_col="encoding")
    rises = {label: rise_of(label) for label in predictions.index}
    (group,) = [rows for _, rows in predictions.groupby("class") if len(rows) > 1]
    pairs = [pair for pair in combinations(group.index, 2) if abs(rises[pair[0]] - rises[pair[1]]) >= 0.05]

    def share_in_order(scores: Sequence[float]) -> float:
        by_label = dict(zip(group.index, scores, strict=True))
        right = [(by_label[a] - by_label[b]) * (rises[b] - rises[a]) > 0 for a, b in pairs]
        return sum(right) / len(right)

    shares = np.array([share_in_order(order) for order in permutations(group["score"])])
    blocks = transfer.prospective_values(transfer.load(transfer.RESULTS))
    assert blocks["pairs"] == len(pairs)
    assert blocks["share"] == pytest.approx(share_in_order(group["score"].tolist()))
    assert blocks["p"] == pytest.approx(np.mean(shares >= blocks["share"] - 1e-9))
    assert blocks["smallest_p"] == pytest.approx(np.mean(shares == shares.max()))
    falls = [-rise for rise in rises.values()]
    levels, scores = predictions["class"].tolist(), predictions["score"].tolist()
    assert blocks["classes_rho"] == pytest.approx(stats.spearmanr(levels, falls).statistic)
    assert blocks["bank_p"] == pytest.approx(permutation_p(scores, falls))
    with_ties = [0.0 if abs(fall) < 0.01 else fall for fall in falls]
    assert blocks["bank_p_with_ties"] == pytest.approx(permutation_p(scores, with_ties))
    assert blocks["classes_p"] == pytest.approx(permutation_p(levels, falls))


PRETRAINED = ROOT / "results" / "pretrained"


def test_losses_are_those_of_the_csvs() -> None:
    losses = {
        (row["rope"], int(row["length"])): float(row["bits_per_byte"])
        for row in recomputation.read_csv(PRETRAINED / "bits_per_byte.csv")
    }
    values = pretrained.values(PRETRAINED)
    for (rope, length), loss in losses.items():
        assert values[f"{rope}_{length}"] == loss
    bits = pretrained.by_stretch(PRETRAINED)
    sizes = {
        row["stretch"]: int(row["bytes"]) for row in recomputation.read_csv(PRETRAINED / "stretches.csv")
    }
    for (rope, length), by_stretch in bits.items():
        mean = np.average(by_stretch, weights=[sizes[str(stretch)] for stretch in by_stretch.index])
        assert losses[rope, length] == pytest.approx(mean)
    assert values["rise"] == pytest.approx(losses["ntk", 16384] - losses["as_is", 8192])
    for rope in ("linear", "ntk", "llama3", "yarn"):  # "below `as_is` on all four stretches"
        assert (bits[rope, 16384] < bits["as_is", 16384]).all()
    assert max(losses[rope, 16384] for rope in ("yarn", "llama3", "ntk")) < losses["linear", 16384]
