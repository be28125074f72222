"""Do synthetic tasks tell which encodings extrapolate on text? From the CSVs of the bank and of the text study.

Shapes: C encodings, T tasks, S repetitions (settings of the bank, seeds of text), N random resamples. Higher
scores are better.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pe_experiments.bank.scores import FLOORS, SCORE, score_table
from pe_experiments.comparison.statistics import holm
from pe_experiments.drawing import save
from pe_experiments.published import markdown_table, read_archive
from pe_experiments.published.pages import load_study
from pe_experiments.store.directory import DIVERGED

RESULTS = Path(__file__).parents[1]
GROUPS = (  # Relatives count as one. Both studies had these when the first plan was carried out; later ones are not added.
    ("none",),
    ("sinusoidal",),
    ("learned", "learned+random_offset"),
    ("rope", "rope+random_subset", "p_rope"),
    ("alibi", "kerple_log", "fire"),
    ("t5",),
    ("fox",),
)
ENCODINGS = tuple(encoding for group in GROUPS for encoding in group)
UNSEEN = ("sinusoidal", "learned", "rope", "p_rope")  # longer inputs bring vectors or angles not trained
FALLING = ("alibi", "kerple_log", "fox")  # a bias that keeps falling with distance
TASKS = ("copy", "flip_flop", "induction", "kth", "lag")
TRAINED, LONGEST = 256, 2048  # bytes of context
PERMUTATIONS, RESAMPLES, BATCHES, SPLITS = 20_000, 200_000, 20, 1_000
IN, PAST = "in distribution", "past training"

Draw = np.random.Generator
# By part; [C, T, S] in the order of `ENCODINGS`, NaN where a run does not count.
Scores = dict[str, np.ndarray]
BASELINE = np.array([encoding not in UNSEEN for encoding in ENCODINGS], float)[:, None, None]
CLASSES = BASELINE + np.isin(ENCODINGS, FALLING)[:, None, None]  # 0, 1 or 2, from the formulas alone
CLASS_LOOKS = (("untrained vectors or angles", "white"), ("others", "0.6"), ("bias keeps falling", "black"))
LABEL_BELOW = ("fox", "fire", "sinusoidal", "learned+random_offset", "rope+random_subset")


@dataclass(frozen=True)
class Correlation:
    """Spearman's rho over encodings with its one-sided p-value, bootstrap interval and ceiling."""

    rho: float
    p: float
    low: float
    high: float
    error: float  # of the lower end, from the random resamples
    ceiling: float  # NaN of a partial correlation

    @property
    def interval(self) -> str:
        return f"[{self.low:.2f}, {self.high:.2f}]"


def grid(rows: pd.DataFrame, value: str) -> np.ndarray:
    """Return the values [C, S] of rows with columns ``label`` and ``setting``."""
    values = rows.pivot(index="label", columns="setting", values=value)
    return values.loc[[*ENCODINGS]].to_numpy(float).round(12)


def bank_scores() -> Scores:
    """Return the bank's scores of `TASKS`."""
    folder = RESULTS / "bank" / "v2"
    runs = read_archive(folder)
    rows = score_table(runs, pd.read_csv(folder / FLOORS))
    rows = rows.merge(runs.runs[["name", "exact_match_in_distribution"]], on="name")
    rows = rows[rows["label"].isin(ENCODINGS)]
    inside, past = [], []
    for task in TASKS:
        of_task = rows[rows["task"] == task]
        inside.append(grid(of_task, "exact_match_in_distribution"))
        past.append(np.where(grid(of_task, "learned") == 1, grid(of_task, SCORE), np.nan))
    return {IN: np.stack(inside, axis=1), PAST: np.stack(past, axis=1)}


def text_scores() -> Scores:
    """Return minus bits per byte at the training length, and minus their rise to the longest context."""
    folder = RESULTS / "text"
    rows = load_study(folder).scores(read_archive(folder))
    rows = rows[rows["label"].isin(ENCODINGS)].rename(columns={"seed": "setting"})
    rows = rows.assign(**{IN: -rows[TRAINED], PAST: rows[TRAINED] - rows[LONGEST]})
    for part in (IN, PAST):
        worst = rows.groupby("label")[part].mean().min()  # of any encoding
        rows[part] = rows[part].mask(rows["status"] == DIVERGED, worst)
    return {part: grid(rows, part)[:, None] for part in (IN, PAST)}


