"""New encodings on text, predicted before they were trained there: by three classes of formulas, and by the bank.

The rules are those of the third plan of results/transfer/plan.md. Shapes: C encodings.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, permutations, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy import stats

from pe_experiments.comparison import Runs
from pe_experiments.drawing import save
from pe_experiments.published import bits_per_byte, read_archive, table, with_settings
from pe_experiments.published.pages import load_study
from pe_experiments.store.directory import DIVERGED
from pe_experiments.terminal.errors import UserError

RESULTS = Path(__file__).parents[2]
transfer = load_study(RESULTS / "transfer")
new = load_study(RESULTS / "bank" / "new")
PREDICTIONS = Path(__file__).with_name("predictions.csv")
TUNING_SEED, SEEDS = 100, 3
TRAINED, LONGEST = transfer.TRAINED, transfer.LONGEST
APART = 0.05  # bits per byte; encodings whose rises differ by less are not compared
FEWEST_PAIRS, FEWEST_ENCODINGS, FEWEST_CLASSES, ALPHA = 5, 6, 2, 0.05
EXACT = 50_000  # permutations of encodings; above, as many random ones
# By the plan. The higher the class, the lower the predicted rise, as in `transfer.CLASSES`.
CLASSES = {
    "rope_clipped": 0, "rope_pp": 0, "rope_nope": 0,
    "learned_relative": 1, "cpb_log": 1, "cpb_linear": 1, "fope": 1, "path": 1, "cope": 1,
    "stick_breaking": 2, "fox(initial_bias=4)": 2,
}  # fmt: skip


class Ordered(NamedTuple):
    """How well the bank orders encodings of the same class."""

    share: float  # of the pairs
    pairs: int
    p: float  # one-sided, over all permutations of the bank's scores within classes
    encodings: int
    classes: int

    @property
    def verdict(self) -> str:
        if self.pairs < FEWEST_PAIRS or self.encodings < FEWEST_ENCODINGS or self.classes < FEWEST_CLASSES:
            return "not decidable"
        return "the bank knows more" if self.p <= ALPHA else "not shown"


def bank_scores(scores: pd.DataFrame, labels: Sequence[str]) -> pd.Series:
    """Return the mean over the tasks of the mean where an encoding learned the task, 0 if it never did."""
    by_task = {task: matrix.mean() for task, matrix in new.matrices(scores).items()}
    return pd.DataFrame(by_task).reindex([*labels]).fillna(0.0).mean(axis=1)


def predict(scores: pd.DataFrame, labels: list[str]) -> pd.DataFrame:
    """Return a row per encoding: its class, its score in the bank, and its predicted place by each.

    The first place is the lowest rise.
    """
    rows = pd.DataFrame({"class": [CLASSES[label] for label in labels], "score": bank_scores(scores, labels)})
    rows["place_by_class"] = rows["class"].rank(ascending=False)
    rows["place_by_bank"] = rows["score"].rank(ascending=False)
    return rows.sort_values(["class", "score"], ascending=False).rename_axis("encoding").reset_index()


def at_best_rate(runs: Runs) -> pd.DataFrame:
    """Return a row per encoding and seed at the learning rate with the lowest loss on the tuning seed.

    That is the smallest rate if all diverged there. Bits per byte have their length as the name of the column.
    """
    columns = ["label", "seed", "status", "loss_in_distribution", "rate"]
    rows = with_settings(runs, rate="training.learning_rate").set_index("name")[columns]
    rows = rows.join(bits_per_byte(runs, [TRAINED, LONGEST]))
    tuning = rows[rows["seed"] == TUNING_SEED].copy()
    tuning.loc[tuning["status"] == DIVERGED, "loss_in_distribution"] = np.inf
    best = tuning.sort_values(["loss_in_distribution", "rate"]).groupby("label")["rate"].first()
    return rows[(rows["seed"] < SEEDS) & (rows["rate"] == rows["label"].map(best))]


def rises(runs: Runs) -> pd.DataFrame:
    """Return rises in bits per byte from the training length to the longest [C, seeds] of complete encodings.

    A run that diverged has the highest mean rise of an encoding.
    """
    rows = at_best_rate(runs)
    rise = (rows[LONGEST] - rows[TRAINED]).mask(rows["status"] == DIVERGED)
    rows = rows.assign(rise=rise.fillna(rise.groupby(rows["label"]).mean().max()))
    return rows.pivot(index="label", columns="seed", values="rise").reindex(columns=range(SEEDS)).dropna()


def within_classes(rises_C: np.ndarray, scores_C: np.ndarray, classes_C: np.ndarray) -> Ordered:
    """Compare pairs of one class whose rises are `APART`; equal scores count as half."""
    pairs = [
        (i, j) for i, j in combinations(range(len(rises_C)), 2)
        if classes_C[i] == classes_C[j] and abs(rises_C[i] - rises_C[j]) >= APART
    ]  # fmt: skip
    known = len(rises_C), len(np.unique(classes_C))
    if not pairs:
        return Ordered(float("nan"), 0, 1.0, *known)
    first, second = np.array(pairs).T
    lower_C = np.sign(rises_C[second] - rises_C[first])  # 1 where the first is to have the higher score
    groups = [np.flatnonzero(classes_C == level) for level in np.unique(classes_C)]
    shares = []
    for orders in product(*(permutations(group) for group in groups)):
        shuffled_C = np.empty_like(scores_C)
        for group, order in zip(groups, orders, strict=True):
            shuffled_C[group] = scores_C[list(order)]
        right = np.sign(shuffled_C[first] - shuffled_C[second]) * lower_C
        shares.append((right + 1).mean() / 2)  # the first order is that of the scores
    return Ordered(
        float(shares[0]), len(pairs), float(np.mean(np.array(shares) >= shares[0] - 1e-12)), *known
    )


def rank_correlation(values_C: np.ndarray, rises_C: np.ndarray) -> tuple[float, float]:
    """Return Spearman's rho of values and minus the rises, with the one-sided p of permutations."""
    first, second = (stats.rankdata(x) - (len(x) + 1) / 2 for x in (values_C, -rises_C))
    length = np.sqrt((first @ first) * (second @ second))

    def rho(ranks: np.ndarray, axis: int = -1) -> np.ndarray:
        return np.moveaxis(ranks, axis, -1) @ second / length

    test = stats.permutation_test(
        (first,), rho, permutation_type="pairings", alternative="greater", vectorized=True,
        n_resamples=EXACT, rng=np.random.default_rng(0),
    )  # fmt: skip
    return float(test.statistic), float(test.pvalue)


