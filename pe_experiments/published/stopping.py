"""When a task may be stopped: the seeds that are left would not change its verdicts.

The remaining seeds are simulated many times, and the verdicts counted. A further seed comes out as one of the
scheme's own seeds so far did, or, with the weight of `PRIOR` seeds, as a seed of any baseline on that task (a
Dirichlet process, Ferguson 1973; stochastic curtailment, Lan, Simon and Halperin 1982). No shape of
distribution is assumed: past training a seed often scores all or nothing, and the baselines show which
outcomes occur.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from pe_experiments.published.verdicts import Outcomes, verdict_table

PRIOR = 1.0  # the baselines together weigh as much as so many seeds of the scheme itself
FUTURES = 200
CHANGE = 0.1  # a task is stopped once this share of its verdicts is expected to change, or less
EARLIEST = 3  # seeds; from here on there are intervals


@dataclass(frozen=True)
class Forecast:
    """The verdict that all seeds will most likely give, and the probability that they give another."""

    verdict: str
    change: float


def forecast(mine: Outcomes, baselines: Mapping[str, Outcomes], seeds: int) -> dict[str, Forecast]:
    """For each baseline the verdict after ``seeds`` seeds of the scheme, from those it has had so far."""
    futures, times = np.unique(_futures(mine, baselines, seeds), axis=0, return_counts=True)
    table = verdict_table(futures[:, :, 0], futures[:, :, 1] == 1, baselines)
    made = {}
    for name, column in zip(baselines, table.T, strict=True):
        counts: Counter[str] = Counter()
        for word, count in zip(column, times, strict=True):
            counts[word] += int(count)
        ((word, often),) = counts.most_common(1)
        made[name] = Forecast(word, 1 - often / FUTURES)
    return made


def may_stop(forecasts: Iterable[Forecast]) -> bool:
    """Whether further seeds are expected to change at most `CHANGE` of these verdicts."""
    return fmean(one.change for one in forecasts) <= CHANGE


def _futures(mine: Outcomes, baselines: Mapping[str, Outcomes], seeds: int) -> np.ndarray:
    """[futures, seeds, 2]: value and whether solved of the seeds so far and of drawn ones; sorted."""
    draw = np.random.default_rng(0)
    seeds_of = [zip(other.values, other.solved, strict=True) for other in baselines.values()]
    pool = np.array([pair for pairs in seeds_of for pair in pairs], dtype=float)
    seen = np.tile(np.array(list(zip(mine.values, mine.solved, strict=True)), dtype=float), (FUTURES, 1, 1))
    while (so_far := seen.shape[1]) < seeds:
        own = seen[np.arange(FUTURES), draw.integers(so_far, size=FUTURES)]
        others = pool[draw.integers(len(pool), size=FUTURES)]
        from_pool = draw.random(FUTURES) < PRIOR / (PRIOR + so_far)
        seen = np.concatenate([seen, np.where(from_pool[:, None], others, own)[:, None]], axis=1)
    order = np.lexsort((seen[:, :, 1], seen[:, :, 0]), axis=1)
    return np.take_along_axis(seen, order[:, :, None], axis=1)
