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
from pe_experiments.store.directory import DIVERGED
from pe_experiments.studies import read_archive, table
from results.text import study as text_study

PREDICTIONS = Path(__file__).with_name("predictions.csv")
TEXT = Path(text_study.__file__).parent
CLASS_NAMES = ("untrained vectors or angles", "others", "bias keeps falling")
SMALLEST_DIFFERENCE = 0.05  # bits per byte; encodings whose rises differ by less are not compared
SAME_RISE = 0.01  # bits per byte; lower rises are all the same
MAX_PERMUTATIONS = 50_000  # if there are more, this many are drawn at random


def outcomes() -> pd.DataFrame:
    """Return the predictions and the measured rises, sorted by the rise: its mean and range over seeds.

    A diverged run counts as the highest mean rise of an encoding.
    """
    rows = text_study.scores(read_archive(TEXT))
    predicted = pd.read_csv(PREDICTIONS).set_index("encoding")
    rows = rows[rows["label"].isin(predicted.index)]
    rise = (rows[text_study.LONGEST] - rows[text_study.TRAINED]).mask(rows["status"] == DIVERGED)
    rise = rise.fillna(rise.groupby(rows["label"]).mean().max())
    predicted = predicted.join(rise.groupby(rows["label"]).agg(rise="mean", low="min", high="max"))
    return predicted.join(rows.groupby("label")[text_study.TRAINED].mean().rename("trained")).sort_values(
        "rise"
    )


def within_classes(
    rises_C: np.ndarray, scores_C: np.ndarray, classes_C: np.ndarray
) -> tuple[float, int, float]:
    """Test whether higher scores go with lower rises within classes; equal scores count as half.

    Only pairs whose rises differ by at least `SMALLEST_DIFFERENCE` are compared.

    Returns:
        The share of pairs that are ordered rightly, their number, and the one-sided p-value over all
        permutations of the scores within classes.
    """
    pairs = [
        (i, j)
        for i, j in combinations(range(len(rises_C)), 2)
        if classes_C[i] == classes_C[j] and abs(rises_C[i] - rises_C[j]) >= SMALLEST_DIFFERENCE
    ]
    first, second = np.array(pairs).T
    lower_C = np.sign(rises_C[second] - rises_C[first])  # 1 where the first encoding has the lower rise
    groups = [np.flatnonzero(classes_C == level) for level in np.unique(classes_C)]
    shares = []
    for orders in product(*(permutations(group) for group in groups)):
        shuffled_C = np.empty_like(scores_C)
        for group, order in zip(groups, orders, strict=True):
            shuffled_C[group] = scores_C[list(order)]
        agreement = np.sign(shuffled_C[first] - shuffled_C[second]) * lower_C
        shares.append((agreement + 1).mean() / 2)
    observed = shares[0]  # the first permutation is the identity
    return float(observed), len(pairs), float(np.mean(np.array(shares) >= observed - 1e-12))


def rank_correlation(values_C: np.ndarray, rises_C: np.ndarray) -> tuple[float, float]:
    """Return Spearman's rho of the values and the negated rises, and its one-sided permutation p-value."""
    first, second = (stats.rankdata(x) - (len(x) + 1) / 2 for x in (values_C, -rises_C))
    length = np.sqrt((first @ first) * (second @ second))

    def rho(ranks: np.ndarray, axis: int = -1) -> np.ndarray:
        return np.moveaxis(ranks, axis, -1) @ second / length

    test = stats.permutation_test(
        (first,), rho, permutation_type="pairings", alternative="greater", vectorized=True,
        n_resamples=MAX_PERMUTATIONS, rng=np.random.default_rng(0),
    )  # fmt: skip
    return float(test.statistic), float(test.pvalue)


def values(
    earlier_scores_C: np.ndarray, earlier_rises_C: np.ndarray, earlier_classes_C: np.ndarray
) -> dict[str, Any]:
    """Return the table of predictions and outcomes, and the numbers in the text of the page.

    Args:
        earlier_scores_C, earlier_rises_C, earlier_classes_C: of the encodings in the first two plans.
    """
    rows = outcomes()
    rises, scores, classes = (rows[key].to_numpy(float) for key in ("rise", "score", "class"))
    share, pairs, p = within_classes(rises, scores, classes)
    classes_rho, classes_p = rank_correlation(classes, rises)
    bank_rho, bank_p = rank_correlation(scores, rises)
    tied_rises = np.where(rises < SAME_RISE, 0.0, rises)
    tied_bank_rho, bank_p_with_ties = rank_correlation(scores, tied_rises)
    all_rises = np.concatenate([rises, earlier_rises_C])
    return {
        "predictions": prediction_table(rows),
        "pairs": pairs,
        "share": share,
        "p": p,
        "smallest_p": within_classes(rises, -rises, classes)[2],  # if the order were perfect
        "verdict": "shown" if p <= ALPHA else "not shown",
        "classes_rho": classes_rho,
        "classes_p": classes_p,
        "bank_rho": bank_rho,
        "bank_p": bank_p,
        "bank_p_with_ties": bank_p_with_ties,
        "bank_rho_with_ties": tied_bank_rho,
        "classes_rho_with_ties": rank_correlation(classes, tied_rises)[0],
        "both_bank_rho": rank_correlation(np.concatenate([scores, earlier_scores_C]), all_rises)[0],
        "both_classes_rho": rank_correlation(np.concatenate([classes, earlier_classes_C]), all_rises)[0],
    }


def prediction_table(rows: pd.DataFrame) -> str:
    """Return a table with a row per encoding: its class, score and rise, and its rank by each."""
    ranks = rows["rise"].rank()
    cells = pd.DataFrame({
        "encoding": [f"`{label}`" for label in rows.index],
        "class": [CLASS_NAMES[level] for level in rows["class"]],
        "at 256 bytes": rows["trained"].map("{:.2f}".format).to_list(),
        "score in the bank": rows["score"].map("{:.2f}".format).to_list(),
        "rise on text (range of three seeds)": [
            f"{row.rise:+z.2f} [{row.low:+z.2f}, {row.high:+z.2f}]" for row in rows.itertuples()
        ],
        "place by class": rows["place_by_class"].map("{:g}".format).to_list(),
        "by the bank": rows["place_by_bank"].map("{:g}".format).to_list(),
        "on text": ranks.map("{:g}".format).to_list(),
    })  # fmt: skip
    return table(cells)
