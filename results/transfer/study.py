"""Test whether scores on synthetic tasks predict which encodings extrapolate on text.

Twelve encodings are compared in hindsight. For six others the order was predicted before they were trained on
text, by classes of formulas and by scores in the bank; the rules are those of the third plan.
"""

from itertools import permutations, product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pe_experiments.comparison.statistics import ALPHA
from pe_experiments.drawing import panel_grid, save
from pe_experiments.studies import Study, encoding_markdown, read_archive
from pe_experiments.studies.inference import rank_correlation
from pe_experiments.studies.scores import SCORE
from results.bank import study as bank
from results.text import study as text_study

RESULTS = Path(__file__).parents[1]
UNSEEN = ("sinusoidal", "learned", "rope", "p_rope")  # use untrained vectors or angles on longer inputs
FALLING = ("alibi", "kerple_log", "fox")  # a bias that keeps falling with distance
TASKS = ("copy", "flip_flop", "induction", "kth", "lag")
CLASS_NAMES = ("untrained vectors or angles", "others", "bias keeps falling")
CLASS_COLOURS = ("white", "0.6", "black")  # by class
LABEL_BELOW = ("fox", "fire", "sinusoidal", "learned+random_offset", "rope+random_subset", "cope", "cpb_log")
SMALLEST_DIFFERENCE = 0.05  # bits per byte; encodings whose rises differ by less are not compared
SAME_RISE = 0.01  # bits per byte; lower rises are all the same


def load(folder: Path) -> pd.DataFrame:
    """Return the losses on text, of which no run diverged."""
    return text_study.losses(read_archive(RESULTS / "text"))


def rises(losses: pd.DataFrame) -> pd.Series:
    """Return the rise of bits per byte from 256 to 2,048 bytes, by label and seed."""
    return losses[text_study.LONGEST] - losses[text_study.TRAINED]


def read_predictions() -> pd.DataFrame:
    """Return class and score of the six encodings, and their predicted places."""
    return pd.read_csv(RESULTS / "transfer" / "predictions.csv", index_col="encoding")


def hindsight(losses: pd.DataFrame) -> pd.DataFrame:
    """Return class and mean score of the twelve encodings, with the `outcomes`.

    A score is the mean over `TASKS` of the mean over the configurations in which the task was learned.
    """
    rows = bank.early_scores()
    rows = rows[rows["task"].isin(TASKS) & rows["learned"]]
    scores = rows.groupby(["label", "task"])[SCORE].mean().groupby("label").mean().rename("score").to_frame()
    classes = 1 - scores.index.isin(UNSEEN) + scores.index.isin(FALLING)  # 0, 1 or 2
    return outcomes(scores.assign(**{"class": classes}), losses)


def outcomes(predicted: pd.DataFrame, losses: pd.DataFrame) -> pd.DataFrame:
    """Return what is known of encodings with what was measured on text, sorted by the rise.

    Columns are added for the loss at 256 bytes, and for the mean and the range over seeds of its rise.
    """
    measured = rises(losses).groupby("label").agg(rise="mean", low="min", high="max")
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
    differ_CC = np.abs(np.subtract.outer(rises_C, rises_C)) >= SMALLEST_DIFFERENCE
    first, second = np.triu(differ_CC & np.equal.outer(classes_C, classes_C)).nonzero()
    lower = np.sign(rises_C[second] - rises_C[first])  # 1 where the first encoding has the lower rise
    shares = []
    for orders in product(*(permutations(scores) for _, scores in rows.groupby("class")["score"])):
        scores_C = np.concatenate(orders)
        agreement = np.sign(scores_C[first] - scores_C[second]) * lower
        shares.append((agreement + 1).mean() / 2)
    observed = shares[0]  # the first permutation is the identity
    return float(observed), len(first), float(np.mean(np.array(shares) >= observed - 1e-12))


