"""Do the bank's scores rank text models? The analysis that ``plan.md`` fixed, on the CSVs of the two studies.

Shapes: C schemes, S seeds, N random resamples. Higher scores are better.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import rankdata

from pe_experiments.comparison.protocols import sections_of
from pe_experiments.comparison.statistics import holm
from pe_experiments.errors import UserError
from pe_experiments.plots import COLOURS, drawing, save
from pe_experiments.publishing import markdown_table, read_archive, read_table
from pe_experiments.runs import DIVERGED

RESULTS = Path(__file__).parents[1]
SCHEMES = (  # both studies had them when the plan was carried out; later ones are not added to the test
    "none", "sinusoidal", "learned", "learned+random_offset", "rope", "rope+random_subset", "p_rope", "alibi",
    "t5", "kerple_log", "fire", "fox",
)  # fmt: skip
CONTROL = "majority"
TRAINED, LONGEST = 256, 2048  # bytes of context
PERMUTATIONS, RESAMPLES, SPLITS = 20_000, 10_000, 1_000
USEFUL = 0.3  # of rho; see the plan
RELIABLE = 0.7  # a ceiling below this leaves "not useful" open
IN, PAST = "in distribution", "past training"

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
    """The values [C, S] of rows with columns ``label`` and ``seed``; means where a pair has several.

    Raises:
        UserError: a scheme lacks a seed that another has.
    """
    table = rows.pivot_table(index="label", columns="seed", values=value, dropna=False).reindex(SCHEMES)
    if missing := sorted(table.index[table.isna().any(axis=1)]):
        raise UserError(f"transfer: {what} of {', '.join(missing)} is not complete; finish its sweep")
    return table.to_numpy(float).round(12)


def bank_scores(folder: Path) -> tuple[Scores, dict[str, np.ndarray]]:
    """The bank's scores in distribution and past training, and the latter of each task separately."""
    runs = read_archive(folder)
    points = runs.curves.merge(runs.runs[["name", "max_length"]], on="name")
    points = points[(points["task"] != CONTROL) & points["label"].isin(SCHEMES)]
    titles: dict[Any, str] = {s.protocol: ", ".join([s.task, *s.told_apart_by]) for s in sections_of(runs)}
    tasks: dict[str, dict[str, np.ndarray]] = {IN: {}, PAST: {}}
    for part, factor in ((IN, 1), (PAST, 2)):
        chosen = points[points["content_length"] == factor * points["max_length"]]
        for protocol, rows in chosen.groupby("protocol"):
            tasks[part][titles[protocol]] = grid(rows, "exact_match", titles[protocol])
    means = {part: np.mean(list(by_task.values()), axis=0) for part, by_task in tasks.items()}
    return means, dict(sorted(tasks[PAST].items()))


def text_scores(folder: Path) -> Scores:
    """Minus bits per byte at the training length, and minus their rise to the longest context; sliding windows."""
    runs, lines = read_table(folder / "runs.csv"), read_table(folder / "text.csv")
    lines = lines[(lines["windows"] == "sliding") & (lines["slice"] == "all")]
    wide = lines.pivot(index="name", columns="length", values="bits_per_byte")
    table = runs.merge(wide, left_on="name", right_index=True, how="left")
    table["label"] = [re.sub(r"\([^)]*\)", "", label) for label in table["label"]]  # as the bank calls them
    table = table[table["label"].isin(SCHEMES)].assign(
        **{IN: -table[TRAINED], PAST: table[TRAINED] - table[LONGEST]}
    )
    for part in (IN, PAST):  # the worst score of any scheme
        worst = table.groupby("label")[part].mean().min()
        table[part] = table[part].mask(table["status"] == DIVERGED, worst)
    return {part: grid(table, part, "text") for part in (IN, PAST)}


def ranked(values: np.ndarray) -> np.ndarray:
    """Ranks along the last axis, centred and scaled to length 1; NaN where all values are equal."""
    ranks = rankdata(values, axis=-1) - (values.shape[-1] + 1) / 2
    length = np.linalg.norm(ranks, axis=-1, keepdims=True)
    return ranks / np.where(length > 0, length, np.nan)


