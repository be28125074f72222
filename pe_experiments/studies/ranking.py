"""Rank encodings by their mean score over tasks, and test differences within configurations.

All encodings share the same tasks and configurations, and an encoding scores 0 where it did not learn the
task. Differences within configurations are tested by flipping their signs, with Holm's method over the
comparisons of a family. Shapes: C configurations, E encodings.
"""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from pe_experiments.comparison.statistics import ALPHA, paired_sign_tests
from pe_experiments.studies.verdicts import calibrated_p

DRAWS = 10_000  # bootstrap samples


def against_best(matrix: pd.DataFrame) -> pd.DataFrame:
    """Return a row per encoding with the test of the best encoding against it, sorted by the mean.

    ``matrix`` has scores [C, E] without missing values. The columns are ``mean, difference, low, high, p,
    calibrated_p, tied``; those of the best are 0 or 1. ``p`` is Holm's, which `verdicts.calibrated_p`
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
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_yticks(range(len(order)), order)
    panels[0].set_ylim(len(order) - 0.4, -0.6)
