"""Test whether training in bfloat16 changes the conclusions.

A change of less than ``MARGIN`` in mean exact match past the training lengths counts as no change. All tests
are sign-flip tests of differences between runs of the same seed, without correction for multiple tests.
"""

from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from pe_experiments.comparison import Runs
from pe_experiments.comparison.statistics import ALPHA
from pe_experiments.studies import Study, format_mean, read_archive, table, with_options
from pe_experiments.studies.inference import paired_ps

MARGIN = 0.1


def equivalence_p(differences: np.ndarray) -> float:
    """Return the p-value of the hypothesis that the mean difference is at least `MARGIN` in size (TOST)."""
    ps = []
    for side in (MARGIN - differences, MARGIN + differences):
        test = stats.permutation_test((side,), np.mean, permutation_type="samples", alternative="greater")
        ps.append(float(test.pvalue))
    return max(ps)


def pairs(runs: Runs, metric: str) -> pd.DataFrame:
    """Return the metric in float32 and bfloat16, and the difference, by task, encoding and seed.

    Runs without a counterpart in the other precision are left out.
    """
    values = with_options(runs, precision="trainer.precision")
    wide = values.pivot(index=["task", "label", "seed"], columns="precision", values=metric).dropna()
    wide = wide.rename(columns={"32-true": "float32", "bf16-mixed": "bfloat16"})
    return wide.assign(difference=wide["bfloat16"] - wide["float32"])


def values(runs: Runs) -> dict[str, Any]:
    """Return the table of the tasks and encodings that can change, and the numbers in the text."""
    rows = []
    for (task, encoding), pair in pairs(runs, "exact_match_extrapolation").groupby(["task", "label"]):
        difference = pair["difference"].to_numpy()
        if set(pair[["float32", "bfloat16"]].to_numpy().ravel()) not in ({0.0}, {1.0}):
            p = equivalence_p(difference)
            result = "changed" if paired_ps(difference[None])[0] <= ALPHA else "not decided"
            rows.append(
                {
                    "task": task,
                    "encoding": encoding,
                    "float32": format_mean(pair["float32"]),
                    "bfloat16": format_mean(pair["bfloat16"]),
                    "mean difference": f"{difference.mean():+z.3f}",
                    "largest difference of a seed": f"{np.abs(difference).max():.3f}",
                    "p (equivalence)": f"{p:.2g}",
                    "result": "equivalent" if p <= ALPHA else result,
                }
            )
    return {
        "table": table(pd.DataFrame(rows)),
        "rows": len(rows),
        "equivalent": sum(row["result"] == "equivalent" for row in rows),
        "most": pairs(runs, "exact_match_in_distribution")["difference"].abs().max(),
        "margin": MARGIN,
    }


STUDY = Study(sweep=("precision",), load=read_archive, values=values)
