"""A sweep that first chooses a setting per scheme, then repeats the chosen one over the seeds.

The choice is made on the loss on fresh examples of the *training* lengths, in the run's ``metrics.csv``.
Nothing is ever selected on the lengths beyond.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from pe_experiments.config import SweepConfig
from pe_experiments.errors import UserError
from pe_experiments.runs import RunDirectory, write_manifest
from pe_experiments.sweeps.expansion import Overrides, breadth_first, value_of, without
from pe_experiments.sweeps.jobs import DIVERGED, DONE, Job
from pe_experiments.tracking import read_metrics

Losses = dict[Overrides, dict[str, float]]  # by group and value tried


class Tuning:
    """The two halves of a tuned sweep. Runs that differ only in seed and in the tuned value are a group.

    Args:
        runs: every combination, over the values of ``settings.tune`` and over seeds.
        settings: the ``sweep`` section.
        study: name of the sweep's study; the grid is listed in ``<study>_grid``.

    Raises:
        UserError: the sweep does not vary that setting, or is no study of its own.
    """

    def __init__(self, runs: Sequence[Overrides], settings: SweepConfig, study: str | None):
        self.runs, self.key, self.study = runs, str(settings.tune), study
        if not study:
            raise UserError(f"sweep.tune={self.key} needs a study of its own; add study=NAME")
        if any(value_of(run, self.key) is None for run in runs):
            raise UserError(
                f"sweep.tune={self.key}: the sweep gives no values for it; for example {self.key}=0.001,0.003"
            )
        self.seeds = [str(seed) for seed in settings.tuning_seeds or []]

    def grid(self) -> list[Overrides]:
        """The tuning seeds, or else its first seed, of every group at every value."""
        values = {
            group: list(dict.fromkeys(value_of(r, self.key) for r in of)) for group, of in self._groups()
        }
        return self._at({group: [str(value) for value in tried] for group, tried in values.items()})

    def outwards(self, grid: Iterable[Job]) -> list[Overrides]:
        """The grid's next value for every group whose best value is the largest or the smallest one tried.

        Raises:
            UserError: the values are no numbers.
        """
        wider = {}
        for group, tried in self.losses(grid).items():
            try:
                best, *others = sorted(tried, key=lambda value: (tried[value], value))
                ordered = sorted(map(float, tried))
            except ValueError as error:
                raise UserError(f"sweep.tune_outwards: values of {self.key} are no numbers") from error
            if others and float(best) in (ordered[0], ordered[-1]):
                inner = ordered[1] if float(best) == ordered[0] else ordered[-2]
                wider[group] = [f"{float(best) ** 2 / inner:.3g}"]
        return self._at(wider)

    def losses(self, grid: Iterable[Job]) -> Losses:
        """The mean validation loss over the tuning seeds, where all of a value's runs have finished."""
        found: dict[Overrides, dict[str, list[float | None]]] = {}
        for job in grid:
            done = job.state in DONE
            loss = math.inf if job.state == DIVERGED else validation_loss(job.run) if done else None
            value = str(value_of(job.overrides, self.key))
            found.setdefault(self._group(job.overrides), {}).setdefault(value, []).append(loss)
        means: Losses = {group: {} for group in found}
        for group, tried in found.items():
            for value, losses in tried.items():
                if (known := [loss for loss in losses if loss is not None]) and len(known) == len(losses):
                    means[group][value] = fmean(known)
        return {group: tried for group, tried in means.items() if tried}

    def chosen(self, grid: Iterable[Job]) -> dict[Overrides, str]:
        """The value with the lowest loss per group."""
        return {group: min(tried, key=lambda v: tried[v]) for group, tried in self.losses(grid).items()}

    def repeats(self, chosen: dict[Overrides, str]) -> list[Overrides]:
        """Every seed at the chosen values."""
        runs = [
            self._with(run, self.key, chosen[group])
            for group, of_group in self._groups()
            for run in of_group
            if group in chosen
        ]
        return breadth_first(dict.fromkeys(runs))

    def note(self, jobs: Sequence[Job], grid: Sequence[Job]) -> None:
        """List the runs at the values now chosen, and what was tuned and how: no part of the protocol.

        Runs of an earlier choice leave the list: a scheme at two values is not one scheme.
        """
        done = [job for job in jobs if job.state in DONE]
        for results_dir, study in {job.study for job in done}:
            names = [job.name for job in done if job.study == (results_dir, study)]
            facts = {"tuned": [self.key], "tuning": self._choices(grid)}
            write_manifest(Path(results_dir), study, names, **facts)

    def _choices(self, grid: Sequence[Job]) -> list[dict[str, Any]]:
        """What was chosen per group, from which runs and by which mean loss of each value tried."""
        made = []
        for group, tried in self.losses(grid).items():
            jobs = [job for job in grid if job.state in DONE and self._group(job.overrides) == group]
            results = [result for job in jobs if (result := job.run.read_result())]
            seeds = list(dict.fromkeys(result["seed"] for result in results))
            about = {"scheme": results[0]["label"]} | {key: results[0][key] for key in ("task", "model")}
            said = {value: None if math.isinf(loss) else loss for value, loss in tried.items()}
            best = min(tried, key=lambda value: tried[value])
            seed = seeds[0] if len(seeds) == 1 else seeds
            runs = [job.name for job in jobs]
            made.append(
                about | {"setting": self.key, "seed": seed, "tried": said, "chosen": best, "runs": runs}
            )
        return made

    def _groups(self) -> Iterable[tuple[Overrides, list[Overrides]]]:
        groups: dict[Overrides, list[Overrides]] = {}
        for run in self.runs:
            groups.setdefault(self._group(run), []).append(run)
        return groups.items()

    def _group(self, run: Overrides) -> Overrides:
        return without(run, self.key, "seed", "study")

    def _at(self, values: dict[Overrides, list[str]]) -> list[Overrides]:
        """The tuning seeds of groups at these values, listed in the study of the grid."""
        runs = []
        for group, of_group in self._groups():
            for value in values.get(group, []):
                for seed in self.seeds or [str(value_of(of_group[0], "seed") or 0)]:
                    run = self._with(of_group[0], self.key, value)
                    run = self._with(run, "seed", seed)
                    runs.append(self._with(run, "study", f"{self.study}_grid"))
        return breadth_first(dict.fromkeys(runs))

    @staticmethod
    def _with(run: Overrides, key: str, value: str) -> Overrides:
        return (*without(run, key), f"{key}={value}")


def validation_loss(run: RunDirectory) -> float:
    """The last loss on fresh examples of the training lengths; infinite where it is none."""
    losses = [row["validation_loss"] for row in read_metrics(run.metrics) if "validation_loss" in row]
    return losses[-1] if losses and math.isfinite(losses[-1]) else math.inf
