"""Test the predictions of losses on text: the outcome with independent code."""

from collections.abc import Iterable, Sequence
from itertools import combinations, permutations

import numpy as np
import pytest
from scipy import stats

from results.transfer import study as transfer
from tests import recomputation
from tests.conftest import ROOT

TEXT = ROOT / "results" / "text"


def rises_by_encoding(encodings: Iterable[str]) -> dict[str, float]:
    """Return the rise of bits per byte from 256 to 2,048 bytes at the tuned rate, a mean over three seeds."""
    runs = {row["name"]: row for row in recomputation.read_csv(TEXT / "runs.csv")}
    bits = recomputation.sliding_bits(TEXT)
    rates = {
        name: row["command"].partition("training.learning_rate=")[2].split()[0] for name, row in runs.items()
    }
    rises = {}
    for label in encodings:
        names = [name for name, row in runs.items() if row["label"] == label]
        tuning = [name for name in names if runs[name]["seed"] == "100"]
        losses = {rates[name]: float(runs[name]["loss_in_distribution"]) for name in tuning}
        best = min(losses, key=lambda rate: losses[rate])
        assert len(losses) >= 3
        assert min(losses, key=float) != best != max(losses, key=float)  # not at the edge of the grid
        at_best = [name for name in names if runs[name]["seed"] != "100" and rates[name] == best]
        assert sorted(runs[name]["seed"] for name in at_best) == ["0", "1", "2"]
        rises[label] = sum(bits[name, 2048] - bits[name, 256] for name in at_best) / 3
    return rises


def permutation_p(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """Return the one-sided p-value of Spearman's rho over all orders of the predictions."""
    observed = stats.spearmanr(predicted, measured).statistic
    rhos = [stats.spearmanr(order, measured).statistic for order in permutations(predicted)]
    return float(np.mean(np.array(rhos) >= observed - 1e-9))


def test_independent_code_finds_the_outcome() -> None:
    predictions = {
        row["encoding"]: row
        for row in recomputation.read_csv(transfer.RESULTS / "transfer" / "predictions.csv")
    }
    rises = rises_by_encoding(predictions)
    levels = [int(row["class"]) for row in predictions.values()]
    groups = [[label for label, row in predictions.items() if row["class"] == level] for level in "012"]
    (group,) = [labels for labels in groups if len(labels) > 1]
    pairs = [pair for pair in combinations(group, 2) if abs(rises[pair[0]] - rises[pair[1]]) >= 0.05]
    scores = [float(predictions[label]["score"]) for label in group]

    def share_in_order(scores: Sequence[float]) -> float:
        by_label = dict(zip(group, scores, strict=True))
        right = [(by_label[a] - by_label[b]) * (rises[b] - rises[a]) > 0 for a, b in pairs]
        return sum(right) / len(right)

    shares = np.array([share_in_order(order) for order in permutations(scores)])
    blocks = transfer.prospective_values(transfer.load(transfer.RESULTS))
    assert blocks["pairs"] == len(pairs)
    assert blocks["share"] == pytest.approx(share_in_order(scores))
    assert blocks["p"] == pytest.approx(np.mean(shares >= blocks["share"] - 1e-9))
    assert blocks["smallest_p"] == pytest.approx(np.mean(shares == shares.max()))
    falls = [-rise for rise in rises.values()]
    assert blocks["classes_rho"] == pytest.approx(stats.spearmanr(levels, falls).statistic)
    bank = [float(row["score"]) for row in predictions.values()]
    assert blocks["bank_p"] == pytest.approx(permutation_p(bank, falls))
    with_ties = [0.0 if abs(fall) < 0.01 else fall for fall in falls]
    assert blocks["bank_p_with_ties"] == pytest.approx(permutation_p(bank, with_ties))
    assert blocks["classes_p"] == pytest.approx(permutation_p(levels, falls))
