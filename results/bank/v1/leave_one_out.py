"""How often a verdict that was stopped early is that of all seeds: each scheme of the bank taken as new."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean
from typing import Any

import pandas as pd

from pe_experiments.bank.bank import outcomes_of
from pe_experiments.bank.stopping import CHANGE, EARLIEST, forecast
from pe_experiments.bank.verdicts import Outcomes, verdicts
from pe_experiments.comparison import Runs
from pe_experiments.comparison.protocols import sections_of

THRESHOLDS = (0.0, 0.02, 0.05, 0.1, 0.2)


def leave_one_out(runs: Runs) -> pd.DataFrame:
    """A row per task, scheme and number of seeds: how many verdicts may change, and the share that agree."""
    return pd.DataFrame(list(_rows(runs)))


def _rows(runs: Runs) -> Iterator[dict[str, Any]]:
    for section in sections_of(runs):
        found = outcomes_of(section)
        seeds = max(len(one.values) for one in found.values())
        for name, mine in found.items():
            others = {label: one for label, one in found.items() if label != name}
            if len(mine.values) < seeds or not others:
                continue
            final = verdicts(mine, others)
            for done in range(EARLIEST, seeds + 1):
                so_far = Outcomes(mine.values[:done], mine.solved[:done])
                said = forecast(so_far, others, seeds)
                yield {
                    "task": section.title,
                    "scheme": name,
                    "seeds": done,
                    "of": seeds,
                    "baselines": len(others),
                    "expected_change": round(fmean(one.change for one in said.values()), 4),
                    "agreement": round(fmean(said[n].verdict == final[n] for n in others), 4),
                }


def by_threshold(table: pd.DataFrame) -> pd.DataFrame:
    """What each threshold for stopping costs: the share of seeds run and of verdicts that agree."""
    rows = []
    for threshold in THRESHOLDS:
        first = _stopped(table, threshold)
        seeds = (first["seeds"] / first["of"]).mean()
        rows.append({"threshold": threshold, "seeds": seeds, "agreement": _agreement(first)})
    return pd.DataFrame(rows)


def _stopped(table: pd.DataFrame, threshold: float) -> pd.DataFrame:
    stops = table["expected_change"].le(threshold) | table["seeds"].eq(table["of"])
    return table[stops].groupby(["task", "scheme"], sort=False).first()


def _agreement(first: pd.DataFrame) -> float:
    return float((first["agreement"] * first["baselines"]).sum() / first["baselines"].sum())


def in_words(table: pd.DataFrame) -> str:
    """``97 % of the verdicts agree ... from 44 % of the seeds`` at the threshold in use."""
    first = _stopped(table, CHANGE)
    by_task = [100 * _agreement(mine) for _, mine in first.groupby("task")]
    agree = f"{100 * _agreement(first):.0f} % of the verdicts agree with those from all seeds"
    seeds = f"only {100 * (first['seeds'] / first['of']).mean():.0f} % of the seeds are run"
    return (
        f"{agree} ({min(by_task):.0f} to {max(by_task):.0f} % by task), though {seeds}; tuning is not "
        "shortened"
    )
