"""Do synthetic tasks tell which encodings extrapolate on text? From the CSVs of the bank and of the text study.

Shapes: C encodings, T tasks, S repetitions (settings of the bank, seeds of text), N random resamples. Higher
scores are better.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from pe_experiments.comparison.statistics import holm
from pe_experiments.drawing import save
from pe_experiments.published import markdown_table, read_archive
from pe_experiments.published.pages import code_of
from pe_experiments.published.scores import FLOORS, SCORE, scored
from pe_experiments.store.directory import DIVERGED
from pe_experiments.terminal.errors import UserError

RESULTS = Path(__file__).parents[1]
# Relatives count as one. Both studies had these when the first plan was carried out; later ones are not added.
GROUPS = (("none",), ("sinusoidal",), ("learned", "learned+random_offset"), ("rope", "rope+random_subset", "p_rope"),
          ("alibi", "kerple_log", "fire"), ("t5",), ("fox",))  # fmt: skip
ENCODINGS = tuple(encoding for group in GROUPS for encoding in group)
UNSEEN = ("sinusoidal", "learned", "rope", "p_rope")  # longer inputs bring vectors or angles not trained
FALLING = ("alibi", "kerple_log", "fox")  # a bias that keeps falling with distance
TASKS = ("copy", "flip_flop", "induction", "kth", "lag")
SETTINGS = 12
TRAINED, LONGEST = 256, 2048  # bytes of context
PERMUTATIONS, RESAMPLES, BATCHES, SPLITS = 20_000, 200_000, 20, 1_000
IN, PAST = "in distribution", "past training"
CEILING = """\
If both rankings were the same, the noise of so few configurations and seeds would still leave a rho of \
{past:.2f} past training and {inside:.2f} in distribution (from random halves of both)."""

Draw = np.random.Generator
Scores = dict[
    str, np.ndarray
]  # by part; [C, T, S], NaN where a run does not count; encodings as in `ENCODINGS`
BASELINE = np.array([encoding not in UNSEEN for encoding in ENCODINGS], float)[:, None, None]
CLASSES = BASELINE + np.isin(ENCODINGS, FALLING)[:, None, None]  # 0, 1 or 2, from the formulas alone
CLASS_LOOKS = {
    0: ("untrained vectors or angles", "white"),
    1: ("others", "0.6"),
    2: ("bias keeps falling", "black"),
}
LABEL_BELOW = ("fox", "fire", "sinusoidal", "learned+random_offset", "rope+random_subset")
ANSWER = """\
**The formulas tell already which encodings extrapolate on text; the bank adds nothing that we could \
show.** Three classes, encodings whose longer inputs bring untrained vectors or angles, those whose bias \
keeps falling with distance, and the rest, rank the text models with Spearman's rho {classes.rho:.2f}. The\
 bank's scores reach {main.rho:.2f} {main.ends}; given the classes, their partial correlation is \
{given.rho:.2f} {given.ends}."""
LEFT_OUT = """\
Without `kth` the bank's interval begins at {kth:.2f}, without one of the other tasks at {others:.2f} or \
above. {resamples:,} resamples; the Monte Carlo error of an interval's lower end is {error:.4f}."""


@dataclass(frozen=True)
class Correlation:
    """Spearman's rho over encodings with its one-sided p-value, bootstrap interval and ceiling."""

    rho: float
    p: float
    low: float
    high: float
    error: float  # of the lower end, from the random resamples
    ceiling: float = float("nan")

    @property
    def ends(self) -> str:
        return f"[{self.low:.2f}, {self.high:.2f}]"