def draw(losses: pd.DataFrame, figures: Path) -> None:
    """Draw rises on text over scores in the bank, of the twelve encodings and of the six predicted ones.

    Bars show the range over seeds, the shade the class. The best encodings are at the top right.
    """
    figure, panels = panel_grid(2, 2, 3.6, sharey=True)
    for axes, rows in zip(panels, (hindsight(losses), outcomes(read_predictions(), losses)), strict=True):
        for level, (name, face) in enumerate(zip(CLASS_NAMES, CLASS_COLOURS, strict=True)):
            chosen = rows[rows["class"] == level]
            ranges = [chosen["rise"] - chosen["low"], chosen["high"] - chosen["rise"]]
            axes.errorbar(
                chosen["score"], chosen["rise"], ranges,
                fmt="o", color="black", mfc=face, markersize=5, elinewidth=0.7, label=name,
            )  # fmt: skip
        for label, row in rows.iterrows():
            offset = (5, -9 if label in LABEL_BELOW else 4)
            side = "left"
            if label == "cpb_linear":  # its neighbours on the right leave no room
                offset, side = (-5, 4), "right"
            place = (row["score"], row["rise"])
            axes.annotate(str(label), place, offset, textcoords="offset points", fontsize=6, ha=side)
        axes.set_xlim(0.28, 1.02)
    panels[0].invert_yaxis()
    panels[0].set_ylabel("text: rise in bits per byte (up is better)", fontsize=8)
    panels[0].set(title="twelve encodings", xlabel="bank: mean score over five tasks")
    panels[1].set(title="predicted before their runs on text", xlabel="bank: mean score over four tasks")
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False, fontsize=7
    )
    save(figure, figures, "answer")


def values(losses: pd.DataFrame) -> dict[str, Any]:
    """Return the table of predictions and the numbers in the text of the page."""
    earlier = hindsight(losses)
    rho, p = rank_correlation(earlier["score"], -earlier["rise"], one_sided=True)
    return prospective_values(losses) | {
        "twelve/bank_rho": rho,
        "twelve/bank_p": p,
        "twelve/classes_rho": rank_correlation(earlier["class"], -earlier["rise"], one_sided=True)[0],
    }


def prospective_values(losses: pd.DataFrame) -> dict[str, Any]:
    """Return the table of predictions and outcomes, and the numbers of the prospective test."""
    rows = outcomes(read_predictions(), losses)
    share, pairs, p = within_classes(rows)
    tied_rises = rows["rise"].mask(rows["rise"] < SAME_RISE, 0.0)
    correlations: dict[str, float] = {}
    for column, name in (("class", "classes"), ("score", "bank")):
        for end, measured in (("", rows["rise"]), ("_with_ties", tied_rises)):
            rho, rho_p = rank_correlation(rows[column], -measured, one_sided=True)
            correlations |= {f"{name}_rho{end}": rho, f"{name}_p{end}": rho_p}
    return {
        "predictions": prediction_table(rows),
        "pairs": pairs,
        "share": share,
        "p": p,
        "smallest_p": within_classes(rows.assign(score=-rows["rise"]))[2],  # if the order were perfect
        "verdict": "shown" if p <= ALPHA else "not shown",
        **correlations,
    }


def prediction_table(rows: pd.DataFrame) -> str:
    """Return a table with a row per encoding: its class, score and rise, and its rank by each."""
    rise, low, high = (rows[column].map("{:+z.2f}".format) for column in ("rise", "low", "high"))
    cells = {
        "class": [CLASS_NAMES[level] for level in rows["class"]],
        "at 256 bytes": rows["trained"].map("{:.2f}".format),
        "score in the bank": rows["score"].map("{:.2f}".format),
        "rise on text (range of three seeds)": rise + " [" + low + ", " + high + "]",
        "place by class": rows["place_by_class"].map("{:g}".format),
        "by the bank": rows["place_by_bank"].map("{:g}".format),
        "on text": rows["rise"].rank().map("{:g}".format),
    }
    return encoding_markdown(pd.DataFrame(cells, rows.index))


STUDY = Study(load=load, values=values, figures=(draw,))
