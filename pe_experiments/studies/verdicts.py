"""Compare encodings on one task within shared configurations: better, worse or not separated (tied).

``scores`` come from `scores.scores_by_configuration`: [configurations, encodings], NaN where the task was not
learned. An encoding is compared if it learned the task in at least the share `ENOUGH` of the configurations.
Differences within configurations are tested by flipping their signs, with p-values adjusted by Holm's method.
"""

import math
from functools import cache

import numpy as np
import pandas as pd

from pe_experiments.comparison.statistics import (
    ALPHA,
    EQUAL_WITHIN,
    Interval,
    holm,
    paired_ps,
    paired_sign_tests,
)

BETTER, WORSE, NOT_SEPARATED = "better", "worse", "not separated"
TOO_FEW = "too few configurations"  # for p <= ALPHA, even if all differences had the same sign
# The encoding ("yours"), the other or neither learned the task in the share `ENOUGH` of the configurations.
ONLY_YOURS, ONLY_OTHER = "only yours often enough", "only the other often enough"
NEITHER = "neither often enough"
SIGNS = {BETTER: "+", WORSE: "-", NOT_SEPARATED: "=", TOO_FEW: ".",
         ONLY_YOURS: "(+)", ONLY_OTHER: "(-)", NEITHER: "0"}  # fmt: skip
ENOUGH = 0.75  # share of configurations in which an encoding must learn a task to be compared
SIMULATIONS = 4_000  # number of simulated sets of equally good encodings


def verdicts_on(scores: pd.DataFrame, encoding: str) -> pd.DataFrame:
    """Return a row per other encoding that compares the encoding with it.

    The difference is over the configurations in which both learned the task, and its interval has the level
    of the test, so that both agree. ``pairs`` counts these configurations, and ``higher`` those in which the
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
