"""Compare the losses of new encodings on text with predictions made before training.

Two predictions rank the encodings: three classes of formulas, and the scores in the bank. The rules are those
of the third plan in results/transfer/plan.md. Shape suffix: C encodings.
"""

from __future__ import annotations

from itertools import combinations, permutations, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy import stats

from pe_experiments.comparison import Runs
from pe_experiments.drawing import save
from pe_experiments.store.directory import DIVERGED
from pe_experiments.studies import Study, bits_per_byte, read_archive, table, with_settings
from pe_experiments.studies.ranking import over_tasks
from pe_experiments.terminal.errors import UserError
from results.bank import study as bank
from results.transfer import study as transfer

RESULTS = Path(__file__).parents[2]
PREDICTIONS = Path(__file__).with_name("predictions.csv")
TUNING_SEED, SEEDS = 100, 3
TRAINED, LONGEST = transfer.TRAINED, transfer.LONGEST
SMALLEST_DIFFERENCE = 0.05  # bits per byte; encodings whose rises differ by less are not compared
SAME_RISE = 0.01  # bits per byte; lower rises are all the same
FEWEST_PAIRS, FEWEST_ENCODINGS, FEWEST_CLASSES, ALPHA = 5, 6, 2, 0.05
MAX_PERMUTATIONS = 50_000  # if there are more, this many are drawn at random


class OrderTest(NamedTuple):
    """Test of whether the bank's scores order encodings of the same class."""

    share: float  # of pairs ordered correctly
    pairs: int
    p: float  # one-sided, over all permutations of the bank's scores within classes
    encodings: int
    classes: int

    @property
    def verdict(self) -> str:
        if self.pairs < FEWEST_PAIRS or self.encodings < FEWEST_ENCODINGS or self.classes < FEWEST_CLASSES:
            return "not decidable"
        return "the bank knows more" if self.p <= ALPHA else "not shown"


def at_best_rate(runs: Runs) -> pd.DataFrame:
    """Return a row per encoding and seed, at the learning rate with the lowest loss on the tuning seed.

    If all runs of the tuning seed diverged, it is the smallest rate. The columns of bits per byte are named
    by the context length.
    """
    columns = ["label", "seed", "status", "loss_in_distribution", "rate"]
    rows = with_settings(runs, rate="training.learning_rate").set_index("name")[columns]
    rows = rows.join(bits_per_byte(runs, [TRAINED, LONGEST]))
    tuning = rows[rows["seed"] == TUNING_SEED].copy()
    tuning.loc[tuning["status"] == DIVERGED, "loss_in_distribution"] = np.inf
    best = tuning.sort_values(["loss_in_distribution", "rate"]).groupby("label")["rate"].first()
    return rows[(rows["seed"] < SEEDS) & (rows["rate"] == rows["label"].map(best))]


def rises(runs: Runs) -> pd.DataFrame:
    """Return the rise in bits per byte from the training length to the longest [C, seeds].

    Encodings that lack a seed are left out. A diverged run counts as the highest mean rise of an encoding.
    """
    rows = at_best_rate(runs)
    rise = (rows[LONGEST] - rows[TRAINED]).mask(rows["status"] == DIVERGED)
    rows = rows.assign(rise=rise.fillna(rise.groupby(rows["label"]).mean().max()))
    return rows.pivot(index="label", columns="seed", values="rise").reindex(columns=range(SEEDS)).dropna()


def within_classes(rises_C: np.ndarray, scores_C: np.ndarray, classes_C: np.ndarray) -> OrderTest:
    """Test whether higher scores go with lower rises within classes; equal scores count as half.

    Only pairs whose rises differ by at least `SMALLEST_DIFFERENCE` are compared.
    """
    pairs = []
    for i, j in combinations(range(len(rises_C)), 2):
        same_class = classes_C[i] == classes_C[j]
        if same_class and abs(rises_C[i] - rises_C[j]) >= SMALLEST_DIFFERENCE:
            pairs.append((i, j))
    counts = len(rises_C), len(np.unique(classes_C))
    if not pairs:
        return OrderTest(float("nan"), 0, 1.0, *counts)
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
    p = np.mean(np.array(shares) >= observed - 1e-12)
    return OrderTest(float(observed), len(pairs), float(p), *counts)


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


