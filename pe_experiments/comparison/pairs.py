"""All pairs of schemes of a protocol: their difference, and whether the tests separate them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from pe_experiments.comparison.protocols import Protocol
from pe_experiments.comparison.runs import Row
from pe_experiments.comparison.statistics import ALPHA, FEWEST, NAN, ROUNDING, holm, permutation_p
from pe_experiments.terminal.errors import UserError, allowed

COLUMNS = (
    "section", "protocol", "metric", "scheme", "other", "seeds", "other_seeds", "not_tested", "difference",
    "p", "p_holm", "separated",
)  # fmt: skip


def pair_table(
    protocols: Sequence[Protocol], table: pd.DataFrame, metric: str, baseline: str | None = None
) -> pd.DataFrame:
    """One row per protocol and pair of schemes, in the order of the table.

    ``p`` is of the permutation test of the two sets of seeds, ``p_holm`` adjusted by Holm's method over the
    tests of the protocol, which ``separated`` follows. ``not_tested`` says why a pair was not.

    Args:
        protocols, table: from `protocols_of` and `scheme_table`.
        metric: what schemes are compared in.
        baseline: only the differences from this scheme; None for all pairs.

    Raises:
        UserError: no run is called like the baseline.
    """
    schemes = sorted(set(table["scheme"]))
    if baseline is not None and baseline not in schemes:
        raise UserError(f"baseline={baseline}: no run is called that; allowed: {allowed(schemes)}")
    rows: list[Row] = []
    for protocol in protocols:
        mine = table[table["protocol"] == protocol.hash]
        learned = dict(zip(mine["scheme"].astype(str), mine["compared"].astype(bool), strict=True))
        values = {str(label): own.to_numpy(float) for label, own in protocol.runs.groupby("label")[metric]}
        made = [
            _pair(first, second, values, learned)
            for first, second in itertools.combinations(learned, 2)
            if baseline in (None, first, second)
        ]
        common = {"section": protocol.slug, "protocol": protocol.hash, "metric": metric}
        for row, adjusted in zip(made, holm([row["p"] for row in made]), strict=True):
            rows.append(common | row | {"p_holm": adjusted, "separated": adjusted <= ALPHA})
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _pair(first: str, second: str, values: Mapping[str, np.ndarray], learned: Mapping[str, bool]) -> Row:
    one, other = values[first], values[second]
    unlearned = " and ".join(name for name in (first, second) if not learned[name])
    row: Row = {
        "scheme": first,
        "other": second,
        "seeds": len(one),
        "other_seeds": len(other),
        "difference": sum(one) / len(one) - sum(other) / len(other),
        "p": NAN,
    }
    if unlearned:
        return row | {"not_tested": f"{unlearned} did not learn the task"}
    if min(len(one), len(other)) < FEWEST:
        return row | {"not_tested": "under three seeds"}
    pooled = np.concatenate([one, other])
    if np.isnan(pooled).any():
        return row | {"not_tested": "not measured"}
    if np.ptp(pooled) <= ROUNDING:
        return row | {"not_tested": "all seeds of both have the same value"}
    return row | {"p": permutation_p(one, other)}
