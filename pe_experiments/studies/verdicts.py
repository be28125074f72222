"""Compare encodings within shared configurations: one encoding on one task, or a ranking over tasks.

Differences within configurations are tested by flipping their signs, with p-values adjusted by Holm's method.
Shapes: C configurations, E encodings.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from functools import cache

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from pe_experiments.comparison.statistics import ALPHA, EQUAL_WITHIN, Interval, holm
from pe_experiments.studies.inference import paired_ps, paired_sign_tests

BETTER, WORSE, NOT_SEPARATED = "better", "worse", "not separated"
TOO_FEW = "too few configurations"  # for p <= ALPHA, even if all differences had the same sign
# The encoding ("yours"), the other or neither learned the task in the share `ENOUGH` of the configurations.
ONLY_YOURS, ONLY_OTHER = "only yours often enough", "only the other often enough"
NEITHER = "neither often enough"
SIGNS = {BETTER: "+", WORSE: "-", NOT_SEPARATED: "=", TOO_FEW: ".",
         ONLY_YOURS: "(+)", ONLY_OTHER: "(-)", NEITHER: "0"}  # fmt: skip
ENOUGH = 0.75  # share of configurations in which an encoding must learn a task to be compared
SIMULATIONS = 4_000  # number of simulated sets of equally good encodings
DRAWS = 10_000  # bootstrap samples


def verdicts_on(scores: pd.DataFrame, encoding: str) -> pd.DataFrame:
    """Return a row per other encoding that compares the encoding with it on one task.

    ``scores`` come from `scores.scores_by_configuration` [C, E], NaN where the task was not learned. An
    encoding is compared if it learned the task in at least the share `ENOUGH` of the configurations. The
    difference is over the configurations in which both learned the task, and its interval has the level of
    the test, so that both agree. ``pairs`` counts these configurations, and ``higher`` those in which the
    encoding scores higher. ``p_holm`` is adjusted by Holm's method.
    """
    differences = -scores.drop(columns=encoding).sub(scores[encoding], axis=0)
    learned = scores.notna().mean() >= ENOUGH
    tested = [name for name in map(str, differences) if learned[name] and learned[encoding]]
    tests = dict(zip(tested, paired_sign_tests(differences[tested].to_numpy(float).T), strict=True))
    rows = []
    for name in map(str, differences):
        interval, p = tests.get(name, (Interval(math.nan), math.nan))
        pairs = differences[name].count()
        smallest_p = 2.0 ** (1 - pairs) * len(tests)  # if all signs were the same
        if not learned[encoding]:
            verdict = ONLY_OTHER if learned[name] else NEITHER
        elif not learned[name]:
            verdict = ONLY_YOURS
        elif p <= ALPHA:
            verdict = BETTER if interval.estimate > 0 else WORSE
        elif smallest_p <= ALPHA:
            verdict = NOT_SEPARATED
        else:
            verdict, interval = TOO_FEW, Interval(math.nan)
        rows.append(
            {
                "baseline": name,
                "verdict": verdict,
                "configurations": len(scores),
                "learned": scores[encoding].count(),
                "mean": scores[encoding].mean(),
                "baseline_learned": scores[name].count(),
                "baseline_mean": scores[name].mean(),
                "difference": differences[name].mean(),
                "low": interval.low,
                "high": interval.high,
                "p_holm": p,
                "higher": (differences[name] > 0).sum(),
                "pairs": pairs,
            }
        )
    return pd.DataFrame(rows)


def against_best(matrix: pd.DataFrame) -> pd.DataFrame:
    """Return a row per encoding with the test of the best encoding against it, sorted by the mean.

    ``matrix`` has scores [C, E] without missing values. The columns are ``mean, difference, low, high, p,
    calibrated_p, tied``; those of the best are 0 or 1. ``p`` is Holm's, which `calibrated_p`
    corrects for the choice of the best.
    """
    means = matrix.mean()
    best = str(means.idxmax())
    pairs = [(best, other) for other in map(str, matrix) if other != best]
    columns = ["difference", "low", "high", "p"]
    tests = sign_tests(matrix, pairs).set_index("second")[columns] if pairs else pd.DataFrame(columns=columns)
    rows = means.rename("mean").to_frame().join(tests.astype(float))
    rows = rows.fillna({"difference": 0.0, "low": 0.0, "high": 0.0, "p": 1.0})
    ps = rows["p"].items()
    rows["calibrated_p"] = [
        1.0 if name == best else calibrated_p(p, len(rows), len(matrix)) for name, p in ps
    ]
    rows["tied"] = rows["calibrated_p"] > ALPHA
    return rows.sort_values("mean", ascending=False)


def sign_tests(matrix: pd.DataFrame, pairs: Sequence[tuple[str, str]]) -> pd.DataFrame:
    """Return the test of the first minus the second encoding of each pair, one family by Holm's method.

    ``matrix`` has scores [C, E]. The columns are ``first, second, difference, low, high, p, verdict``: the
    interval has the level of its test, and the verdict is higher, lower or tied.
    """
    differences = np.array([(matrix[first] - matrix[second]).to_numpy(float) for first, second in pairs])
    intervals, ps = zip(*paired_sign_tests(differences), strict=True)
    rows = pd.DataFrame(pairs, columns=["first", "second"])
    rows[["difference", "low", "high"]] = pd.DataFrame(intervals)
    rows["p"] = ps
    verdicts = [rows["p"] > ALPHA, rows["difference"] > 0]
    return rows.assign(verdict=np.select(verdicts, ["tied", "higher"], "lower"))


def calibrated_p(p: float, encodings: int, configurations: int) -> float:
    """Return the probability that the best of equal encodings has an adjusted p-value of at most ``p``.

    The best is chosen and tested with the same scores, so its p-values are too small. The probability depends
    on the numbers of encodings and configurations.
    """
    return float((_smallest_of_equals(encodings, configurations) <= p + EQUAL_WITHIN).mean())


@cache
def _smallest_of_equals(encodings: int, configurations: int) -> np.ndarray:
    """Return the smallest adjusted p-value of the best encoding in each simulation with normal scores."""
    random = np.random.default_rng(0)
    differences = []
    for scores in random.normal(size=(SIMULATIONS, configurations, encodings)):
        best_column = scores.mean(axis=0).argmax()
        differences.append(np.delete(scores[:, [best_column]] - scores, best_column, axis=1).T)
    smallest_ps: list[float] = []
    # In batches of a hundred: on a busy machine thousands of small products take NumPy's threads a minute.
    for batch in np.split(np.array(differences), SIMULATIONS // 100):
        ps = paired_ps(batch.reshape(-1, configurations)).reshape(len(batch), -1)
        smallest_ps += [min(holm(row)) for row in ps.tolist()]
    return np.array(smallest_ps)


def draw_means(
    panels: Sequence[Axes],
    matrices: Mapping[str, pd.DataFrame],
    order: Sequence[str],
    in_colour: Collection[str],
) -> None:
    """Draw scores [C, E] as pale dots, with the mean and its 95% bootstrap interval over configurations.

    There is a panel for each matrix, which is named by the label of the x axis. Encodings stand in ``order``
    from top to bottom; the means of those ``in_colour`` are blue.
    """
    for axes, (words, matrix) in zip(panels, matrices.items(), strict=True):
        for place, label in enumerate(order):
            values = matrix[label]
            size = len(values)
            counts = np.random.default_rng(0).multinomial(size, np.full(size, 1 / size), DRAWS)
            means = counts @ values.to_numpy() / size
            low, high = np.quantile(means, [ALPHA / 2, 1 - ALPHA / 2])
            colour = "C0" if label in in_colour else "0.25"
            axes.plot(values, [place] * len(values), "o", color="0.72", markersize=2.5)
            axes.plot([low, high], [place, place], color=colour, linewidth=2.2)
            axes.plot(values.mean(), place, "o", color=colour, markersize=4.5)
        axes.set(xlim=(-0.04, 1.04), xlabel=words)
    panels[0].set_yticks(range(len(order)), order)
    panels[0].set_ylim(len(order) - 0.4, -0.6)