def p_in_words(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def grid(rows: pd.DataFrame, value: str, what: str) -> np.ndarray:
    """The values [C, S] of rows with columns ``label`` and ``setting``."""
    table = rows.pivot(index="label", columns="setting", values=value).reindex(ENCODINGS)
    if missing := sorted(table.index[table.isna().any(axis=1)]):
        raise UserError(f"transfer: {what} of {', '.join(missing)} is not complete; finish its sweep")
    return table.to_numpy(float).round(12)


def bank_scores(folder: Path) -> tuple[Scores, list[str]]:
    """The bank's scores of every task in the settings that were run, and the tasks."""
    runs = read_archive(folder)
    table = scored(runs, pd.read_csv(folder / FLOORS), (SCORE,))
    table = table[table["label"].isin(ENCODINGS) & table["task"].isin(TASKS)]
    table = table.join(runs.runs.set_index("name")["exact_match_in_distribution"].rename(IN), on="name")
    tasks = sorted(set(table["task"]))
    made = {part: np.full((len(ENCODINGS), len(tasks), SETTINGS), np.nan) for part in (IN, PAST)}
    for index, task in enumerate(tasks):
        own = table[table["task"] == task]
        there = sorted(set(own["setting"]))
        made[IN][:, index, there] = grid(own, IN, task)
        learned = grid(own, "learned", task) == 1
        made[PAST][:, index, there] = np.where(learned, grid(own, SCORE, task), np.nan)
    return made, tasks


def text_scores(folder: Path) -> Scores:
    """Minus bits per byte at the training length, and minus their rise to the longest context; sliding windows."""
    table = code_of(RESULTS / "text").scores(read_archive(folder))
    table = table[table["label"].isin(ENCODINGS)].rename(columns={"seed": "setting"})
    table = table.assign(**{IN: -table[TRAINED], PAST: table[TRAINED] - table[LONGEST]})
    for part in (IN, PAST):  # the worst score of any encoding
        worst = table.groupby("label")[part].mean().min()
        table[part] = table[part].mask(table["status"] == DIVERGED, worst)
    return {part: grid(table, part, "text")[:, None] for part in (IN, PAST)}


def means(scores: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """[N, C]: per task the weighted mean over the repetitions that count, 0 without any; then over tasks."""
    known = ~np.isnan(scores)
    total = np.einsum("cts,ns->nct", np.where(known, scores, 0.0), weights)
    weight = np.einsum("cts,ns->nct", known.astype(float), weights)
    return np.divide(total, weight, out=np.zeros_like(total), where=weight > 0).mean(axis=-1).round(12)


def whole(scores: np.ndarray) -> np.ndarray:
    """[C]: over all repetitions."""
    return means(scores, np.ones((1, scores.shape[-1])))[0]


def ranked(values: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Ranks [N, C], centred, of length 1 each, NaN where all are equal; ``weights`` [N, C]: as often is each there."""
    weights = np.ones_like(values) if weights is None else weights
    above = values[..., :, None] - values[..., None, :]
    ranks = np.einsum("...cd,...d->...c", (np.sign(above) + 1) / 2, weights)
    ranks -= ((ranks * weights).sum(axis=-1) / weights.sum(axis=-1))[..., None]
    return _scaled(ranks * np.sqrt(weights))


def _scaled(values: np.ndarray) -> np.ndarray:
    length = np.linalg.norm(values, axis=-1, keepdims=True)
    return values / np.where(length > 1e-9, length, np.nan)


def residuals(ranks: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The first two; of three what a regression on the third leaves of them."""
    first, second, *given = ranks
    for third in given:
        first, second = (
            _scaled(a - (a * third).sum(axis=-1, keepdims=True) * third) for a in (first, second)
        )
    return first, second


def correlate(*scores: np.ndarray, resamples: int | None = None) -> Correlation:
    """The plan's statistics of the scores of two studies; a third one makes the correlation partial.

    Residuals of ranks are permuted then, and regressed again (Freedman and Lane 1983). Encodings share the repetitions that are drawn:
    settings are the same for all of them, and runs of one seed are evaluated on the same examples. Scores with as
    many repetitions are of one study, and share them too.
    """
    draw = np.random.default_rng(0)
    ranks = [ranked(whole(own)) for own in scores]
    first, second = residuals(ranks)
    observed = float(first @ second)
    shuffled, _ = residuals([draw.permuted(np.tile(first, (PERMUTATIONS, 1)), axis=1), *ranks[1:]])
    p = (1 + (shuffled @ second >= observed - 1e-12).sum()) / (1 + PERMUTATIONS)
    drawn = [_resampled(scores, (resamples or RESAMPLES) // BATCHES, draw) for _ in range(BATCHES)]
    ends = np.array([np.nanquantile(own, [0.025, 0.975]) for own in drawn])
    low, high = np.nanquantile(np.concatenate(drawn), [0.025, 0.975])
    error = ends[:, 0].std(ddof=1) / np.sqrt(BATCHES)
    pair = scores if len(scores) == 2 else ()
    ceiling = np.sqrt(np.prod([_reliability(own, draw) for own in pair])) if pair else float("nan")
    return Correlation(observed, float(p), float(low), float(high), float(error), float(ceiling))


def _resampled(scores: Sequence[np.ndarray], times: int, draw: Draw) -> np.ndarray:
    """Rho [N] of groups of encodings drawn with replacement, over repetitions drawn with replacement."""
    counts = draw.multinomial(len(GROUPS), np.full(len(GROUPS), 1 / len(GROUPS)), size=times)
    weights = np.repeat(counts, [len(group) for group in GROUPS], axis=1).astype(float)
    sizes = {own.shape[-1] for own in scores}
    picked = {n: draw.multinomial(n, np.full(n, 1 / n), size=times).astype(float) for n in sorted(sizes)}
    first, second = residuals([ranked(means(own, picked[own.shape[-1]]), weights) for own in scores])
    return (first * second).sum(axis=-1)


def _reliability(scores: np.ndarray, draw: Draw) -> float:
    """Mean correlation of random halves of the repetitions, corrected to all (Spearman and Brown); NaN for one."""
    count = scores.shape[-1]
    if count < 2:
        return float("nan")
    half = count // 2
    order = draw.permuted(np.tile(np.arange(count), (SPLITS, 1)), axis=1)
    one, other = (means(scores, 1.0 * part) for part in (order < half, (order >= half) & (order < 2 * half)))
    mean = max(0.0, float(np.nanmean((ranked(one) * ranked(other)).sum(axis=-1))))
    return count / half * mean / (1 + (count / half - 1) * mean)


def pages(folder: Path) -> None:
    """The figure, from the CSVs of the bank and of the text study."""
    draw_scores(bank_scores(RESULTS / "bank" / "v2")[0], text_scores(RESULTS / "text"), folder / "figures")


def draw_scores(bank: Scores, text: Scores, folder: Path) -> None:
    """Past training, each encoding's score on text over its score in the bank; bars span the seeds of text."""
    figure = Figure(figsize=(4.8, 3.6), layout="constrained")
    axes = figure.subplots()
    for index, (encoding, x, own) in enumerate(
        zip(ENCODINGS, whole(bank[PAST]), -text[PAST][:, 0], strict=True)
    ):
        name, face = CLASS_LOOKS[int(CLASSES[index, 0, 0])]
        y, spans = own.mean(), [[own.mean() - own.min()], [own.max() - own.mean()]]
        look: Any = {
            "fmt": "o",
            "color": "black",
            "mfc": face,
            "markersize": 5,
            "elinewidth": 0.7,
            "label": name,
        }
        axes.errorbar(x, y, spans, **look)
        axes.annotate(
            encoding,
            (x, y),
            (5, -9 if encoding in LABEL_BELOW else 4),
            textcoords="offset points",
            fontsize=6,
        )
    handles = dict(zip(*axes.get_legend_handles_labels()[::-1], strict=True))
    figure.legend(
        [*handles.values()], [*handles], loc="outside lower center", ncols=3, frameon=False, fontsize=7
    )
    axes.invert_yaxis()  # the best is at the top right
    axes.set_xlabel("bank: mean extrapolation score over five tasks")
    axes.set_ylabel("text: rise in bits per byte (up is better)", fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    save(figure, folder, "answer")


def blocks(folder: Path) -> dict[str, str]:
    """The answer, the correlations, and each task of the bank."""
    del folder
    (bank, tasks), text = bank_scores(RESULTS / "bank" / "v2"), text_scores(RESULTS / "text")
    main, classes = correlate(bank[PAST], text[PAST]), correlate(CLASSES, text[PAST])
    given = correlate(bank[PAST], text[PAST], CLASSES)
    secondary = [correlate(bank[IN], text[IN]), correlate(bank[PAST], text[PAST], text[IN])]
    adjusted = holm([one.p for one in secondary])
    known, added = correlate(BASELINE, text[PAST]), correlate(bank[PAST], text[PAST], BASELINE)
    table = {
        "bank (the main hypothesis)": (main, main.p),
        "three classes": (classes, classes.p),
        "bank, given the three classes": (given, given.p),
        "two classes, untrained vectors or angles or not": (known, known.p),
        "bank, given the two classes": (added, added.p),
        "bank and text in distribution": (secondary[0], adjusted[0]),
        "bank, given text in distribution": (secondary[1], adjusted[1]),
    }
    rows = [[name, f"{one.rho:+.2f} {one.ends}", p_in_words(p)] for name, (one, p) in table.items()]
    lows = {
        task: correlate(np.delete(bank[PAST], n, axis=1), text[PAST], resamples=RESAMPLES // 10).low
        for n, task in enumerate(tasks)
    }
    left_out = {
        "kth": lows.pop("kth"),
        "others": min(lows.values()),
        "resamples": RESAMPLES,
        "error": main.error,
    }
    by_task = [[f"`{task}`", f"{rho(bank[PAST][:, [n]], text[PAST]):+.2f}"] for n, task in enumerate(tasks)]
    return {
        "answer": ANSWER.format(main=main, classes=classes, given=given),
        "hypotheses": markdown_table(["scores", "rho, approximate 95% interval", "one-sided p"], rows),
        "left_out": LEFT_OUT.format_map(left_out),
        "ceiling": CEILING.format(past=main.ceiling, inside=secondary[0].ceiling),
        "tasks": markdown_table(["task of the bank", "rho"], by_task),
    }


def rho(one: np.ndarray, other: np.ndarray) -> float:
    return float(ranked(whole(one)) @ ranked(whole(other)))
