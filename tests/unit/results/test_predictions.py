"""Test what synthetic tasks say of losses on text, with independent code."""

from collections.abc import Sequence
from itertools import combinations, permutations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from results.transfer import study as transfer
from tests import recomputation
from tests.conftest import ROOT

TEXT = ROOT / "results" / "text"


def rise_of(label: str) -> float:
    """Return the rise of bits per byte from 256 to 2,048 bytes at the tuned rate, a mean over three seeds."""
    runs = pd.read_csv(TEXT / "runs.csv").query("label == @label")
    rates = runs["command"].str.extract(r"training\.learning_rate=(\S+)")[0]
    is_tuning = runs["seed"] == 100
    losses = runs[is_tuning].groupby(rates)["loss_in_distribution"].mean()
    best = losses.idxmin()
    assert len(losses) >= 3
    assert min(losses.index, key=float) != best != max(losses.index, key=float)  # not at the edge of the grid
    counted = runs[~is_tuning & (rates == best)]
    assert sorted(counted["seed"]) == [0, 1, 2]
    bits = recomputation.sliding_bits(TEXT)
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
