"""Test predictions of losses on text that were made before training: by classes, and by scores in the bank.

The rules are those of the third plan. Shape suffix: C encodings.
"""

from __future__ import annotations

from itertools import combinations, permutations, product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from pe_experiments.comparison.statistics import ALPHA
from pe_experiments.studies import read_archive, table
from results.text import study as text_study

PREDICTIONS = Path(__file__).with_name("predictions.csv")
TEXT = Path(text_study.__file__).parent
CLASS_NAMES = ("untrained vectors or angles", "others", "bias keeps falling")
SMALLEST_DIFFERENCE = 0.05  # bits per byte; encodings whose rises differ by less are not compared
SAME_RISE = 0.01  # bits per byte; lower rises are all the same
MAX_PERMUTATIONS = 200_000  # if there are more, this many are drawn at random


def outcomes(predicted: pd.DataFrame) -> pd.DataFrame:
    """Return predictions, indexed by encoding, with what was measured on text, sorted by the rise.

    Columns are added for the loss at 256 bytes, and for the mean and the range over seeds of its rise to
    2,048 bytes. No run of the study diverged.
    """
    losses = text_study.losses(read_archive(TEXT))
    rises = (losses[text_study.LONGEST] - losses[text_study.TRAINED]).groupby("label")
    measured = rises.agg(rise="mean", low="min", high="max")
    measured["trained"] = losses[text_study.TRAINED].groupby("label").mean()
    return predicted.join(measured).sort_values("rise")


def within_classes(rows: pd.DataFrame) -> tuple[float, int, float]:
    """Test whether higher scores go with lower rises within classes; equal scores count as half.

    Only pairs whose rises differ by at least `SMALLEST_DIFFERENCE` are compared.

    Returns:
        The share of pairs that are ordered rightly, their number, and the one-sided p-value over all
        permutations of the scores within classes.
    """
    rows = rows.sort_values("class", kind="stable")
    rises_C, classes_C = rows["rise"].to_numpy(), rows["class"].to_numpy()
    pairs = [
        (i, j)
        for i, j in combinations(range(len(rows)), 2)
        if classes_C[i] == classes_C[j] and abs(rises_C[i] - rises_C[j]) >= SMALLEST_DIFFERENCE
    ]
    first, second = np.array(pairs).T
    lower = np.sign(rises_C[second] - rises_C[first])  # 1 where the first encoding has the lower rise
    shares = []
    for orders in product(*(permutations(scores) for _, scores in rows.groupby("class")["score"])):
        scores_C = np.concatenate(orders)
        agreement = np.sign(scores_C[first] - scores_C[second]) * lower
        shares.append((agreement + 1).mean() / 2)
    observed = shares[0]  # the first permutation is the identity
    return float(observed), len(pairs), float(np.mean(np.array(shares) >= observed - 1e-12))


def rank_correlation(scores_C: Any, rises_C: Any) -> tuple[float, float]:
    """Return Spearman's rho of scores and negated rises, and its one-sided permutation p-value."""
    first, second = (stats.zscore(stats.rankdata(values)) for values in (scores_C, -rises_C))
    test = stats.permutation_test(
        (first,), lambda ranks: ranks @ second / len(second), permutation_type="pairings",
        alternative="greater", n_resamples=MAX_PERMUTATIONS, rng=np.random.default_rng(0),
    )  # fmt: skip
    return float(test.statistic), float(test.pvalue)


def values(earlier: pd.DataFrame) -> dict[str, Any]:
    """Return the table of predictions and outcomes, and the numbers in the text of the page.

    Args:
        earlier: score, rise and class of the encodings in the first two plans.
    """
    rows = outcomes(pd.read_csv(PREDICTIONS, index_col="encoding"))
    share, pairs, p = within_classes(rows)
    classes_rho, classes_p = rank_correlation(rows["class"], rows["rise"])
    bank_rho, bank_p = rank_correlation(rows["score"], rows["rise"])
    tied_rises = rows["rise"].mask(rows["rise"] < SAME_RISE, 0.0)
    tied_bank_rho, bank_p_with_ties = rank_correlation(rows["score"], tied_rises)
    both = pd.concat([rows, earlier])
    return {
        "predictions": prediction_table(rows),
        "pairs": pairs,
        "share": share,
        "p": p,
        "smallest_p": within_classes(rows.assign(score=-rows["rise"]))[2],  # if the order were perfect
        "verdict": "shown" if p <= ALPHA else "not shown",
        "classes_rho": classes_rho,
        "classes_p": classes_p,
        "bank_rho": bank_rho,
        "bank_p": bank_p,
        "bank_p_with_ties": bank_p_with_ties,
        "bank_rho_with_ties": tied_bank_rho,
        "classes_rho_with_ties": rank_correlation(rows["class"], tied_rises)[0],
        "both_bank_rho": rank_correlation(both["score"], both["rise"])[0],
        "both_classes_rho": rank_correlation(both["class"], both["rise"])[0],
    }


def prediction_table(rows: pd.DataFrame) -> str:
    """Return a table with a row per encoding: its class, score and rise, and its rank by each."""
    rise, low, high = (rows[column].map("{:+z.2f}".format) for column in ("rise", "low", "high"))
    cells = {
        "encoding": "`" + rows.index + "`",
        "class": [CLASS_NAMES[level] for level in rows["class"]],
        "at 256 bytes": rows["trained"].map("{:.2f}".format),
        "score in the bank": rows["score"].map("{:.2f}".format),
        "rise on text (range of three seeds)": rise + " [" + low + ", " + high + "]",
        "place by class": rows["place_by_class"].map("{:g}".format),
        "by the bank": rows["place_by_bank"].map("{:g}".format),
        "on text": rows["rise"].rank().map("{:g}".format),
    }
    return table(pd.DataFrame(cells))
