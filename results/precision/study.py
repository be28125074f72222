"""Do conclusions change when training computes in bfloat16?

Equivalence needs its own test: a change of less than ``MARGIN`` (a tenth of the scale) in mean exact match past
the training lengths counts as no change, and two one-sided tests decide. All flip the signs of paired differences.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from scipy import stats

from pe_experiments.comparison import Runs
from pe_experiments.comparison.statistics import ALPHA
from pe_experiments.published import markdown_table, mean_in_words, read_archive, with_settings

MARGIN = 0.1  # of mean exact match
ANSWER = """\
**Training in bfloat16 changes no conclusion here**: in {equivalent} of {rows} cases that could change, \
the mean exact match past the training lengths moves by less than {margin:g}. Within the training lengths \
no run changes by more than {most:.3f}."""
HEADING = (
    "task", "encoding", "float32", "bfloat16", "mean difference", "largest difference of a seed", "p (equivalence)",
    "result",
)  # fmt: skip


def sign_flip_p(differences: np.ndarray, alternative: Literal["two-sided", "greater"]) -> float:
    """p-value of a mean difference of paired seeds under random signs; two-sided at least 2 / 2^pairs."""
    pairs = (differences.tolist(),)
    return float(
        stats.permutation_test(pairs, np.mean, permutation_type="samples", alternative=alternative).pvalue
    )


def equivalence_p(differences: np.ndarray) -> float:
    """p-value of "the mean difference is ``MARGIN`` or more in size"; with five pairs at least 1 / 32."""
    return max(sign_flip_p(side, "greater") for side in (MARGIN - differences, MARGIN + differences))


def reading(differences: np.ndarray) -> str:
    """``equivalent`` within the margin, ``changed``, or ``not decided``; the two tests are unadjusted."""
    if equivalence_p(differences) <= ALPHA:
        return "equivalent"
    return "changed" if sign_flip_p(differences, "two-sided") <= ALPHA else "not decided"


def pairs_of(runs: Runs, metric: str = "exact_match_extrapolation") -> dict[tuple[str, str], pd.DataFrame]:
    """By task and encoding the values [seeds, precisions] of what was run in both."""
    table = with_settings(runs, precision="trainer.precision")
    table["precision"] = table["precision"].map({"32-true": "float32", "bf16-mixed": "bfloat16"})
    wide = table.pivot(index=["task", "label", "seed"], columns="precision", values=metric).dropna()
    groups: Any = wide[["float32", "bfloat16"]].groupby(level=["task", "label"])
    return dict(list(groups))


def can_move(pair: pd.DataFrame) -> bool:
    """Whether the runs are neither all 0 nor all 1."""
    return set(pair.to_numpy().ravel()) not in ({0.0}, {1.0})


def blocks(folder: Path) -> dict[str, str]:
    """A row for each that can move, which cannot, and how much the training lengths do."""
    runs = read_archive(folder)
    pairs, within = pairs_of(runs), pairs_of(runs, "exact_match_in_distribution")
    rows = [_row(*key, pair) for key, pair in pairs.items() if can_move(pair)]
    most = max(np.abs(pair["bfloat16"] - pair["float32"]).max() for pair in within.values())
    equivalent = sum(row[-1] == "equivalent" for row in rows)
    values = {"rows": len(rows), "equivalent": equivalent, "most": most, "margin": MARGIN}
    return {"table": markdown_table(HEADING, rows), "answer": ANSWER.format_map(values)}


def _row(task: str, encoding: str, pair: pd.DataFrame) -> list[str]:
    d = (pair["bfloat16"] - pair["float32"]).to_numpy(float)
    sizes = f"{round(d.mean(), 3) + 0.0:+.3f}", f"{np.abs(d).max():.3f}", f"{equivalence_p(d):.2g}"
    return [task, encoding, *(mean_in_words(pair[kind]) for kind in pair), *sizes, reading(d)]