def means(scores: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return [N, C]: per task the weighted mean over the repetitions that count, 0 without any; then over tasks."""
    known = ~np.isnan(scores)
    total = np.einsum("cts,ns->nct", np.where(known, scores, 0.0), weights)
    weight = np.einsum("cts,ns->nct", known.astype(float), weights)
    return np.divide(total, weight, out=np.zeros_like(total), where=weight > 0).mean(axis=-1).round(12)


def overall(scores: np.ndarray) -> np.ndarray:
    """Return the means [C] over all repetitions."""
    return means(scores, np.ones((1, scores.shape[-1])))[0]


def ranked(values: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Return ranks [N, C], centred, of length 1, NaN where all are equal; each counts ``weights`` [N, C] times."""
    weights = np.ones_like(values) if weights is None else weights
    above = values[..., :, None] - values[..., None, :]
    ranks = np.einsum("...cd,...d->...c", (np.sign(above) + 1) / 2, weights)
    ranks -= ((ranks * weights).sum(axis=-1) / weights.sum(axis=-1))[..., None]
    return _scaled(ranks * np.sqrt(weights))


def _scaled(values: np.ndarray) -> np.ndarray:
    length = np.linalg.norm(values, axis=-1, keepdims=True)
    return values / np.where(length > 1e-9, length, np.nan)


def residuals(ranks: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the first two; of three what a regression on the third leaves of them."""
    first, second, *given = ranks
    for third in given:
        first, second = (
            _scaled(a - (a * third).sum(axis=-1, keepdims=True) * third) for a in (first, second)
        )
    return first, second


def correlate(*scores: np.ndarray, resamples: int | None = None) -> Correlation:
    """Return the plan's statistics of the scores of two studies; a third one makes the correlation partial.

    Residuals of ranks are permuted then, and regressed again (Freedman and Lane 1983). Encodings share the repetitions that are drawn:
    settings are the same for all of them, and runs of one seed are evaluated on the same examples. Scores with as
    many repetitions are of one study, and share them too.
    """
    draw = np.random.default_rng(0)
    ranks = [ranked(overall(study_scores)) for study_scores in scores]
    first, second = residuals(ranks)
    observed = float(first @ second)
    shuffled, _ = residuals([draw.permuted(np.tile(first, (PERMUTATIONS, 1)), axis=1), *ranks[1:]])
    p = (1 + (shuffled @ second >= observed - 1e-12).sum()) / (1 + PERMUTATIONS)
    drawn = [_resampled(scores, (resamples or RESAMPLES) // BATCHES, draw) for _ in range(BATCHES)]
    ends = np.array([np.nanquantile(study_scores, [0.025, 0.975]) for study_scores in drawn])
    low, high = np.nanquantile(np.concatenate(drawn), [0.025, 0.975])
    error = ends[:, 0].std(ddof=1) / np.sqrt(BATCHES)
    pair = scores if len(scores) == 2 else ()
    ceiling = (
        np.sqrt(np.prod([_reliability(study_scores, draw) for study_scores in pair]))
        if pair
        else float("nan")
    )
    return Correlation(observed, float(p), float(low), float(high), float(error), float(ceiling))


def _resampled(scores: Sequence[np.ndarray], times: int, draw: Draw) -> np.ndarray:
    """Rho [N] of groups of encodings drawn with replacement, over repetitions drawn with replacement."""
    counts = draw.multinomial(len(GROUPS), np.full(len(GROUPS), 1 / len(GROUPS)), size=times)
    weights = np.repeat(counts, [len(group) for group in GROUPS], axis=1).astype(float)
    sizes = {study_scores.shape[-1] for study_scores in scores}
    picked = {n: draw.multinomial(n, np.full(n, 1 / n), size=times).astype(float) for n in sorted(sizes)}
    first, second = residuals(
        [ranked(means(study_scores, picked[study_scores.shape[-1]]), weights) for study_scores in scores]
    )
    return (first * second).sum(axis=-1)


def _reliability(scores: np.ndarray, draw: Draw) -> float:
    """Mean correlation of random halves of the repetitions, corrected to all (Spearman and Brown); NaN for one."""
    count = scores.shape[-1]
    if count < 2:
        return float("nan")
    half = count // 2
    order = draw.permuted(np.tile(np.arange(count), (SPLITS, 1)), axis=1)
    first_half, second_half = (
        means(scores, 1.0 * part) for part in (order < half, (order >= half) & (order < 2 * half))
    )
    mean = max(0.0, float(np.nanmean((ranked(first_half) * ranked(second_half)).sum(axis=-1))))
    return count / half * mean / (1 + (count / half - 1) * mean)


def pages(folder: Path) -> None:
    """Draw each encoding's rise on text over its score in the bank; bars span the seeds of text."""
    bank = overall(bank_scores()[PAST])
    by_seed = -text_scores()[PAST][:, 0]
    rises = mean_and_range(pd.DataFrame(by_seed))
    figure = Figure(figsize=(4.8, 3.6), layout="constrained")
    axes = figure.subplots()
    draw_classes(axes, bank, rises, CLASSES.ravel())
    for encoding, x, y in zip(ENCODINGS, bank, rises["rise"], strict=True):
        offset = (5, -9 if encoding in LABEL_BELOW else 4)
        axes.annotate(encoding, (x, y), offset, textcoords="offset points", fontsize=6)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=7)
    axes.set_xlabel("bank: mean extrapolation score over five tasks")
    save(figure, folder / "figures", "answer")


def mean_and_range(by_seed: pd.DataFrame) -> pd.DataFrame:
    """Return the columns ``rise`` (the mean), ``low`` and ``high`` of rises [C, S]."""
    return pd.DataFrame(
        {"rise": by_seed.mean(axis=1), "low": by_seed.min(axis=1), "high": by_seed.max(axis=1)}
    )


def draw_classes(axes: Axes, scores_C: np.ndarray, rises: pd.DataFrame, classes_C: np.ndarray) -> None:
    """Draw rises over scores, the best at the top right, in the shades of the classes.

    ``rises`` is a result of `mean_and_range`.
    """
    for level, (name, face) in enumerate(CLASS_LOOKS):
        in_class = np.asarray(classes_C) == level
        mean, low, high = (rises.loc[in_class, key] for key in ("rise", "low", "high"))
        axes.errorbar(
            np.asarray(scores_C)[in_class], mean, [mean - low, high - mean],
            fmt="o", color="black", mfc=face, markersize=5, elinewidth=0.7, label=name,
        )  # fmt: skip
    axes.invert_yaxis()
    axes.set_ylabel("text: rise in bits per byte (up is better)", fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def blocks(folder: Path) -> dict[str, Any]:
    """Return the correlations, that of each task of the bank, and the numbers of the sentences."""
    bank, text = bank_scores(), text_scores()
    past, rises = bank[PAST], text[PAST]
    main, classes = correlate(past, rises), correlate(CLASSES, rises)
    given = correlate(past, rises, CLASSES)
    known = correlate(BASELINE, rises)
    added = correlate(past, rises, BASELINE)
    inside = correlate(bank[IN], text[IN])
    given_inside = correlate(past, rises, text[IN])
    p_inside, p_given_inside = holm([inside.p, given_inside.p])
    rows = [
        ("bank (the main hypothesis)", main, main.p),
        ("three classes", classes, classes.p),
        ("bank, given the three classes", given, given.p),
        ("two classes, untrained vectors or angles or not", known, known.p),
        ("bank, given the two classes", added, added.p),
        ("bank and text in distribution", inside, p_inside),
        ("bank, given text in distribution", given_inside, p_given_inside),
    ]
    cells = [
        [name, f"{correlation.rho:+.2f} {correlation.interval}", format_p(p)] for name, correlation, p in rows
    ]
    by_task = []
    without = {}
    for index, task in enumerate(TASKS):
        rho = ranked(overall(past[:, [index]])) @ ranked(overall(rises))
        by_task.append([f"`{task}`", f"{rho:+.2f}"])
        without[task] = correlate(np.delete(past, index, axis=1), rises, resamples=RESAMPLES // 10).low
    return {
        "hypotheses": markdown_table(["scores", "rho, approximate 95% interval", "one-sided p"], cells),
        "tasks": markdown_table(["task of the bank", "rho"], by_task),
        "main": main,
        "classes": classes,
        "given": given,
        "added": added,
        "inside": inside,
        "without_kth": without.pop("kth"),
        "without_another": min(without.values()),
        "resamples": RESAMPLES,
    }


def format_p(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"