def outcomes(folder: Path) -> pd.DataFrame:
    """Return the predictions and the measured rises, sorted by the rise.

    Raises:
        UserError: the runs of a predicted encoding are not complete.
    """
    runs = read_archive(folder)
    measured = transfer.mean_and_range(rises(runs))
    measured["trained"] = at_best_rate(runs).groupby("label")[TRAINED].mean()
    predicted = pd.read_csv(PREDICTIONS).set_index("encoding").join(measured)
    if predicted["rise"].isna().any():
        incomplete = ", ".join(predicted.index[predicted["rise"].isna()])
        raise UserError(
            f"text/new: the runs of {incomplete} are not complete; the outcome is that of all predictions"
        )
    return predicted.sort_values("rise")


def earlier_scores_and_rises() -> tuple[np.ndarray, np.ndarray]:
    """Return the four-task scores and the rises of the encodings in the first two plans."""
    scores = bank.early_scores(read_archive(RESULTS / "bank"))
    means = over_tasks(scores, [*bank.TASKS]).mean()
    mean_rises = -transfer.text_scores()[transfer.PAST][:, 0].mean(axis=1)
    return means[[*transfer.ENCODINGS]].to_numpy(), mean_rises


def draw(folder: Path, figures: Path) -> None:
    """Draw each encoding's rise on text over its score in the bank, once there are runs."""
    rows = outcomes(folder)
    figure = Figure(figsize=(4.8, 3.6), layout="constrained")
    axes = figure.subplots()
    score, level = rows["score"].to_numpy(float), rows["class"].to_numpy(float)
    transfer.draw_classes(axes, score, rows[["rise", "low", "high"]], level)
    for label, row in rows.iterrows():
        axes.annotate(
            str(label), (row["score"], row["rise"]), (3, -5), textcoords="offset points", fontsize=7,
            rotation=-60, rotation_mode="anchor", va="center",
        )  # fmt: skip
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=7)
    axes.margins(0.15, 0.3)
    axes.set_ylim(top=-0.3)
    axes.set_xlabel("bank: mean score over four tasks")
    save(figure, figures, "answer")


def values(folder: Path) -> dict[str, Any]:
    """Return the table of predictions and outcomes, and the numbers in the text of the page."""
    rows = outcomes(folder)
    mean_rises, scores, classes = (rows[key].to_numpy(float) for key in ("rise", "score", "class"))
    main = within_classes(mean_rises, scores, classes)
    classes_rho, classes_p = rank_correlation(classes, mean_rises)
    bank_rho, bank_p = rank_correlation(scores, mean_rises)
    _, bank_p_with_ties = rank_correlation(scores, np.where(mean_rises < SAME_RISE, 0.0, mean_rises))
    earlier_scores, earlier_rises = earlier_scores_and_rises()
    all_scores = np.concatenate([scores, earlier_scores])
    all_classes = np.concatenate([classes, transfer.CLASSES.ravel()])
    all_rises = np.concatenate([mean_rises, earlier_rises])
    return {
        "predictions": prediction_table(rows),
        "count": len(rows),
        "pairs": main.pairs,
        "share": main.share,
        "p": main.p,
        "smallest_p": within_classes(mean_rises, -mean_rises, classes).p,  # if the order were perfect
        "verdict": main.verdict,
        "classes_rho": classes_rho,
        "classes_p": classes_p,
        "bank_rho": bank_rho,
        "bank_p": bank_p,
        "bank_p_with_ties": bank_p_with_ties,
        **{f"{label}_rise": rise for label, rise in (rows["rise"].round(2) + 0.0).items()},
        "both_bank_rho": rank_correlation(all_scores, all_rises)[0],
        "both_classes_rho": rank_correlation(all_classes, all_rises)[0],
    }


def prediction_table(rows: pd.DataFrame) -> str:
    """Return a table with a row per encoding: its class, score and rise, and its rank by each."""
    ranks = rows["rise"].rank()
    cells = pd.DataFrame({
        "encoding": [f"`{label}`" for label in rows.index],
        "class": [transfer.CLASS_LOOKS[level][0] for level in rows["class"]],
        "at 256 bytes": rows["trained"].map("{:.2f}".format).to_list(),
        "score in the bank": rows["score"].map("{:.2f}".format).to_list(),
        "rise on text (range of three seeds)": [
            f"{row.rise:+.2f} [{row.low:+.2f}, {row.high:+.2f}]"
            for row in (rows[["rise", "low", "high"]].round(2) + 0.0).itertuples()  # no -0.00
        ],
        "place by class": rows["place_by_class"].map("{:g}".format).to_list(),
        "by the bank": rows["place_by_bank"].map("{:g}".format).to_list(),
        "on text": ranks.map("{:g}".format).to_list(),
    })  # fmt: skip
    return table(cells)


STUDY = Study(values=values, figures=(draw,))
