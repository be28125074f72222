"""Better, worse or not separated: a scheme against each baseline on one task, over as few seeds as it takes.

A task may be stopped once the seeds that are left, simulated many times, would not change its verdicts
(stochastic curtailment, Lan, Simon and Halperin 1982). A further seed comes out as one of the scheme's own so
far did, or, with the weight of `PRIOR` seeds, as one of any baseline (a Dirichlet process, Ferguson 1973).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from pe_experiments.comparison.protocols import Protocol
from pe_experiments.comparison.statistics import ALPHA, holm, permutation_ps
from pe_experiments.terminal.errors import UserError

METRIC = "exact_match_extrapolation"  # of verdicts, unless sweep.metric says otherwise
BETTER, WORSE, NOT_SEPARATED = "better", "worse", "not separated"
ONLY_YOURS, ONLY_OTHER, NEITHER = "only yours learned it", "only the other learned it", "neither learned it"
SIGNS = {BETTER: "+", WORSE: "-", NOT_SEPARATED: "=", ONLY_YOURS: "(+)", ONLY_OTHER: "(-)", NEITHER: "0"}
KEY = (
    "+ better, - worse, = not separated; (+) only yours learned the task, (-) only the other, 0 neither; "
    "?: likely, with seeds left to run"
)
TESTED = (BETTER, WORSE, NOT_SEPARATED)  # both learned the task
SIDES = {BETTER: "up", ONLY_YOURS: "up", WORSE: "down", ONLY_OTHER: "down"}
PRIOR = 1.0  # the baselines together weigh as much as so many seeds of the scheme itself
FUTURES = 200
CHANGE = 0.1  # sweep.change, unless it is said
EARLIEST = 3  # seeds; from here on there are intervals


@dataclass(frozen=True)
class Outcomes:
    """Of the seeds of one scheme on one task: the metric, and whether it solved the training lengths."""

    values: tuple[float, ...]
    solved: tuple[bool, ...]


@dataclass(frozen=True)
class Forecast:
    """The verdict that all seeds will most likely give, and the probability that they give another."""

    verdict: str
    change: float


def outcomes_of(protocol: Protocol, metric: str = METRIC) -> dict[str, Outcomes]:
    """By scheme; a metric may also be ``exact_match_at_4x``, at any multiple that was evaluated."""
    runs = protocol.runs.sort_values("seed")
    if found := re.fullmatch(r"(exact_match|token_accuracy)_at_(\d+)x", metric):
        points = protocol.curves[protocol.curves["content_length"] == int(found[2]) * protocol.max_length]
        runs = runs.drop(columns=metric, errors="ignore").merge(points[["name", found[1]]], on="name")
        runs = runs.rename(columns={found[1]: metric})
    if metric not in runs or runs.empty:
        raise UserError(f"sweep.metric={metric}: not measured; for example exact_match_at_4x or {METRIC}")
    table = runs.assign(value=runs[metric].astype(float), solved=runs["solved_in_distribution"].eq(True))
    groups = table.groupby("label")
    return {str(label): Outcomes(tuple(own["value"]), tuple(own["solved"])) for label, own in groups}


def verdicts(mine: Outcomes, baselines: Mapping[str, Outcomes]) -> dict[str, str]:
    """The verdict on a scheme against each baseline."""
    (row,) = _verdict_table(np.array([mine.values]), np.array([mine.solved]), baselines)
    return dict(zip(baselines, row.tolist(), strict=True))


def _verdict_table(values: np.ndarray, solved: np.ndarray, baselines: Mapping[str, Outcomes]) -> np.ndarray:
    """[sets, baselines], the verdicts for many sets of a scheme's seeds, both [sets, seeds].

    Two schemes that learned the task (at least half of the seeds) are compared by the permutation test of
    their seeds' values, adjusted by Holm's method over the baselines; otherwise the verdict says which did.
    """
    learned = solved.mean(axis=1) >= 0.5
    table = np.empty((len(values), len(baselines)), dtype=object)
    ps = np.full(table.shape, np.nan)
    for index, other in enumerate(baselines.values()):
        if fmean(other.solved) >= 0.5:
            ps[:, index] = permutation_ps(values, other.values)
            table[:, index] = np.where(values.mean(axis=1) > np.mean(other.values), BETTER, WORSE)
        else:
            table[:, index] = np.where(learned, ONLY_YOURS, NEITHER)
    adjusted = np.array([holm(row) for row in ps.tolist()])
    table[adjusted > ALPHA] = NOT_SEPARATED
    table[~learned[:, None] & ~np.isnan(ps)] = ONLY_OTHER
    return table


def forecast(mine: Outcomes, baselines: Mapping[str, Outcomes], seeds: int) -> dict[str, Forecast]:
    """For each baseline the verdict after ``seeds`` seeds of the scheme, from those it has had so far."""
    futures, times = np.unique(_futures(mine, baselines, seeds), axis=0, return_counts=True)
    table = _verdict_table(futures[:, :, 0], futures[:, :, 1] == 1, baselines)
    made = {}
    for name, column in zip(baselines, table.T, strict=True):
        ((word, often),) = Counter(np.repeat(column, times).tolist()).most_common(1)
        made[name] = Forecast(word, 1 - often / FUTURES)
    return made


def may_stop(forecasts: Iterable[Forecast], change: float = CHANGE) -> bool:
    """Whether further seeds are expected to change a smaller share of these verdicts than ``change``."""
    return fmean(one.change for one in forecasts) < change


def _futures(mine: Outcomes, baselines: Mapping[str, Outcomes], seeds: int) -> np.ndarray:
    """[futures, seeds, 2]: value and whether solved of the seeds so far and of drawn ones; sorted."""
    draw = np.random.default_rng(0)
    pool = np.concatenate([np.transpose([other.values, other.solved]) for other in baselines.values()])
    seen = np.tile(np.transpose([mine.values, mine.solved]), (FUTURES, 1, 1))
    while (so_far := seen.shape[1]) < seeds:
        own = seen[np.arange(FUTURES), draw.integers(so_far, size=FUTURES)]
        others = pool[draw.integers(len(pool), size=FUTURES)]
        from_pool = draw.random(FUTURES) < PRIOR / (PRIOR + so_far)
        seen = np.concatenate([seen, np.where(from_pool[:, None], others, own)[:, None]], axis=1)
    order = np.lexsort((seen[:, :, 1], seen[:, :, 0]), axis=1)
    return np.take_along_axis(seen, order[:, :, None], axis=1)
