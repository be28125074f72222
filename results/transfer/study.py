"""Do the bank's scores rank text models? The analysis that ``plan.md`` fixed, on the CSVs of the two studies.

Shapes: C schemes, T tasks, S repetitions (settings of the bank, seeds of text), N random resamples. Higher
scores are better.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from pe_experiments.comparison.statistics import ALPHA, holm
from pe_experiments.comparison.words import listed
from pe_experiments.drawing import save, styles
from pe_experiments.published import markdown_table, read_archive
from pe_experiments.published.scores import FLOORS, SCORE, scored
from pe_experiments.store.directory import DIVERGED
from pe_experiments.terminal.errors import UserError

RESULTS = Path(__file__).parents[1]
# Relatives count as one. Both studies had these when the first plan was carried out; later ones are not added.
GROUPS = (("none",), ("sinusoidal",), ("learned", "learned+random_offset"), ("rope", "rope+random_subset", "p_rope"),
          ("alibi", "kerple_log", "fire"), ("t5",), ("fox",))  # fmt: skip
SCHEMES = tuple(scheme for group in GROUPS for scheme in group)
UNSEEN = ("sinusoidal", "learned", "rope", "p_rope")  # longer inputs bring vectors or angles not trained
TASKS = ("copy", "flip_flop", "induction", "kth", "lag")
SETTINGS = 12
TRAINED, LONGEST = 256, 2048  # bytes of context
PERMUTATIONS, RESAMPLES, BATCHES, SPLITS = 20_000, 200_000, 20, 1_000
USEFUL = 0.3  # of rho; see the plan
RELIABLE = 0.7  # a ceiling below this leaves "not useful" open
IN, PAST = "in distribution", "past training"

Draw = np.random.Generator
Scores = dict[str, np.ndarray]  # by part; [C, T, S], NaN where a run does not count; schemes as in `SCHEMES`
BASELINE = np.array([scheme not in UNSEEN for scheme in SCHEMES], float)[:, None, None]


@dataclass(frozen=True)
class Correlation:
    """Spearman's rho over schemes with its one-sided p-value, bootstrap interval and ceiling."""

    rho: float
    p: float
    low: float
    high: float
    error: float  # of the lower end, from the random resamples
    ceiling: float = float("nan")

    @property
    def interval(self) -> str:
        return f"{self.rho:+.2f} [{self.low:+.2f}, {self.high:+.2f}]"