def residual(one: np.ndarray, given: np.ndarray) -> np.ndarray:
    """What a regression of the ranks of ``one`` on those of ``given`` leaves, scaled to length 1."""
    a, c = ranked(one), ranked(given)
    left = a - (a * c).sum(axis=-1, keepdims=True) * c
    length = np.linalg.norm(left, axis=-1, keepdims=True)
    return left / np.where(length > 1e-9, length, np.nan)


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


def _resampled(
    scores: Sequence[np.ndarray], picked: np.ndarray, draw: np.random.Generator
) -> list[np.ndarray]:
    """Means [N, C] of the picked schemes over seeds drawn with replacement, the same ones for all scores."""
    seeds = scores[0].shape[1]
    weights = draw.multinomial(seeds, np.full(seeds, 1 / seeds), size=len(picked)) / seeds
    return [np.take_along_axis((weights @ own.T).round(12), picked, axis=1) for own in scores]


def _reliability(scores: np.ndarray, draw: np.random.Generator) -> float:
    """Mean correlation of random halves of the seeds, corrected to all seeds (Spearman and Brown); NaN for one."""
    seeds = scores.shape[1]
    if seeds < 2:
        return float("nan")
    half = seeds // 2
    orders = (draw.permutation(seeds) for _ in range(SPLITS))
    halves = (
        (scores[:, own[:half]].mean(axis=1), scores[:, own[half : 2 * half]].mean(axis=1)) for own in orders
    )
    mean = max(0.0, float(np.nanmean([rho(*pair) for pair in halves])))
    return seeds / half * mean / (1 + (seeds / half - 1) * mean)


def pages_without_runs(folder: Path) -> None:
    """``README.md`` and its figure, from the CSVs of the bank and of the text study."""
    bank, tasks = bank_scores(RESULTS / "bank" / "v1")
    text = text_scores(RESULTS / "text")
    made = {
        PAST: correlate(bank[PAST], text[PAST]),
        IN: correlate(bank[IN], text[IN]),
        "partial": correlate(bank[PAST], text[PAST], text[IN]),
    }
    (folder / "figures").mkdir(exist_ok=True)
    draw_scores(bank, text, folder / "figures")
    (folder / "README.md").write_text(page(made, tasks, text[PAST]))


def readme(folder: Path) -> str:
    """One line in the project's README."""
    made = correlate(bank_scores(RESULTS / "bank" / "v1")[0][PAST], text_scores(RESULTS / "text")[PAST])
    return f"""*Does the figure above say anything about text?* Over {len(SCHEMES)} schemes, scores past the training lengths in the bank and on text correlate
(Spearman's rho {made.interval}, one-sided p {p_in_words(made.p)}). The rule fixed before the runs asks for an interval on one side of {USEFUL}; by it
the answer is *{outcome(made).partition("**")[2].partition("**")[0].lower()}*: [transfer](results/transfer/README.md).
"""


def draw_scores(bank: Scores, text: Scores, folder: Path) -> None:
    """Each scheme's score on text over its score in the bank; bars span the seeds."""
    with drawing():
        figure = Figure(figsize=(7.2, 3.6), layout="constrained")
        for axes, part in zip(figure.subplots(1, 2), (PAST, IN), strict=True):
            bar = {"color": COLOURS[0], "linewidth": 0.8, "alpha": 0.6}
            for values, own in zip(bank[part], -text[part], strict=True):
                x, y = values.mean(), own.mean()
                axes.plot([x, x], [own.min(), own.max()], **bar)
                axes.plot([values.min(), values.max()], [y, y], **bar)
                axes.plot(x, y, "o", color=COLOURS[0], markersize=4)
            axes.invert_yaxis()  # the best is at the top right
            axes.set_title(part)
            axes.set_xlabel("bank: exact match, mean over seven tasks")
            axes.spines[["top", "right"]].set_visible(False)
            rise = f"text: bits per byte at {LONGEST:,} minus {TRAINED} bytes"
            axes.set_ylabel(rise if part == PAST else f"text: bits per byte at {TRAINED} bytes")
        figure.draw_without_rendering()  # so that places on paper are known
        for axes, part in zip(figure.axes, (PAST, IN), strict=True):
            _name(axes, bank[part].mean(axis=1), -text[part].mean(axis=1))
        save(figure, folder, "answer")


