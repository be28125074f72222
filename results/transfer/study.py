"""Test whether scores on synthetic tasks predict which encodings extrapolate on text.

Shapes: C encodings, T tasks, S repetitions (configurations of the bank, seeds of text), N random resamples.
Higher scores are better.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from pe_experiments.drawing import save
from pe_experiments.store.directory import DIVERGED
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
TRAINED, LONGEST = 256, 2048  # bytes of context
PERMUTATIONS, RESAMPLES, BATCHES = 20_000, 200_000, 20
CLASSES = (
    1.0 - np.isin(ENCODINGS, UNSEEN)[:, None, None] + np.isin(ENCODINGS, FALLING)[:, None, None]
)  # 0, 1 or 2
CLASS_COLOURS = ("white", "0.6", "black")  # by class
LABEL_BELOW = ("fox", "fire", "sinusoidal", "learned+random_offset", "rope+random_subset", "cope", "cpb_log")


class Correlation(NamedTuple):
    """Spearman's rho over encodings with its one-sided p-value and bootstrap interval."""

    rho: float
    p: float
    low: float
    high: float

    @property
    def interval(self) -> str:
        return f"[{self.low:.2f}, {self.high:.2f}]"


def grid(rows: pd.DataFrame, value: str) -> np.ndarray:
    """Return the values [C, S] of rows with columns ``label`` and ``setting``."""
    values = rows.pivot(index="label", columns="setting", values=value)
    return values.loc[[*ENCODINGS]].to_numpy(float).round(12)


def bank_scores() -> np.ndarray:
    """Return the scores of the bank on `TASKS` [C, T, S]; NaN where the task was not learned."""
    rows = bank.early_scores().rename(columns={"configuration": "setting"})
    rows = rows[rows["label"].isin(ENCODINGS)]
    rows["value"] = rows[SCORE].where(rows["learned"])
    return np.stack([grid(rows[rows["task"] == task], "value") for task in TASKS], axis=1)


def text_scores() -> np.ndarray:
    """Return the negated rise of bits per byte from `TRAINED` to `LONGEST` [C, 1, S].

    A diverged run counts as the lowest mean of an encoding.
    """
    rows = text_study.scores(read_archive(RESULTS / "text"))
    rows = rows[rows["label"].isin(ENCODINGS)].rename(columns={"seed": "setting"})
    rows["value"] = rows[TRAINED] - rows[LONGEST]
    worst = rows.groupby("label")["value"].mean().min()
    rows["value"] = rows["value"].mask(rows["status"] == DIVERGED, worst)
    return grid(rows, "value")[:, None]


def means(scores: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the mean over tasks of the weighted mean over repetitions [N, C].

    NaN is ignored; a task with only NaN counts as 0.

    Args:
        scores: [C, T, S].
        weights: of the repetitions [N, S].
    """
    has_value = ~np.isnan(scores)
    total = np.einsum("cts,ns->nct", np.where(has_value, scores, 0.0), weights)
    weight = np.einsum("cts,ns->nct", has_value.astype(float), weights)
    return np.divide(total, weight, out=np.zeros_like(total), where=weight > 0).mean(axis=-1).round(12)


def overall(scores: np.ndarray) -> np.ndarray:
    """Return `means` with equal weights [C]."""
    return means(scores, np.ones((1, scores.shape[-1])))[0]


def ranked(values: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Return centred ranks scaled to unit norm [N, C]; NaN if all values are equal.

    Args:
        values: [N, C].
        weights: how often each value counts [N, C].
    """
    weights = np.ones_like(values) if weights is None else weights
    above = values[..., :, None] - values[..., None, :]
    ranks = np.einsum("...cd,...d->...c", (np.sign(above) + 1) / 2, weights)
    ranks -= ((ranks * weights).sum(axis=-1) / weights.sum(axis=-1))[..., None]
    return _scaled(ranks * np.sqrt(weights))


def _scaled(values: np.ndarray) -> np.ndarray:
    """Scale to unit norm along the last axis; NaN if the norm is 0."""
    norm = np.linalg.norm(values, axis=-1, keepdims=True)
    return values / np.where(norm > 1e-9, norm, np.nan)


def correlate(first: np.ndarray, second: np.ndarray, resamples: int | None = None) -> Correlation:
    """Return the correlation of two scores [C, T, S] over encodings, with a permutation test.

    The bootstrap draws groups of encodings, and the same repetitions for all encodings, since these share
    settings, or test examples of a seed.
    """
    rng = np.random.default_rng(0)
    ranks, others = (ranked(overall(scores)) for scores in (first, second))
    observed = float(ranks @ others)
    shuffled = rng.permuted(np.tile(ranks, (PERMUTATIONS, 1)), axis=1)
    p = (1 + (shuffled @ others >= observed - 1e-12).sum()) / (1 + PERMUTATIONS)
    times = (resamples or RESAMPLES) // BATCHES
    rhos = [_resampled([first, second], times, rng) for _ in range(BATCHES)]
    low, high = np.nanquantile(np.concatenate(rhos), [0.025, 0.975])
    return Correlation(observed, float(p), float(low), float(high))


def _resampled(scores: Sequence[np.ndarray], times: int, rng: np.random.Generator) -> np.ndarray:
    """Return bootstrap values of rho [N]; groups of encodings and repetitions are drawn with replacement."""
    counts = rng.multinomial(len(GROUPS), np.full(len(GROUPS), 1 / len(GROUPS)), size=times)
    weights = np.repeat(counts, [len(group) for group in GROUPS], axis=1).astype(float)
    repetitions = {
        n: rng.multinomial(n, np.full(n, 1 / n), size=times).astype(float)
        for n in sorted({study_scores.shape[-1] for study_scores in scores})
    }
    first, second = (ranked(means(part, repetitions[part.shape[-1]]), weights) for part in scores)
    return (first * second).sum(axis=-1)


def draw(folder: Path, figures: Path) -> None:
    """Draw rises on text over scores in the bank, of the twelve encodings and of the six predicted ones.

    Bars show the range over seeds, the shade the class. The best encodings are at the top right.
    """
    by_seed = pd.DataFrame(-text_scores()[:, 0], index=ENCODINGS)
    earlier = pd.DataFrame(
        {"rise": by_seed.mean(axis=1), "low": by_seed.min(axis=1), "high": by_seed.max(axis=1)}
    )
    earlier = earlier.assign(score=overall(bank_scores()), **{"class": CLASSES.ravel()})
    figure = Figure(figsize=(7.2, 3.6), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, rows in zip(panels, (earlier, prospective.outcomes()), strict=True):
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
    past, rises = bank_scores(), text_scores()
    without = {
        task: correlate(np.delete(past, index, axis=1), rises, resamples=RESAMPLES // 10).low
        for index, task in enumerate(TASKS)
    }
    early = bank.early_scores()
    learned = early[early["task"].isin(bank.TASKS) & early["learned"]]  # as the predicted scores are means
    four_tasks = learned.groupby(["label", "task"])[SCORE].mean().unstack().mean(axis=1)
    prospective_values = prospective.values(
        four_tasks[[*ENCODINGS]].to_numpy(), -rises[:, 0].mean(axis=1), CLASSES.ravel()
    )
    return prospective_values | {
        "main": correlate(past, rises),
        "classes": correlate(CLASSES, rises),
        "without_kth": without.pop("kth"),
        "without_another": min(without.values()),
    }


STUDY = Study(values=values, figures=(draw,))
