"""Judge the claims of tutorials on sinusoidal encodings."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pe_experiments.studies import Study, read_archive, read_table, table
from results.bank.study import early_scores

from .judging import DEPENDS, FAILS, HOLDS, UNSUPPORTED, judge_trained, judge_untrained

BANK = Path(__file__).parents[1] / "bank"
UNTESTED = "not tested"
VERDICTS = {"hold": HOLDS, "depend": DEPENDS, "fail": FAILS, "unsupported": UNSUPPORTED, "untested": UNTESTED}
NOT_AS_WRITTEN = [FAILS, DEPENDS, UNSUPPORTED]


def judge(folder: Path) -> pd.DataFrame:
    """Return the rows of ``claims.csv`` with the columns ``measured`` and ``verdict`` filled in."""
    claims = read_table(folder / "claims.csv").fillna("")
    bank_runs = read_archive(BANK).runs.merge(early_scores()[["name", "learned"]], on="name")
    findings = judge_untrained(claims, read_table(folder / "audits.csv"))
    findings |= judge_trained(read_archive(folder), bank_runs)
    claims["verdict"] = UNTESTED
    for claim, finding in findings.items():
        claims.loc[claims["claim"] == claim, ["measured", "verdict"]] = finding
    return claims


def values(claims: pd.DataFrame) -> dict[str, Any]:
    """Return the table of the claims that do not hold as written, and the number of claims by verdict.

    Claims about vectors and about trained models are counted separately.
    """
    shown = pd.concat([claims[claims["verdict"] == verdict] for verdict in NOT_AS_WRITTEN])
    values: dict[str, Any] = {"claims": table(shown[["claim", "measured", "verdict"]])}
    for group, rows in claims.groupby(np.where(claims["holds_if"] == "", "trained", "vectors")):
        values[str(group)] = len(rows)
        for name, verdict in VERDICTS.items():
            values[f"{group}_{name}"] = (rows["verdict"] == verdict).sum()
    return values


STUDY = Study(
    sweep=("tutorial_claims",),
    load=judge,
    values=values,
    tables={"verdicts": lambda claims: claims.drop(columns="holds_if")},
    compare=True,
)
