"""Do the bank's scores rank text models? The analysis that ``plan.md`` fixed, on the CSVs of the two studies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.stats import rankdata

from pe_experiments.comparison.protocols import sections_of
from pe_experiments.comparison.statistics import holm
from pe_experiments.plots import COLOURS, drawing, save
from pe_experiments.publishing import markdown_table, read_archive, read_table

RESULTS = Path(__file__).parents[1]
CONTROL = "majority"
TRAINED, LONGEST = 256, 2048  # bytes of context
PERMUTATIONS, RESAMPLES, SPLITS = 20_000, 10_000, 1_000
USEFUL = 0.3  # of rho; see the plan
IN, PAST = "in distribution", "past training"

Scores = dict[str, np.ndarray]  # by scheme, a value per seed; higher is better


@dataclass(frozen=True)
class Correlation:
    """Spearman's rho over schemes with its one-sided p-value, bootstrap interval and ceiling."""

    rho: float
    p: float
    low: float
    high: float
    ceiling: float = float("nan")

    @property
    def row(self) -> list[str]:
        ceiling = "–" if np.isnan(self.ceiling) else f"{self.ceiling:.2f}"
        return [f"{self.rho:+.2f} [{self.low:+.2f}, {self.high:+.2f}]", f"{self.p:.3f}", ceiling]


def bank_scores(folder: Path) -> tuple[dict[str, Scores], dict[str, Scores]]:
    """The bank's scores in distribution and past training, and the latter of each task alone."""
    runs = read_archive(folder)
    points = runs.curves.merge(runs.runs[["name", "max_length"]], on="name")
    points = points[points["task"] != CONTROL]
    at = {IN: points["max_length"], PAST: 2 * points["max_length"]}
    chosen = {part: points[points["content_length"] == length] for part, length in at.items()}
    made = {
        part: _by_scheme(rows.groupby(["label", "seed"])["exact_match"].mean())
        for part, rows in chosen.items()
    }
    titles = {s.protocol: ", ".join([s.task, *s.told_apart_by]) for s in sections_of(runs)}
    tasks = {
        titles[protocol]: _by_scheme(rows.set_index(["label", "seed"])["exact_match"])
        for protocol, rows in chosen[PAST].groupby("protocol")
    }
    return made, dict(sorted(tasks.items()))


def _by_scheme(values: pd.Series) -> Scores:
    """``values`` is indexed by label and seed."""
    return {str(label): own.to_numpy(float) for label, own in values.groupby("label")}


def text_scores(folder: Path) -> dict[str, Scores]:
    """Minus bits per byte at the training length, and minus their rise to the longest context; sliding windows."""
    runs, lines = read_table(folder / "runs.csv"), read_table(folder / "text.csv")
    lines = lines[(lines["windows"] == "sliding") & (lines["slice"] == "all")]
    wide = lines.pivot(index="name", columns="length", values="bits_per_byte")
    table = runs.merge(wide, left_on="name", right_index=True, how="left")
    # Without arguments, as the bank calls them; a run that diverged is the worst of all.
    labels = [label.partition("(")[0] for label in table["label"]]
    parts = {IN: -table[TRAINED], PAST: table[TRAINED] - table[LONGEST]}
    filled = {part: values.fillna(values.min()).set_axis(labels) for part, values in parts.items()}
    return {part: _by_scheme(values.rename_axis("label")) for part, values in filled.items()}


def ranked(values: np.ndarray) -> np.ndarray:
    """Ranks along the last axis, centred and scaled to length 1."""
    ranks = rankdata(values, axis=-1) - (values.shape[-1] + 1) / 2
    return ranks / np.maximum(np.linalg.norm(ranks, axis=-1, keepdims=True), 1e-12)


def rho(one: np.ndarray, other: np.ndarray, given: np.ndarray | None = None) -> np.ndarray:
    """Spearman's correlation along the last axis; partial where ``given`` is a third score."""
    a, b = ranked(one), ranked(other)
    plain = (a * b).sum(axis=-1)
    if given is None:
        return plain
    c = ranked(given)
    ac, bc = (a * c).sum(axis=-1), (b * c).sum(axis=-1)
    return (plain - ac * bc) / np.sqrt(np.maximum((1 - ac**2) * (1 - bc**2), 1e-12))


def correlate(one: Scores, other: Scores, given: Scores | None = None) -> Correlation:
    """The plan's statistics of two scores; ``given`` makes the correlation partial."""
    schemes = sorted(one)
    generator = np.random.default_rng(0)
    scores = [scores for scores in (one, other, given) if scores is not None]
    means = [np.array([score[scheme].mean() for scheme in schemes]) for score in scores]
    observed = float(rho(*means))
    shuffled = generator.permuted(np.tile(means[0], (PERMUTATIONS, 1)), axis=1)
    p = (1 + (rho(shuffled, *means[1:]) >= observed - 1e-12).sum()) / (1 + PERMUTATIONS)
    picks = generator.integers(len(schemes), size=(RESAMPLES, len(schemes)))
    drawn = [np.take_along_axis(_resampled(score, schemes, generator), picks, axis=1) for score in scores]
    low, high = np.quantile(rho(*drawn), [0.025, 0.975])
    ceiling = np.sqrt(_reliability(one, generator) * _reliability(other, generator))
    return Correlation(observed, float(p), float(low), float(high), float("nan") if given else float(ceiling))


