"""Do the bank's scores rank text models? The analysis that ``plan.md`` fixed, on the CSVs of the two studies.

Shapes: C schemes, S seeds, N random resamples. Higher scores are better.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.stats import rankdata

from pe_experiments.comparison.statistics import holm
from pe_experiments.drawing import legend_below, save, styles
from pe_experiments.published import markdown_table, read_archive, titled
from pe_experiments.store.directory import DIVERGED
from pe_experiments.terminal.errors import UserError

RESULTS = Path(__file__).parents[1]
SCHEMES = (  # both studies had them when the plan was carried out; later ones are not added to the test
    "none", "sinusoidal", "learned", "learned+random_offset", "rope", "rope+random_subset", "p_rope", "alibi",
    "t5", "kerple_log", "fire", "fox",
)  # fmt: skip
CONTROL = "majority"
TRAINED, LONGEST = 256, 2048  # bytes of context
PERMUTATIONS, RESAMPLES, SPLITS = 20_000, 100_000, 1_000
USEFUL = 0.3  # of rho; see the plan
RELIABLE = 0.7  # a ceiling below this leaves "not useful" open
IN, PAST = "in distribution", "past training"
RHO = "rho, approximate 95 % interval"

Draw = np.random.Generator
Scores = Mapping[str, np.ndarray]  # by part, [C, S]; schemes in the order of `SCHEMES`


@dataclass(frozen=True)
class Correlation:
    """Spearman's rho over schemes with its one-sided p-value, bootstrap interval and ceiling."""

    rho: float
    p: float
    low: float
    high: float
    ceiling: float = float("nan")

    @property
    def interval(self) -> str:
        return f"{self.rho:+.2f} [{self.low:+.2f}, {self.high:+.2f}]"

    @property
    def row(self) -> list[str]:
        return [self.interval, p_in_words(self.p), "–" if np.isnan(self.ceiling) else f"{self.ceiling:.2f}"]