def p_in_words(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def grid(rows: pd.DataFrame, value: str, what: str) -> np.ndarray:
    """The values [C, S] of rows with columns ``label`` and ``setting``."""
    table = rows.pivot(index="label", columns="setting", values=value).reindex(SCHEMES)
    if missing := sorted(table.index[table.isna().any(axis=1)]):
        raise UserError(f"transfer: {what} of {', '.join(missing)} is not complete; finish its sweep")
    return table.to_numpy(float).round(12)


def bank_scores(folder: Path) -> tuple[Scores, list[str]]:
    """The bank's scores of every task in the settings that were run, and the tasks."""
    runs = read_archive(folder)
    table = scored(runs, pd.read_csv(folder / FLOORS), (SCORE,))
    table = table[table["label"].isin(SCHEMES) & table["task"].isin(TASKS)]
    table = table.join(runs.runs.set_index("name")["exact_match_in_distribution"].rename(IN), on="name")
    tasks = sorted(set(table["task"]))
    made = {part: np.full((len(SCHEMES), len(tasks), SETTINGS), np.nan) for part in (IN, PAST)}
    for index, task in enumerate(tasks):
        own = table[table["task"] == task]
        there = sorted(set(own["setting"]))
        made[IN][:, index, there] = grid(own, IN, task)
        learned = grid(own, "learned", task) == 1
        made[PAST][:, index, there] = np.where(learned, grid(own, SCORE, task), np.nan)
    return made, tasks


def text_scores(folder: Path) -> Scores:
    """Minus bits per byte at the training length, and minus their rise to the longest context; sliding windows."""
    runs = read_archive(folder)
    lines = runs.text[(runs.text["windows"] == "sliding") & (runs.text["slice"] == "all")]
    table = runs.runs.join(lines.pivot(index="name", columns="length", values="bits_per_byte"), on="name")
    table["label"] = table["label"].str.replace(r"\([^)]*\)", "", regex=True)  # as the bank calls them
    table = table[table["label"].isin(SCHEMES)].rename(columns={"seed": "setting"})
    table = table.assign(**{IN: -table[TRAINED], PAST: table[TRAINED] - table[LONGEST]})
    for part in (IN, PAST):  # the worst score of any scheme
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


def correlate(*scores: np.ndarray) -> Correlation:
    """The plan's statistics of the scores of two studies; a third one makes the correlation partial.

    Residuals of ranks are permuted then, and regressed again (Freedman and Lane 1983). Schemes share the repetitions that are drawn:
    settings are the same for all of them, and runs of one seed are evaluated on the same examples. Scores with as
    many repetitions are of one study, and share them too.
    """
    draw = np.random.default_rng(0)
    ranks = [ranked(whole(own)) for own in scores]
    first, second = residuals(ranks)
    observed = float(first @ second)
    shuffled, _ = residuals([draw.permuted(np.tile(first, (PERMUTATIONS, 1)), axis=1), *ranks[1:]])
    p = (1 + (shuffled @ second >= observed - 1e-12).sum()) / (1 + PERMUTATIONS)
    drawn = [_resampled(scores, RESAMPLES // BATCHES, draw) for _ in range(BATCHES)]
    ends = np.array([np.nanquantile(own, [0.025, 0.975]) for own in drawn])
    low, high = np.nanquantile(np.concatenate(drawn), [0.025, 0.975])
    error = ends[:, 0].std(ddof=1) / np.sqrt(BATCHES)
    pair = scores if len(scores) == 2 else ()
    ceiling = np.sqrt(np.prod([_reliability(own, draw) for own in pair])) if pair else float("nan")
    return Correlation(observed, float(p), float(low), float(high), float(error), float(ceiling))


def _resampled(scores: Sequence[np.ndarray], times: int, draw: Draw) -> np.ndarray:
    """Rho [N] of groups of schemes drawn with replacement, over repetitions drawn with replacement."""
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
    """Past training, each scheme's score on text over its score in the bank; bars span the seeds of text."""
    figure, looks = Figure(figsize=(4.8, 3.4), layout="constrained"), styles(SCHEMES)
    axes = figure.subplots()
    for index, (scheme, x, own) in enumerate(zip(SCHEMES, whole(bank[PAST]), -text[PAST][:, 0], strict=True)):
        (colour, marker), y = looks[scheme], own.mean()
        look: Any = {"color": colour, "marker": marker, "mfc": "white" if scheme in UNSEEN else colour}
        axes.errorbar(x, y, [[y - own.min()], [own.max() - y]], markersize=5, elinewidth=0.7, **look)
        axes.annotate(scheme, (x, y), (5, -9 if index % 2 else 4), textcoords="offset points", fontsize=6)
    axes.invert_yaxis()  # the best is at the top right
    axes.set_xlabel("bank: score, 1x to 8x, mean over tasks")
    axes.set_ylabel("text: rise in bits per byte (up is better)", fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    save(figure, folder, "answer")


def outcome(main: Correlation) -> str:
    """*Useful*, *not useful* or *open*, as the plan says."""
    if main.low > USEFUL:
        return f"**Useful** for choosing an encoding for text of this size, by a plan rewritten with the text scores known: the whole interval lies above {USEFUL}."
    if main.high < USEFUL and main.ceiling >= RELIABLE:
        return f"**Not useful** for choosing an encoding for text of this size: the whole interval lies below {USEFUL}."
    if main.p <= ALPHA:
        return f"**Open**: the orders agree more than by chance, but how closely is uncertain: the interval contains {USEFUL}."
    return f"**Open**: the interval contains {USEFUL}; no correlation is shown, which is no evidence of none."


def blocks(folder: Path) -> dict[str, str]:
    """The answer, the hypotheses, and each task of the bank."""
    del folder
    (bank, tasks), text = bank_scores(RESULTS / "bank" / "v2"), text_scores(RESULTS / "text")
    main = correlate(bank[PAST], text[PAST])
    known, added = correlate(BASELINE, text[PAST]), correlate(bank[PAST], text[PAST], BASELINE)
    others = [correlate(bank[IN], text[IN]), correlate(bank[PAST], text[PAST], text[IN])]
    adjusted = holm([one.p for one in others])
    names = ("past training (the main hypothesis)", "the baseline and text past training",
             "past training, given the baseline", "in distribution", "past training, given text in distribution")  # fmt: skip
    rows = [
        [name, one.interval, p_in_words(p), "–" if np.isnan(one.ceiling) else f"{one.ceiling:.2f}"]
        for name, one, p in zip(names, (main, known, added, *others), [main.p, known.p, added.p, *adjusted], strict=True)
    ]  # fmt: skip
    run = [task in tasks and bool(np.isfinite(bank[IN][:, tasks.index(task)]).all()) for task in TASKS]
    interim = f"*Interim*: {sum(run)} of {len(TASKS)} tasks are run in all settings, and there is no verdict before."
    more = (
        "the bank adds to that"
        if added.low > 0
        else "test and interval disagree on whether the bank adds to that"
    )
    verdict = more if added.p <= ALPHA else "that the bank adds to it is not shown"
    known_alone = f"Knowing only which schemes meet vectors or angles that were not trained ({listed([f'`{one}`' for one in UNSEEN])}) gives {known.rho:+.2f}"
    final = f"{outcome(main)} {known_alone}; {verdict} (given that, {added.interval}, one-sided p {p_in_words(added.p)})."
    seen, other = (rho(bank[PAST][own], text[PAST][own]) for own in (BASELINE.ravel() == n for n in (1, 0)))
    as_0 = rho(np.where(np.isnan(bank[PAST]) & ~np.isnan(bank[IN]), 0.0, bank[PAST]), text[PAST])
    return {
        "answer": f"{'' if all(run) else f'{interim} '}Rank correlation of the scores past training, in the bank and on text: {main.interval} over "
        f"{len(SCHEMES)} schemes and {len(tasks)} tasks. {final if all(run) else f'{known_alone}.'}",
        "hypotheses": markdown_table(["scores", "rho, approximate 95 % interval", "one-sided p", "ceiling"], rows),
        "unseen": f"Among the {int(BASELINE.sum())} schemes that bring nothing untrained, rho is {seen:+.2f}, among "
        f"the {len(UNSEEN)} others {other:+.2f}; with 0 in the settings that were not learned, "
        f"among all 12 {as_0:+.2f} (described, not planned).",
        "error": f"- {RESAMPLES:,} resamples; the Monte Carlo error of the main interval's lower end is {main.error:.4f}.",
        "tasks": markdown_table(["task of the bank", "settings run", "rho"], list(_by_task(bank, text[PAST], tasks))),
    }  # fmt: skip


def rho(one: np.ndarray, other: np.ndarray) -> float:
    return float(ranked(whole(one)) @ ranked(whole(other)))


def _by_task(bank: Scores, text: np.ndarray, tasks: Sequence[str]) -> Iterator[list[str]]:
    for index, task in enumerate(tasks):
        settings = (~np.isnan(bank[IN][0, index])).sum()
        yield [f"`{task}`", str(settings), f"{rho(bank[PAST][:, [index]], text):+.2f}"]