def _resampled(score: Scores, schemes: list[str], generator: np.random.Generator) -> np.ndarray:
    """Means over seeds drawn with replacement, [RESAMPLES, schemes]."""
    columns = []
    for scheme in schemes:
        values = score[scheme]
        columns.append(values[generator.integers(len(values), size=(RESAMPLES, len(values)))].mean(axis=1))
    return np.stack(columns, axis=1)


def _reliability(score: Scores, generator: np.random.Generator) -> float:
    """Mean correlation of random halves of the seeds, corrected to all seeds (Spearman and Brown)."""
    seeds = min(map(len, score.values()))
    half, found = seeds // 2, []
    for _ in range(SPLITS):
        order = {scheme: generator.permutation(len(values)) for scheme, values in score.items()}
        halves = [
            np.array([values[order[scheme][start : start + half]].mean() for scheme, values in score.items()])
            for start in (0, half)
        ]
        found.append(float(rho(*halves)))
    mean, longer = max(0.0, float(np.mean(found))), seeds / half
    return longer * mean / (1 + (longer - 1) * mean)


def pages_without_runs(folder: Path) -> None:
    """``README.md`` and its figure, from the CSVs of the bank and of the text study."""
    bank, tasks = bank_scores(RESULTS / "bank" / "v1")
    text = text_scores(RESULTS / "text")
    shared = sorted(set(bank[PAST]) & set(text[PAST]))
    bank, text = ({part: _only(scores[part], shared) for part in (IN, PAST)} for scores in (bank, text))
    made = {
        PAST: correlate(bank[PAST], text[PAST]),
        IN: correlate(bank[IN], text[IN]),
        "partial": correlate(bank[PAST], text[PAST], text[IN]),
    }
    by_task = {task: correlate(_only(scores, shared), text[PAST]) for task, scores in tasks.items()}
    (folder / "figures").mkdir(exist_ok=True)
    draw(bank, text, folder / "figures")
    (folder / "README.md").write_text(page(shared, made, by_task))


def _only(scores: Scores, schemes: list[str]) -> Scores:
    return {scheme: scores[scheme] for scheme in schemes}


def draw(bank: Mapping[str, Scores], text: Mapping[str, Scores], folder: Path) -> None:
    """Each scheme's score on text over its score in the bank; bars span the seeds."""
    with drawing():
        figure = Figure(figsize=(7.2, 3.6), layout="constrained")
        for axes, part in zip(figure.subplots(1, 2), (PAST, IN), strict=True):
            for scheme, values in bank[part].items():
                own = text[part][scheme]
                x, y = values.mean(), -own.mean()
                axes.plot([x, x], [-own.max(), -own.min()], color=COLOURS[0], linewidth=0.8, alpha=0.6)
                axes.plot([values.min(), values.max()], [y, y], color=COLOURS[0], linewidth=0.8, alpha=0.6)
                axes.plot(x, y, "o", color=COLOURS[0], markersize=4)
                axes.annotate(scheme, (x, y), (3, 3), textcoords="offset points", fontsize=6)
            axes.invert_yaxis()  # the best is at the top right
            axes.set_title(part)
            axes.set_xlabel("bank: exact match, mean over seven tasks")
            axes.spines[["top", "right"]].set_visible(False)
            rise = f"text: bits per byte at {LONGEST:,} minus {TRAINED} bytes"
            axes.set_ylabel(rise if part == PAST else f"text: bits per byte at {TRAINED} bytes")
        save(figure, folder, "answer")


def outcome(main: Correlation) -> str:
    """*Useful*, *not useful* or *open*, as the plan says."""
    if main.low > USEFUL:
        return f"**Useful**: the interval lies above {USEFUL}."
    if main.high < USEFUL:
        return f"**Not useful** for choosing an encoding for text of this size: the interval lies below {USEFUL}."
    found = "significant, but weakly known" if main.p <= 0.05 else "not significant: no evidence of transfer"
    return f"**Open**: the interval holds {USEFUL}. The correlation is {found}."


def page(schemes: list[str], made: Mapping[str, Correlation], by_task: Mapping[str, Correlation]) -> str:
    """``README.md``."""
    main = made[PAST]
    adjusted = holm([made[IN].p, made["partial"].p])
    rows = [
        ["past training (the main hypothesis)", *main.row, "–"],
        ["in distribution", *made[IN].row, f"{adjusted[0]:.3f}"],
        ["past training, given text in distribution", *made["partial"].row, f"{adjusted[1]:.3f}"],
    ]
    tasks = [[f"`{task}`", one.row[0] if one.rho else "all schemes fail"] for task, one in by_task.items()]
    return f"""# Do the bank's scores rank text models?

![Scores on text over scores in the bank](figures/answer.png)

{outcome(main)} Over {len(schemes)} schemes Spearman's correlation between the bank's scores at twice the training length and what a
text model loses from {TRAINED} to {LONGEST:,} bytes of context is {main.row[0]} (one-sided p {main.row[1]}).

{markdown_table(["scores", "rho with 95 % interval", "p", "ceiling", "p by Holm"], rows)}

Question, scores, tests and the reading of each outcome were written down [before a text model was trained](plan.md). *Ceiling*: the
largest rho that can be expected from so few seeds, from random halves of them. With {len(schemes)} schemes power is low: a true
correlation of 0.5 is found in fewer than half of such studies.

## By task, past training (described, not tested)

{markdown_table(["task of the bank", "rho with 95 % interval"], tasks)}

The scores are those of [the bank](../bank/v1/README.md) and of [text](../text/README.md); this page follows from their CSVs
(`make results`). It holds for models of the bank's size: two layers of width 64.
"""
