"""A sweep that chooses a setting per scheme, by the loss on *training* lengths, then repeats that choice."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from pe_experiments.configuration.schema import SweepConfig
from pe_experiments.store.csv_files import read_metrics
from pe_experiments.store.directory import write_manifest
from pe_experiments.sweeps.expansion import Overrides, breadth_first, value_of, with_value, without
from pe_experiments.sweeps.jobs import DIVERGED, DONE, PUBLISHED, Job
from pe_experiments.terminal.errors import UserError

EXAMPLES = "20"  # per length, of runs that are not reported
Losses = Mapping[str, float]  # by the value tried, or by the run's name


class Tuning:
    """The two halves of a tuned sweep. Runs that differ only in seed and in the tuned value are a group."""

    def __init__(
        self, runs: Sequence[Overrides], settings: SweepConfig, study: str | None, published: Losses
    ):
        self.key, self.study, self.seeds = str(settings.tune), study, settings.tuning_seeds
        self.published = published  # validation losses of published runs, by configuration
        self.groups: dict[Overrides, list[Overrides]] = {}
        if not study:
            raise UserError(f"sweep.tune={self.key} needs a study of its own; add study=NAME")
        for run in runs:
            if value_of(run, self.key) is None:
                example = f"for example {self.key}=0.001,0.003"
                raise UserError(f"sweep.tune={self.key}: the sweep gives no values for it; {example}")
            self.groups.setdefault(self._group(run), []).append(run)

    def grid(self) -> list[Overrides]:
        """The tuning seeds, or else its first seed, of every group at every value."""
        groups = self.groups.items()
        return self._at({group: [str(value_of(run, self.key)) for run in runs] for group, runs in groups})

    def outwards(self, grid: Iterable[Job]) -> list[Overrides]:
        """The grid's next value for every group whose best value is the largest or the smallest one tried."""
        wider = {}
        try:
            for group, tried in self.losses(grid).items():
                best, values = float(_best(tried)), sorted(map(float, tried))
                if len(values) > 1 and best in (values[0], values[-1]):
                    inner = values[1] if best == values[0] else values[-2]
                    wider[group] = [f"{best**2 / inner:.3g}"]
        except ValueError as error:
            raise UserError(f"sweep.tune_outwards: {self.key} has values that are no numbers") from error
        return self._at(wider)

    def losses(self, grid: Iterable[Job]) -> dict[Overrides, dict[str, float]]:
        """By group and value tried: the mean validation loss, where the runs of all tuning seeds are done."""
        found: dict[tuple[Overrides, str], list[float]] = {}
        for job in grid:
            found.setdefault(self._tried(job), []).append(self._loss(job))
        means: dict[Overrides, dict[str, float]] = {}
        for (group, value), losses in found.items():
            if not math.isnan(mean := fmean(losses)):
                means.setdefault(group, {})[value] = mean
        return means

    def repeats(self, grid: Iterable[Job]) -> list[Overrides]:
        """Every seed of every group at the value with the lowest loss."""
        chosen = {group: _best(tried) for group, tried in self.losses(grid).items()}
        return breadth_first(
            with_value(run, self.key, value) for group, value in chosen.items() for run in self.groups[group]
        )

    def note(self, jobs: Sequence[Job], grid: Sequence[Job]) -> None:
        """List the runs at the values now chosen, instead of an earlier choice, and how they were chosen."""
        done, tuning = [job for job in grid if job.state in DONE], []
        for group, tried in self.losses(grid).items():
            known = {(group, value) for value in tried}  # all tuning seeds of these are done
            if own := [job for job in done if self._tried(job) in known]:
                tuning.append(self._choice(tried, own))
        for results_dir, study in {job.study for job in jobs}:
            names = [job.name for job in jobs if job.state in DONE and job.study == (results_dir, study)]
            write_manifest(Path(results_dir), study, names, tuned=[self.key], tuning=tuning)

    def _choice(self, tried: dict[str, float], jobs: Sequence[Job]) -> dict[str, Any]:
        """The choice for a group, the mean loss of each value tried, and the runs behind it."""
        results = [job.run.read_result() or {} for job in jobs]
        seeds = list(dict.fromkeys(result["seed"] for result in results))
        losses = []
        for job, result in zip(jobs, results, strict=True):
            value, loss = value_of(job.overrides, self.key), _finite(self._loss(job))
            losses.append({"name": job.name, "seed": result["seed"], "value": value, "loss": loss})
        return {
            "scheme": results[0]["label"],
            "task": results[0]["task"],
            "model": results[0]["model"],
            "settings": jobs[0].config["task"],
            "setting": self.key,
            "seed": seeds[0] if len(seeds) == 1 else seeds,
            "tried": {value: _finite(loss) for value, loss in tried.items()},
            "chosen": _best(tried),
            "losses": losses,
        }

    def _loss(self, job: Job) -> float:
        """The last loss on fresh examples: NaN where a run is not done, infinite where it diverged."""
        if job.state == PUBLISHED:
            return self.published[job.key]
        if job.state == DIVERGED:
            return math.inf
        if job.state not in DONE:
            return math.nan
        losses = [row["validation_loss"] for row in read_metrics(job.run.metrics) if "validation_loss" in row]
        return losses[-1] if losses and math.isfinite(losses[-1]) else math.inf

    def _tried(self, job: Job) -> tuple[Overrides, str]:
        return self._group(job.overrides), str(value_of(job.overrides, self.key))

    def _group(self, run: Overrides) -> Overrides:
        return without(run, self.key, "seed", "study", "evaluation.examples")

    def _at(self, values: Mapping[Overrides, Iterable[str]]) -> list[Overrides]:
        """The tuning seeds of groups at these values, listed in the study of the grid."""
        runs = []
        for group, several in values.items():
            first = with_value(self.groups[group][0], "study", f"{self.study}_grid")
            if self.seeds:  # only their loss is read, and measuring long inputs takes as long as training
                first = with_value(first, "evaluation.examples", EXAMPLES)
            for seed in map(str, self.seeds or [value_of(first, "seed") or 0]):  # type: ignore[list-item]
                runs += [with_value(with_value(first, self.key, v), "seed", seed) for v in several]
        return breadth_first(runs)


def _best(tried: Losses) -> str:
    return min(tried, key=lambda value: tried[value])


def _finite(loss: float) -> float | None:
    return None if math.isinf(loss) else loss
