"""All pairs of schemes of a section: their difference, and whether the tests separate them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import pandas as pd

from pe_experiments.comparison.protocols import Section
from pe_experiments.comparison.run_rows import Row
from pe_experiments.comparison.statistics import (
    ALPHA,
    FEWEST,
    NAN,
    RESAMPLES,
    ROUNDING,
    holm,
    letters,
    permutation_p,
    probability_of_improvement,
    shared_differences,
    sign_flip_p,
)
from pe_experiments.errors import UserError, allowed
from pe_experiments.losses import lower_is_better

COLUMNS = (
    "section", "protocol", "metric", "scheme", "other", "seeds", "other_seeds", "not_tested", "difference",
    "p", "p_holm", "separated", "tests", "smallest_p", "smallest_p_holm", "pairs", "paired_difference",
    "p_paired", "p_paired_holm", "probability_of_improvement",
)  # fmt: skip


def pair_table(
    sections: Sequence[Section], table: pd.DataFrame, metric: str, baseline: str | None = None
) -> pd.DataFrame:
    """One row per section and pair of schemes, in the order of the table.

    ``p`` is of the permutation test of the two sets of seeds, ``p_paired`` of the sign-flip test of the
    seeds both have; each is adjusted by Holm's method over the tests of the section. ``separated`` follows
    ``p_holm``, because the sign-flip test of five pairs is never below 0.0625. ``smallest_p`` is the smallest
    that the permutation test of so many seeds can give. ``not_tested`` says why a pair was not.

    Args:
        sections, table: from `sections_of` and `scheme_table`.
        metric: what schemes are compared in.
        baseline: only the differences from this scheme; None for all pairs.

    Raises:
        UserError: no run is called like the baseline.
    """
    schemes = sorted(set(table["scheme"]))
    if baseline is not None and baseline not in schemes:
        raise UserError(f"baseline={baseline}: no run is called that; allowed: {allowed(schemes)}")
    rows: list[Row] = []
    for section in sections:
        mine = table[table["protocol"] == section.protocol]
        compared = dict(zip(mine["scheme"].astype(str), mine["compared"].astype(bool), strict=True))
        values = {
            str(label): dict(zip(group["seed"], group[metric].astype(float), strict=True))
            for label, group in section.runs.groupby("label")
        }
        made = [
            _pair(first, second, values, [name for name in (first, second) if not compared[name]], metric)
            for first, second in itertools.combinations(compared, 2)
            if baseline in (None, first, second)
        ]
        _adjust(made)
        common = {"section": section.slug, "protocol": section.protocol, "metric": metric}
        rows += [common | row for row in made]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _pair(
    first: str,
    second: str,
    values: Mapping[str, Mapping[int, float]],
    unlearnt: Sequence[str],
    metric: str,
) -> Row:
    one, other = values[first], values[second]
    pooled = [*one.values(), *other.values()]
    paired = shared_differences(one, other)
    better, worse = (other, one) if lower_is_better(metric) else (one, other)
    row: Row = {
        "scheme": first,
        "other": second,
        "seeds": len(one),
        "other_seeds": len(other),
        "difference": sum(one.values()) / len(one) - sum(other.values()) / len(other),
        "pairs": len(paired),
        "paired_difference": float(paired.mean()) if len(paired) else NAN,
        "probability_of_improvement": probability_of_improvement(list(better.values()), list(worse.values())),
    }
    if unlearnt:
        return row | {"not_tested": f"{' and '.join(unlearnt)} did not learn the task"}
    if min(len(one), len(other)) < FEWEST:
        return row | {"not_tested": "under three seeds"}
    if any(map(math.isnan, pooled)):
        return row | {"not_tested": "not measured"}
    if max(pooled) - min(pooled) <= ROUNDING:
        return row | {"not_tested": "all seeds of both have the same value"}
    splits = math.comb(len(one) + len(other), len(one))
    smallest = (2 if len(one) == len(other) else 1) / splits
    return row | {
        "p": permutation_p(list(one.values()), list(other.values())),
        "smallest_p": smallest if splits <= RESAMPLES else 1 / (RESAMPLES + 1),
        "p_paired": sign_flip_p(paired),
    }


def _adjust(rows: Sequence[Row]) -> None:
    """Add what depends on the number of tests."""
    for test in ("p", "p_paired"):
        for row, adjusted in zip(rows, holm([row.get(test, NAN) for row in rows]), strict=True):
            row[f"{test}_holm"] = adjusted
    tests = sum("p" in row for row in rows)
    for row in rows:
        row["tests"], row["separated"] = tests, bool(row["p_holm"] <= ALPHA)
        row["smallest_p_holm"] = min(tests * row["smallest_p"], 1.0) if "p" in row else NAN


def with_groups(table: pd.DataFrame, pairs: pd.DataFrame) -> pd.DataFrame:
    """The table with a column ``group``: schemes that share a letter are not separated by their seeds.

    Schemes that were tested against no other have none; where not all pairs were tested, no scheme has one.
    """
    groups = dict.fromkeys(table.index, "")
    for protocol, rows in table.groupby("protocol"):
        mine = pairs[pairs["protocol"] == protocol]
        compared = rows[rows["compared"].astype(bool) & (rows["seeds"] >= FEWEST)]
        names = [str(name) for name in compared["scheme"]]
        if not mine["p"].notna().any() or len(mine) < math.comb(len(rows), 2):
            continue
        apart = mine[mine["separated"].astype(bool)]
        marks = letters(names, zip(apart["scheme"], apart["other"], strict=True))
        groups |= {row: marks[name] for row, name in zip(compared.index, names, strict=True)}
    made = table.copy()
    made.insert(list(table).index("compared") + 1, "group", pd.Series(groups).replace("", None))
    return made