def _name(axes: Axes, xs: np.ndarray, ys: np.ndarray) -> None:
    """Names beside points, each on the first of six sides where it covers no point and no other name."""
    points = axes.transData.transform(np.column_stack([xs, ys])) * 72 / axes.figure.dpi
    taken = [(x - 2, x + 2, y - 2, y + 2) for x, y in points]
    for scheme, x, y, (left, low) in zip(SCHEMES, xs, ys, points, strict=True):
        width = 3.2 * len(scheme)
        for sign, up in ((1, 2), (-1, 2), (1, -8), (-1, -8), (1, 9), (-1, 9)):
            start = left + 4 if sign > 0 else left - 4 - width
            box = (start, start + width, low + up, low + up + 6)
            if not any(box[0] < b and a < box[1] and box[2] < d and c < box[3] for a, b, c, d in taken):
                break
        taken.append(box)
        side = "left" if sign > 0 else "right"
        axes.annotate(scheme, (x, y), (4 * sign, up), textcoords="offset points", fontsize=6, ha=side)


def outcome(main: Correlation) -> str:
    """*Useful*, *not useful* or *open*, as the plan says."""
    if main.low > USEFUL:
        return f"**Useful**: the whole interval lies above {USEFUL}."
    if main.high < USEFUL and main.ceiling >= RELIABLE:
        return f"**Not useful** for choosing an encoding for text of this size: the whole interval lies below {USEFUL}."
    if main.p <= 0.05:
        return f"**Open**: rho is significantly above 0, but its interval contains {USEFUL}."
    return (
        f"**Open**: the interval contains {USEFUL}, and no correlation is shown. That is no evidence of none."
    )


def page(made: Mapping[str, Correlation], tasks: Mapping[str, np.ndarray], text: np.ndarray) -> str:
    """``README.md``."""
    main = made[PAST]
    adjusted = [p_in_words(p) for p in holm([made[IN].p, made["partial"].p])]
    rows = [
        ["past training (the main hypothesis)", *main.row, "–"],
        ["in distribution", *made[IN].row, adjusted[0]],
        ["past training, given text in distribution", *made["partial"].row, adjusted[1]],
    ]
    by_task = [
        [f"`{task}`", correlate(scores, text).interval if np.ptp(scores.mean(axis=1)) > 0 else f"all schemes {scores.mean():.0f}"]
        for task, scores in tasks.items()
    ]  # fmt: skip
    return f"""# Do the bank's scores rank text models?

![Scores on text over scores in the bank](figures/answer.png)

Over {len(SCHEMES)} schemes Spearman's rho between the bank's scores at twice the training length and minus the rise in bits per byte of
text models from {TRAINED} to {LONGEST:,} bytes of context (higher is better in both) is {main.interval}, one-sided p {p_in_words(main.p)}.
{outcome(main)}

{markdown_table(["scores", "rho, approximate 95 % interval", "one-sided p", "ceiling", "p by Holm"], rows)}

Question, scores, tests and the reading of each outcome were written down [before any run of the text study](plan.md); the bank's
results were known. *Ceiling*: the rho to expect from the noise between seeds alone if both true rankings were the same, estimated by
correlating random halves of the seeds; it does not cover the choice of the learning rates or of the corpus. With {len(SCHEMES)}
schemes power is low: a true correlation of 0.5 is found in about half of such studies. Several schemes are relatives (RoPE and
p-RoPE, ALiBi and KERPLE), which the test ignores.

## By task, past training (described, not tested)

{markdown_table(["task of the bank", "rho, approximate 95 % interval"], by_task)}

The scores are those of [the bank](../bank/v1/README.md) and of [text](../text/README.md); this page follows from their CSVs
(`make results`). It holds for models of the bank's size: two layers of width 64.
"""