def p_in_words(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def grid(rows: pd.DataFrame, value: str, what: str) -> np.ndarray:
    """The values [C, S] of rows with columns ``label`` and ``seed``; means where a pair has several."""
    table = rows.pivot_table(index="label", columns="seed", values=value, dropna=False).reindex(SCHEMES)
    if missing := sorted(table.index[table.isna().any(axis=1)]):
        raise UserError(f"transfer: {what} of {', '.join(missing)} is not complete; finish its sweep")
    return table.to_numpy(float).round(12)


def bank_scores(folder: Path) -> tuple[Scores, dict[str, np.ndarray]]:
    """The bank's scores in distribution and past training, and the latter of each task separately."""
    runs = read_archive(folder)
    points = runs.curves.merge(titled(runs)[["name", "max_length", "title"]], on="name")
    points = points[(points["task"] != CONTROL) & points["label"].isin(SCHEMES)]
    tasks: dict[str, dict[str, np.ndarray]] = {IN: {}, PAST: {}}
    for part, factor in ((IN, 1), (PAST, 2)):
        chosen = points[points["content_length"] == factor * points["max_length"]]
        for (_, title), rows in chosen.groupby(["protocol", "title"]):
            tasks[part][str(title)] = grid(rows, "exact_match", str(title))
    means = {part: np.mean(list(by_task.values()), axis=0) for part, by_task in tasks.items()}
    return means, dict(sorted(tasks[PAST].items()))


def text_scores(folder: Path) -> Scores:
    """Minus bits per byte at the training length, and minus their rise to the longest context; sliding windows."""
    runs = read_archive(folder)
    lines = runs.text[(runs.text["windows"] == "sliding") & (runs.text["slice"] == "all")]
    table = runs.runs.join(lines.pivot(index="name", columns="length", values="bits_per_byte"), on="name")
    table["label"] = table["label"].str.replace(r"\([^)]*\)", "", regex=True)  # as the bank calls them
    table = table[table["label"].isin(SCHEMES)]
    table = table.assign(**{IN: -table[TRAINED], PAST: table[TRAINED] - table[LONGEST]})
    for part in (IN, PAST):  # the worst score of any scheme
        worst = table.groupby("label")[part].mean().min()
        table[part] = table[part].mask(table["status"] == DIVERGED, worst)
    return {part: grid(table, part, "text") for part in (IN, PAST)}


def ranked(values: np.ndarray) -> np.ndarray:
    """Ranks along the last axis, centred and scaled to length 1; NaN where all values are equal."""
    return _scaled(rankdata(values, axis=-1) - (values.shape[-1] + 1) / 2)


def residual(one: np.ndarray, given: np.ndarray) -> np.ndarray:
    """What a regression of the ranks of ``one`` on those of ``given`` leaves, scaled to length 1."""
    a, c = ranked(one), ranked(given)
    return _scaled(a - (a * c).sum(axis=-1, keepdims=True) * c)


def _scaled(values: np.ndarray) -> np.ndarray:
    length = np.linalg.norm(values, axis=-1, keepdims=True)
    return values / np.where(length > 1e-9, length, np.nan)


def rho(one: np.ndarray, other: np.ndarray, given: np.ndarray | None = None) -> np.ndarray:
    """Spearman's correlation along the last axis; partial where ``given`` is a third score."""
    if given is None:
        return (ranked(one) * ranked(other)).sum(axis=-1)
    return (residual(one, given) * residual(other, given)).sum(axis=-1)


def correlate(one: np.ndarray, other: np.ndarray, given: np.ndarray | None = None) -> Correlation:
    """The plan's statistics of scores [C, S] of two studies.

    ``given``, of the same study as ``other``, makes the correlation partial; residuals of ranks are permuted then
    (Freedman and Lane 1983). All schemes of a study share the seeds that are drawn, since runs of one seed are
    evaluated on the same examples.
    """
    draw, schemes = np.random.default_rng(0), len(one)
    means = [scores.mean(axis=1) for scores in (one, other, given) if scores is not None]
    observed = float(rho(*means))
    first, second = (ranked(m) if given is None else residual(m, means[2]) for m in means[:2])
    shuffled = draw.permuted(np.tile(first, (PERMUTATIONS, 1)), axis=1)
    p = (1 + (shuffled @ second >= observed - 1e-12).sum()) / (1 + PERMUTATIONS)
    picked = draw.integers(schemes, size=(RESAMPLES, schemes))
    firsts = _resampled([one], picked, draw)
    seconds = _resampled([other] if given is None else [other, given], picked, draw)
    low, high = np.nanquantile(rho(*firsts, *seconds), [0.025, 0.975])
    ceiling = np.sqrt(_reliability(one, draw) * _reliability(other, draw)) if given is None else float("nan")
    return Correlation(observed, float(p), float(low), float(high), float(ceiling))


def _resampled(scores: Sequence[np.ndarray], picked: np.ndarray, draw: Draw) -> list[np.ndarray]:
    """Means [N, C] of the picked schemes over seeds drawn with replacement, the same ones for all scores."""
    seeds = scores[0].shape[1]
    weights = draw.multinomial(seeds, np.full(seeds, 1 / seeds), size=len(picked)) / seeds
    return [np.take_along_axis((weights @ own.T).round(12), picked, axis=1) for own in scores]


def _reliability(scores: np.ndarray, draw: Draw) -> float:
    """Mean correlation of random halves of the seeds, corrected to all seeds (Spearman and Brown); NaN for one."""
    seeds = scores.shape[1]
    if seeds < 2:
        return float("nan")
    half = seeds // 2
    mixed = (scores[:, draw.permutation(seeds)] for _ in range(SPLITS))
    halves = ((own[:, :half].mean(axis=1), own[:, half : 2 * half].mean(axis=1)) for own in mixed)
    mean = max(0.0, float(np.nanmean([rho(*pair) for pair in halves])))
    return seeds / half * mean / (1 + (seeds / half - 1) * mean)


def pages(folder: Path) -> None:
    """The figure, from the CSVs of the bank and of the text study."""
    draw_scores(bank_scores(RESULTS / "bank" / "v1")[0], text_scores(RESULTS / "text"), folder / "figures")


def draw_scores(bank: Scores, text: Scores, folder: Path) -> None:
    """Each scheme's score on text over its score in the bank; bars span the seeds."""
    figure, looks = Figure(figsize=(7.2, 3.4), layout="constrained"), styles(SCHEMES)
    for axes, part in zip(figure.subplots(1, 2), (PAST, IN), strict=True):
        for scheme, values, own in zip(SCHEMES, bank[part], -text[part], strict=True):
            (colour, marker), x, y = looks[scheme], values.mean(), own.mean()
            ends = [[x - values.min()], [values.max() - x]], [[y - own.min()], [own.max() - y]]
            axes.errorbar(x, y, ends[1], ends[0], color=colour, marker=marker, markersize=5, elinewidth=0.7)
        axes.invert_yaxis()  # the best is at the top right
        axes.set_title(part)
        axes.set_xlabel("bank: exact match, mean over seven tasks")
        axes.spines[["top", "right"]].set_visible(False)
        rise = f"text: bits per byte at {LONGEST:,} minus {TRAINED} bytes"
        axes.set_ylabel(rise if part == PAST else f"text: bits per byte at {TRAINED} bytes")
    legend_below(figure, looks, SCHEMES)
    save(figure, folder, "answer")


def outcome(main: Correlation) -> str:
    """*Useful*, *not useful* or *open*, as the plan says."""
    if main.low > USEFUL:
        return f"**Useful**: the whole interval lies above {USEFUL}."
    if main.high < USEFUL and main.ceiling >= RELIABLE:
        return f"**Not useful** for choosing an encoding for text of this size: the whole interval lies below {USEFUL}."
    if main.p <= 0.05:
        return f"**Open**: the orders agree more than by chance, but how closely is uncertain: the interval contains {USEFUL}."
    return f"**Open**: the interval contains {USEFUL}; no correlation is shown, which is no evidence of none."


def blocks(folder: Path) -> dict[str, str]:
    """The answer, the three hypotheses, and each task of the bank."""
    del folder
    (bank, tasks), text = bank_scores(RESULTS / "bank" / "v1"), text_scores(RESULTS / "text")
    made = {
        "past training (the main hypothesis)": correlate(bank[PAST], text[PAST]),
        "in distribution": correlate(bank[IN], text[IN]),
        "past training, given text in distribution": correlate(bank[PAST], text[PAST], text[IN]),
    }
    main, *others = made.values()
    adjusted = ["–", *map(p_in_words, holm([one.p for one in others]))]
    rows = [[name, *one.row, p] for (name, one), p in zip(made.items(), adjusted, strict=True)]
    by_task = [
        [f"`{task}`", correlate(scores, text[PAST]).interval if np.ptp(scores.mean(axis=1)) > 0 else f"all schemes {scores.mean():.0f}"]
        for task, scores in tasks.items()
    ]  # fmt: skip
    return {
        "answer": f"Over {len(SCHEMES)} schemes, ranks past the training lengths in the bank and on text correlate: "
        f"{main.interval}, where 1 is the same order and 0 none (p {p_in_words(main.p)}). {outcome(main)}",
        "hypotheses": markdown_table(["scores", RHO, "one-sided p", "ceiling", "p by Holm"], rows),
        "tasks": markdown_table(["task of the bank", RHO], by_task),
    }
