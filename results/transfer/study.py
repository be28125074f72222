"""Test whether scores on synthetic tasks predict which encodings extrapolate on text.

Shapes: C encodings, T tasks, S repetitions (configurations of the bank, seeds of text), N random resamples.
Higher scores are better.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from pe_experiments.drawing import save
from pe_experiments.studies import Study, read_archive
from pe_experiments.studies.scores import SCORE
from results.bank import study as bank
from results.text import study as text_study
from results.transfer import prospective

RESULTS = Path(__file__).parents[1]
# Groups of related encodings, the units of the bootstrap, as fixed by the first plan.
GROUPS = (
    ("none",),
    ("sinusoidal",),
    ("learned", "learned+random_offset"),
    ("rope", "rope+random_subset", "p_rope"),
    ("alibi", "kerple_log", "fire"),
    ("t5",),
    ("fox",),
)
ENCODINGS = tuple(encoding for group in GROUPS for encoding in group)
UNSEEN = ("sinusoidal", "learned", "rope", "p_rope")  # use untrained vectors or angles on longer inputs
FALLING = ("alibi", "kerple_log", "fox")  # a bias that keeps falling with distance
TASKS = ("copy", "flip_flop", "induction", "kth", "lag")
RESAMPLES, BATCHES = 200_000, 20
CLASSES = 1 - np.isin(ENCODINGS, UNSEEN) + np.isin(ENCODINGS, FALLING)  # 0, 1 or 2, by encoding
CLASS_COLOURS = ("white", "0.6", "black")  # by class
LABEL_BELOW = ("fox", "fire", "sinusoidal", "learned+random_offset", "rope+random_subset", "cope", "cpb_log")


def bank_scores() -> np.ndarray:
    """Return the scores of the bank on `TASKS` [C, T, S]; NaN where the task was not learned."""
    rows = bank.early_scores()
    rows = rows[rows["task"].isin(TASKS) & rows["learned"]]
    scores = rows.pivot(index="label", columns=["task", "configuration"], values=SCORE).sort_index(axis=1)
    return scores.loc[[*ENCODINGS]].to_numpy().reshape(len(ENCODINGS), len(TASKS), -1)


def text_scores() -> np.ndarray:
    """Return the negated rise of bits per byte from 256 to 2,048 bytes [C, 1, S]."""
    losses = text_study.losses(read_archive(RESULTS / "text"))
    rises = (losses[text_study.LONGEST] - losses[text_study.TRAINED]).unstack("seed")
    return -rises.loc[[*ENCODINGS]].to_numpy()[:, None]


def means(scores: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the mean over tasks of the weighted mean over repetitions [N, C].

    NaN is ignored; a task with only NaN counts as 0.

    Args:
        scores: [C, T, S].
        weights: of the repetitions [N, S].
    """
    total = np.einsum("cts,ns->nct", np.nan_to_num(scores), weights)
    weight = np.einsum("cts,ns->nct", ~np.isnan(scores), weights)
    return np.divide(total, weight, out=np.zeros_like(total), where=weight > 0).mean(axis=-1).round(12)


def overall(scores: np.ndarray) -> np.ndarray:
    """Return `means` with equal weights [C]."""
    return means(scores, np.ones((1, scores.shape[-1])))[0]


def weighted_ranks(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return centred ranks of values [N, C], counted ``weights`` times, of unit norm; NaN if all tie."""
    above = np.sign(values[:, :, None] - values[:, None, :])
    ranks = np.einsum("ncd,nd->nc", above, weights) * np.sqrt(weights)
    norm = np.linalg.norm(ranks, axis=1, keepdims=True)
    return ranks / np.where(norm > 0, norm, np.nan)


def interval(scores: np.ndarray, others: np.ndarray, resamples: int) -> tuple[float, float]:
    """Return the ends of the 95% bootstrap interval of Spearman's rho of two scores [C, T, S] over encodings.

    It draws groups of encodings, and the same repetitions for all encodings, since these share settings, or
    test examples of a seed.
    """
    rng = np.random.default_rng(0)

    def draws(size: int) -> np.ndarray:
        return rng.multinomial(size, np.full(size, 1 / size), size=resamples // BATCHES)

    rhos = []
    for _ in range(BATCHES):
        weights = np.repeat(draws(len(GROUPS)), [len(group) for group in GROUPS], axis=1)
        first, second = (
            weighted_ranks(means(part, draws(part.shape[-1])), weights) for part in (scores, others)
        )
        rhos.append((first * second).sum(axis=1))
    low, high = np.nanquantile(rhos, [0.025, 0.975])
    return float(low), float(high)


def earlier_outcomes() -> pd.DataFrame:
    """Return class and score of the twelve encodings in hindsight, with the columns of `outcomes`."""
    past = pd.DataFrame({"class": CLASSES, "score": overall(bank_scores())}, index=ENCODINGS)
    return prospective.outcomes(past)


def draw(folder: Path, figures: Path) -> None:
    """Draw rises on text over scores in the bank, of the twelve encodings and of the six predicted ones.

    Bars show the range over seeds, the shade the class. The best encodings are at the top right.
    """
    predicted = prospective.outcomes(pd.read_csv(prospective.PREDICTIONS, index_col="encoding"))
    figure = Figure(figsize=(7.2, 3.6), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, rows in zip(panels, (earlier_outcomes(), predicted), strict=True):
        for level, (name, face) in enumerate(zip(prospective.CLASS_NAMES, CLASS_COLOURS, strict=True)):
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
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].invert_yaxis()
    panels[0].set_ylabel("text: rise in bits per byte (up is better)", fontsize=8)
    panels[0].set(title="twelve encodings", xlabel="bank: mean score over five tasks")
    panels[1].set(title="predicted before their runs on text", xlabel="bank: mean score over four tasks")
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False, fontsize=7
    )
    save(figure, figures, "answer")


def values(folder: Path) -> dict[str, Any]:
    """Return the table of predictions and the numbers in the text of the page."""
    past, text = bank_scores(), text_scores()
    without = {
        task: interval(np.delete(past, index, axis=1), text, RESAMPLES // 10)[0]
        for index, task in enumerate(TASKS)
    }
    earlier = earlier_outcomes()
    rho, p = prospective.rank_correlation(earlier["score"], earlier["rise"])
    low, high = interval(past, text, RESAMPLES)
    four_tasks = pd.Series(overall(np.delete(past, TASKS.index("kth"), axis=1)), ENCODINGS)
    return prospective.values(earlier.assign(score=four_tasks)) | {
        "twelve/bank_rho": rho,
        "twelve/bank_p": p,
        "twelve/interval": f"[{low:.2f}, {high:.2f}]",
        "twelve/classes_rho": prospective.rank_correlation(earlier["class"], earlier["rise"])[0],
        "without_kth": without.pop("kth"),
        "without_another": min(without.values()),
    }


STUDY = Study(values=values, figures=(draw,))
