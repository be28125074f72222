"""Judge claims of tutorials that need no training by the conditions in ``claims.csv``."""

import operator
import re
from typing import Any

import pandas as pd

from .audits import NOISE

HOLDS, FAILS, DEPENDS = "holds", "does not hold", "depends"
UNSUPPORTED, UNTESTED = "not supported", "not tested"
SIGNS = {"<": operator.lt, ">": operator.gt, "=": operator.eq}

Finding = tuple[str, str]  # what was measured, and the verdict


class Value(float):
    """A measured value; printed as ``below 1e-09`` if it is 0 after rounding."""

    def __str__(self) -> str:
        return f"{float(self):.3g}" if self else f"below {NOISE:g}"

    def __format__(self, style: str) -> str:
        if style == "crash":
            return "crashes" if self else "works"
        return super().__format__(style)


class Values(dict[str, Any]):
    """The measured values by quantity."""

    def meets(self, condition: str) -> bool:
        """Return whether ``QUANTITY < BOUND`` holds, also with > and =; a bound is a number or a quantity."""
        quantity, sign, bound = re.split(r" ([<>=]) ", condition)
        return SIGNS[sign](self[quantity], float(bound) if bound[0] in "-0123456789" else self[bound])


def judge_untrained(claims: pd.DataFrame, audits: pd.DataFrame) -> dict[str, Finding]:
    """Return the finding on each claim: it holds if all its conditions are met, depends if some are."""
    values = Values(zip(audits["quantity"], map(Value, audits["value"]), strict=True))
    findings = {}
    for row in claims[claims["holds_if"] != ""].to_dict("records"):
        met = [values.meets(condition) for condition in row["holds_if"].split("; ")]
        verdict = FAILS
        if any(met):
            verdict = HOLDS if all(met) else DEPENDS
        findings[row["claim"]] = row["measured"].format_map(values), verdict
    return findings
