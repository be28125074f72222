"""One scheme against a bank: over the bank's settings and rates, until its verdicts hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from pe_experiments import NUMERICS
from pe_experiments.comparison.runs import Runs, read_runs
from pe_experiments.configuration.compose import ConfigMapping, composed
from pe_experiments.configuration.experiment import resolve
from pe_experiments.configuration.schema import check
from pe_experiments.published.archive import FILES, SHIPPED, read_archive, where
from pe_experiments.published.pages import with_settings
from pe_experiments.published.scores import FLOORS, RATE, SCORE, SECTIONS, scored, scores_of
from pe_experiments.published.verdicts import EARLIEST, Forecast, forecast, may_stop
from pe_experiments.store.directory import list_in_study
from pe_experiments.store.names import jsonable, safe_name
from pe_experiments.sweeps.expansion import Overrides, value_of, with_value
from pe_experiments.sweeps.jobs import DONE, Job
from pe_experiments.sweeps.sweep import Sweep
from pe_experiments.terminal.console import say
from pe_experiments.terminal.errors import UserError, allowed, few

MOST_SETTINGS = 16  # whose signs are all flipped
STUDY = "versus"  # the folder of its studies, one per scheme
ALONE = "sweep=baselines trains baselines here instead"
Queues = dict[str, list[list[Job]]]  # by task, a list for every setting: its runs


@dataclass(frozen=True)
class Standing:
    """A task as far as it has been run."""

    task: str
    mine: pd.Series  # by setting that was run: the score, NaN where the task was not learned
    others: pd.DataFrame  # of the baselines, [settings, schemes], in all settings of the bank
    forecasts: dict[str, Forecast]

    @property
    def complete(self) -> bool:
        return len(self.mine) == len(self.others)


Report = Callable[["Versus", list[Standing]], None]


class Versus(Sweep):
    """A sweep for one scheme that takes its baselines from a bank, a study here or one of the project's."""

    def __init__(self, report: Report, typed: Sequence[str], common: ConfigMapping, *more: Any):
        """``report`` is told whenever a setting of every task has been run; the others as of `Sweep`."""
        super().__init__(typed, common, *more)
        self.report = report
        self.results_dir = Path(common["results_dir"])
        self.bank, self.metric = str(self.settings.against), self.settings.metric or SCORE
        if self.settings.tune:
            raise UserError(f"sweep.tune={self.settings.tune}: {self.bank} says which rates are run; {ALONE}")
        configs = [composed("config", run, self.own) for run in self.runs]
        self.label = self._label(configs)
        if self.study == STUDY:
            self.study = f"{STUDY}/{safe_name(self.label).replace('=', '-')}"
        self.runs = [with_value(run, "study", str(self.study)) for run in self.runs]
        self.names: set[str] = set()  # of the scheme's runs
        places = [base / self.bank for base in (self.results_dir, SHIPPED)]
        folder = next((place for place in places if (place / FILES[-1]).exists()), None)
        if folder is None:
            raise UserError(f"sweep.against={self.bank}: no published study there ({places[0]})")
        banked = read_archive(folder)
        if self.label in set(banked.runs["label"]) and configs[0]["label"]:
            raise UserError(f"label={self.label}: that is a scheme of {self.bank}; take another")
        known = sorted(set(banked.runs["label"]) - {self.label})
        if unknown := [name for name in self.settings.baselines if name not in known]:
            raise UserError(f"sweep.baselines: {few(unknown)} is not in the bank; allowed: {allowed(known)}")
        self.baselines = self.settings.baselines or known
        self.floors = pd.read_csv(folder / FLOORS) if (folder / FLOORS).exists() else None
        self.banked = self._complete(banked)
        self._require_settings(configs)

    def _label(self, configs: Sequence[ConfigMapping]) -> str:
        schemes = {str([config[key] for key in ("pe", "positions", "label")]): config for config in configs}
        if len(schemes) > 1:
            raise UserError(f"sweep=versus compares one scheme with the bank; here are {len(schemes)}")
        checked = check(next(iter(schemes.values())))
        return resolve(checked).label

    def _complete(self, banked: Runs) -> Runs:
        """Of the bank the settings in which all baselines have run."""
        banked = where(banked, banked.runs["label"].isin(self.baselines))
        settings = scored(banked, self.floors, [self.metric])[["task", "setting"]].drop_duplicates()
        if settings.empty:
            raise UserError(f"sweep.against={self.bank}: no task and seed with all schemes at all rates")
        complete = set(settings.itertuples(index=False, name=None))
        if (most := settings.groupby("task").size().max()) > MOST_SETTINGS:
            raise UserError(f"sweep.against={self.bank}: {most} seeds of a task, more than {MOST_SETTINGS}")
        pairs = zip(banked.runs["task"], banked.runs["seed"], strict=True)
        return where(banked, pd.Series([pair in complete for pair in pairs]))

    def _require_settings(self, configs: Sequence[ConfigMapping]) -> None:
        """Leave out runs in settings that the bank does not have; refuse a sweep without any other."""
        points = self.banked.curves.groupby("name")
        measured = points.agg(examples=("examples", "first"), lengths=("content_length", list))
        banked: dict[str, list[dict[str, Any]]] = {}
        self.tasks: dict[str, str] = {}  # by class
        for name, task in self.banked.runs[["name", "task"]].itertuples(index=False):
            trained, (count, lengths) = self.banked.saved[name]["identity"]["trained"], measured.loc[name]
            target = trained["task"]["_target_"]
            banked.setdefault(target, []).append(_flat(trained, int(count), lengths))
            self.tasks[target] = task
        unknown = [f"the task is not in {self.bank}; allowed: {allowed(sorted(self.tasks.values()))}"]
        kept, missing = [], dict[str, tuple[list[str], int]]()
        for run, config in zip(self.runs, configs, strict=True):
            experiment = resolve(check(config))
            part, examples = experiment.components["task"], config["evaluation"]["examples"]
            lengths = {experiment.evaluation_task.nearest_length(n) for n in experiment.evaluation_lengths}
            mine = _flat(jsonable(experiment.trained), examples, lengths)
            apart = [_apart(mine, one) for one in banked.get(part.target, [])]
            if why := min(apart, key=len, default=unknown):
                least, count = missing.get(str(part.choice), (why, 0))
                missing[str(part.choice)] = min(least, why, key=len), count + 1
            else:
                kept.append(run)
        if not kept:
            task, (why, _) = min(missing.items(), key=lambda one: (one[1][0] == unknown, len(one[1][0])))
            raise UserError(f"sweep.against={self.bank}, task={task}: {', '.join(why)}; {ALONE}")
        if missing:
            those = [f"{count} of {task}" for task, (_, count) in missing.items()]
            say(f"left out, for want of published runs in their settings: {', '.join(those)}")
        self._require_rates(kept)
        self.runs = kept

    def _require_rates(self, runs: Sequence[Overrides]) -> None:
        rates = sorted(set(with_settings(self.banked, rate=RATE)["rate"]))
        counts = Counter((value_of(run, "task"), value_of(run, "seed")) for run in runs)
        if min(counts.values()) < len(rates):
            each = f"{self.bank} has {', '.join(map(str, rates))} in every setting"
            raise UserError(f"{RATE}={value_of(runs[0], RATE)}: {each}; leave it out")

    def carry_out(self) -> tuple[int, list[Job]]:
        self._say_who_made_the_baselines()
        return super().carry_out()

    def _say_who_made_the_baselines(self) -> None:
        names = list(self.banked.runs["name"])
        numerics = {str(self.banked.saved[name]["identity"]["hashed"]["numerics"]) for name in names}
        versions = {str(self.banked.environments[name]["libraries"]["torch"]) for name in names}
        self.made_with = f"NUMERICS {few(sorted(numerics))} and PyTorch {few(sorted(versions))}"
        here = f"NUMERICS {NUMERICS} and PyTorch {torch.__version__}"
        say(f"{self.bank}: the baselines were trained with {self.made_with}; yours with {here}")

    def _repeated(self, runs: Sequence[Overrides], grid: Sequence[Job]) -> list[Job]:
        jobs = self._look_up(runs)
        self.names = {job.name for job in jobs}
        settings: dict[str, dict[int, list[Job]]] = {}
        for job in jobs:
            task = self.tasks[job.config["task"]["_target_"]]
            settings.setdefault(task, {}).setdefault(job.config["seed"], []).append(job)
        left = {task: list(own.values()) for task, own in settings.items()}
        if self.dry_run:  # of a task whose verdicts hold, what has been run
            rest = self._rest(left, 0, self._standings(jobs))
            listed = ((task, job) for task, queue in left.items() for own in queue for job in own)
            return self._finish([job for task, job in listed if job.state in DONE or task in rest])
        carried: list[Job] = []
        while left:
            together = sum(len(queue[0]) for queue in left.values())  # one setting of every task
            count = max(1 if carried else EARLIEST, self.processes // together)
            first = (queue[turn] for turn in range(count) for queue in left.values() if turn < len(queue))
            carried += self._finish([job for own in first for job in own])
            if standings := self._standings(carried):
                self.report(self, standings)
            left = self._rest(left, count, standings)
        run = len({(str(job.config["task"]), job.config["seed"]) for job in carried})
        if gone := run - sum(len(one.mine) for one in standings):
            say(f"not compared: {gone} settings that are too few, or in which a run is not finished")
        return carried

    def _rest(self, left: Queues, done: int, standings: Iterable[Standing]) -> Queues:
        """Of the settings of each task those after the first ``done``, unless its verdicts hold already."""
        hold = {one.task for one in standings if may_stop(one.forecasts.values(), self.settings.change)}
        return {task: queue[done:] for task, queue in left.items() if queue[done:] and task not in hold}

    def together(self) -> Runs:
        """The runs of the baselines, and those of the scheme so far."""
        bank = where(self.banked, self.banked.runs["label"].isin(self.baselines))  # without those left out
        mine = read_runs(self.results_dir, str(self.study))
        mine = where(mine, mine.runs["name"].isin(self.names))
        mine.runs["label"] = mine.curves["label"] = self.label  # trained for another study it has another
        runs, curves = (pd.concat([getattr(one, key) for one in (bank, mine)]) for key in ("runs", "curves"))
        return Runs(runs.reset_index(drop=True), curves, saved=bank.saved | mine.saved)

    def scored(self) -> pd.DataFrame:
        """The scores of the baselines in all settings, and of the scheme in those that it has run."""
        runs, metrics = self.together(), list(dict.fromkeys((SCORE, self.metric)))
        own = runs.runs["label"] == self.label
        both = scored(runs, self.floors, metrics)
        bank = scored(where(runs, ~own), self.floors, metrics)
        return pd.concat([bank, both[both["label"] == self.label]], ignore_index=True)

    def _standings(self, jobs: Iterable[Job]) -> list[Standing]:
        """Every task of which enough settings have been run."""
        made = list[Standing]()
        done = [job.name for job in jobs if job.state in DONE]
        if done and not self.dry_run:
            list_in_study(self.results_dir, str(self.study), *done)  # those trained for another, too
        if not done or not (self.results_dir / str(self.study) / "manifest.json").exists():
            return made
        for task, rows in self.scored().groupby("task"):
            scores = scores_of(rows, self.metric)
            run = rows.loc[rows["label"] == self.label, "setting"]
            if len(run) >= min(EARLIEST, len(scores)):
                mine, others = scores.loc[run, self.label], scores.drop(columns=self.label)
                made.append(Standing(str(task), mine, others, forecast(mine, others)))
        return made


def _flat(trained: Mapping[str, Any], examples: int, lengths: Iterable[int]) -> dict[str, Any]:
    """What runs must share to be compared."""
    flat = {f"{part}.{key}": trained[part][key] for part in SECTIONS for key in trained[part]}
    flat |= {"seed": trained["seed"], "evaluation.examples": examples}
    return flat | {"evaluation.lengths": sorted(lengths)}


def _apart(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    keys = [key for key in {**one, **other} if one.get(key) != other.get(key)]
    return [f"{key}={one.get(key)} (there: {other.get(key)})" for key in keys]