def outcomes(folder: Path) -> pd.DataFrame:
    """Return the predictions beside the rises of the encodings that have them, the lowest rise first."""
    runs = read_archive(folder)
    measured = transfer.mean_and_range(rises(runs))
    measured["trained"] = at_best_rate(runs).groupby("label")[TRAINED].mean()
    predicted = pd.read_csv(PREDICTIONS).set_index("encoding").join(measured)
    if predicted["rise"].isna().any():
        waiting = ", ".join(predicted.index[predicted["rise"].isna()])
        raise UserError(
            f"text/new: the runs of {waiting} are not complete; the outcome is that of all predictions"
        )
    return predicted.sort_values("rise")


def earlier() -> tuple[np.ndarray, np.ndarray]:
    """Return the four-task scores and the rises of the twelve encodings of the first two plans."""
    scores, _ = new.load(RESULTS / "bank" / "new")
    risen = -transfer.text_scores()[transfer.PAST][:, 0].mean(axis=1)
    return bank_scores(scores, transfer.ENCODINGS).to_numpy(), risen


def pages(folder: Path) -> None:
    """Draw each encoding's rise on text over its score in the bank, once there are runs."""
    if not (folder / "runs.csv").exists():  # the predictions are published first
        return
    rows = outcomes(folder)
    figure = Figure(figsize=(4.8, 3.6), layout="constrained")
    axes = figure.subplots()
    transfer.draw_classes(axes, rows["score"], rows[["rise", "low", "high"]], rows["class"])
    for label, row in rows.iterrows():
        axes.annotate(
            str(label), (row["score"], row["rise"]), (3, -5), textcoords="offset points", fontsize=7,
            rotation=-60, rotation_mode="anchor", va="center",
        )  # fmt: skip
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=7)
    axes.margins(0.15, 0.3)
    axes.set_ylim(top=-0.3)
    axes.set_xlabel("bank: mean score over four tasks")
    save(figure, folder / "figures", "answer")


def blocks(folder: Path) -> dict[str, Any]:
    """Return predictions beside outcomes, and the numbers of the sentences."""
    rows = outcomes(folder)
    risen, scores, classes = (rows[key].to_numpy(float) for key in ("rise", "score", "class"))
    main = within_classes(risen, scores, classes)
    classes_rho, classes_p = rank_correlation(classes, risen)
    bank_rho, _ = rank_correlation(scores, risen)
    old_scores, old_risen = earlier()
    both = np.concatenate([scores, old_scores]), np.concatenate([risen, old_risen])
    return {
        "predictions": prediction_table(rows),
        "count": len(rows),
        "pairs": main.pairs,
        "share": main.share,
        "p": main.p,
        "smallest_p": within_classes(risen, -risen, classes).p,  # of the perfect order
        "verdict": main.verdict,
        "classes_rho": classes_rho,
        "classes_p": classes_p,
        "bank_rho": bank_rho,
        **{f"{label}_rise": rise for label, rise in (rows["rise"].round(2) + 0.0).items()},
        "both_bank_rho": rank_correlation(*both)[0],
        "both_classes_rho": rank_correlation(np.concatenate([classes, transfer.CLASSES.ravel()]), both[1])[0],
    }


def prediction_table(rows: pd.DataFrame) -> str:
    """Return a row per encoding: its class, its score, its rise, and its place by each."""
    places = rows["rise"].rank()
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
        "on text": places.map("{:g}".format).to_list(),
    })  # fmt: skip
    return table(cells)
