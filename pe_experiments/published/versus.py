"""One scheme against a bank: tuned as its baselines were, then repeated until its verdicts hold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from markupsafe import Markup

from pe_experiments.comparison import compared, write_comparison
from pe_experiments.comparison.protocols import Protocol, protocols_of
from pe_experiments.comparison.runs import Runs, read_runs
from pe_experiments.comparison.statistics import ALPHA, Interval, difference_interval, holm, permutation_p
from pe_experiments.comparison.table import METRICS
from pe_experiments.configuration.compose import ConfigMapping, composed
from pe_experiments.configuration.experiment import resolve
from pe_experiments.configuration.schema import check
from pe_experiments.drawing import render
from pe_experiments.published import verdicts
from pe_experiments.published.adopt import hold, spoken
from pe_experiments.published.archive import FILES, SHIPPED, joined, read_archive, read_witness, where
from pe_experiments.published.pages import with_settings
from pe_experiments.published.replay import crossing, kinds_of
from pe_experiments.published.verdicts import EARLIEST, Forecast, Outcomes, forecast, may_stop, outcomes_of
from pe_experiments.store.identity import identify, scheme_label
from pe_experiments.store.names import safe_name
from pe_experiments.sweeps.expansion import Overrides, value_of, with_value
from pe_experiments.sweeps.jobs import DONE, Job
from pe_experiments.sweeps.sweep import Sweep
from pe_experiments.terminal.console import Lines, say
from pe_experiments.terminal.errors import UserError, allowed, few
from pe_experiments.terminal.files import write_atomically

STUDY = "versus"  # the folder of its studies, one per scheme
ALONE = "sweep.against=null 'sweep.baselines=[none,rope]' trains baselines here instead"


@dataclass(frozen=True)
class Standing:
    """A task as far as it has been run; ``seeds`` is how many there would be in all."""

    protocol: Protocol
    mine: Outcomes
    baselines: dict[str, Outcomes]
    forecasts: dict[str, Forecast]
    seeds: int


class Versus(Sweep):
    """A sweep for one scheme that takes its baselines from a bank, a study here or one of the project's."""

    def __init__(self, typed: Sequence[str], common: ConfigMapping, *more: Any):
        super().__init__(typed, common, *more)
        self.results_dir = Path(common["results_dir"])
        configs = [composed("config", run, self.own) for run in self.runs]
        self.label = self._label(configs)
        if self.study == STUDY:
            self.study = f"{STUDY}/{safe_name(self.label).replace('=', '-')}"
        self.runs = [with_value(run, "study", str(self.study)) for run in self.runs]
        self.bank, self.metric = str(self.settings.against), self.settings.metric or verdicts.METRIC
        self.left_out: list[str] = []  # baselines whose code gives other numbers than published
        places = [base / self.bank for base in (self.results_dir, SHIPPED)]
        folder = next((place for place in places if (place / FILES[-1]).exists()), None)
        if folder is None:
            raise UserError(f"sweep.against={self.bank}: no published study there ({places[0]})")
        banked, self.witnessed = read_archive(folder), read_witness(folder)
        self.banked = where(banked, banked.runs["label"] != self.label)
        known, asked = sorted(set(self.banked.runs["label"])), self.settings.baselines
        if unknown := [name for name in asked if name not in known]:
            raise UserError(f"sweep.baselines: {few(unknown)} is not in the bank; allowed: {allowed(known)}")
        self.baselines = asked or known
        self._require_protocol(configs)

    def _label(self, configs: Sequence[ConfigMapping]) -> str:
        schemes = {str([config[key] for key in ("pe", "positions", "label")]): config for config in configs}
        if len(schemes) > 1:
            raise UserError(f"sweep=versus compares one scheme with the bank; here are {len(schemes)}")
        checked = check(next(iter(schemes.values())))
        return checked.label or scheme_label(resolve(checked))

    def _require_protocol(self, configs: Sequence[ConfigMapping]) -> None:
        """Refuse settings that are not the bank's, so that nothing could be compared."""
        by_task = {str([config[key] for key in ("task", "model", "training")]): config for config in configs}
        self.tasks = {str(config["task"]["_target_"]) for config in by_task.values()}
        counts = self.banked.curves.groupby("name")["examples"].first()
        banked = [self._flat(made["identity"], int(counts[name])) for name, made in self.banked.saved.items()]
        tasks = sorted(set(self.banked.runs["task"]))
        for config in by_task.values():
            experiment = resolve(check(config))
            mine = self._flat(identify(experiment).as_dict(), experiment.config.evaluation.examples)
            on_task = [_apart(mine, one) for one in banked if one["task._target_"] == mine["task._target_"]]
            unknown = [f"the task is not in {self.bank}; allowed: {allowed(tasks)}"]
            if why := min(on_task, key=len, default=unknown):
                task = experiment.components["task"].choice
                raise UserError(f"sweep.against={self.bank}, task={task}: {', '.join(why)}; {ALONE}")

    def _flat(self, identity: Mapping[str, Any], examples: int) -> dict[str, Any]:
        """The settings that runs must share to be compared; what is tuned may differ."""
        sections = {group: identity["trained"][group] for group in ("task", "model", "training")}
        flat = {f"{group}.{key}": value for group, own in sections.items() for key, value in own.items()}
        flat.pop(str(self.settings.tune), None)
        return flat | {"evaluation.examples": examples}

    def carry_out(self) -> tuple[int, list[Job]]:
        if not self.dry_run:
            say(f"{self.study}: tuned first, then at least {EARLIEST} seeds of each task")
        self._require_numbers()
        return super().carry_out()

    def _require_numbers(self) -> None:
        """Replay some runs where code or PyTorch are not the bank's; leave out baselines that differ."""
        rows = with_settings(self.banked, target="task._target_")
        compared = rows["label"].isin(self.baselines) & rows["target"].isin(self.tasks)
        kinds = kinds_of(where(self.banked, compared), self.witnessed)
        libraries = {str(kind.environment["libraries"]["torch"]) for kind in kinds}
        edited = sorted({spoken(part) for kind in kinds for part in kind.unknown})
        if libraries == {torch.__version__} and not edited:
            return
        why = f"changed since: {few(edited)}" if edited else f"made with PyTorch {few(sorted(libraries))}"
        say(f"{self.bank}: {why}; here is PyTorch {torch.__version__}")
        if self.dry_run:
            say(f"{self.bank}: some of its runs are replayed first")
            return
        finding = hold(self.bank, crossing(kinds), 1, None, self.results_dir)
        for part, those in finding.refused().items():
            labels = {kind.label for kind in kinds if (part in kind.code if part else kind in those)}
            self.baselines = [label for label in self.baselines if label not in labels]
            if not self.baselines:
                first = finding.differing[those[0].run]
                raise UserError(f"sweep.against={self.bank}: no baseline is left, {first}; {ALONE}")
            self.left_out += sorted(labels)
            say(f"left out of the comparison: {few(sorted(labels))}")
        left = [kind for kind in kinds if kind.label in self.baselines]
        if still := {spoken(part) for kind in left for part in kind.unknown}:
            why = f"{few(sorted(still))} is not the code that made it, and only the project's can be adopted"
            raise UserError(f"sweep.against={self.bank}: {why}; {ALONE}")

    def _repeated(self, runs: Sequence[Overrides], grid: Sequence[Job]) -> list[Job]:
        left: dict[str, list[Job]] = {}
        for job in self._look_up(runs):
            left.setdefault(str(job.config.get("task")), []).append(job)
        if self.dry_run:  # of a task whose verdicts hold, what has been run
            rest = self._rest(left, 0)
            both = ((task, job) for task, queue in left.items() for job in queue)
            return self._finish([job for task, job in both if job.state in DONE or task in rest])
        carried: list[Job] = []
        while left:
            seeds = max(1 if carried else EARLIEST, self.processes // len(left))
            carried += self._finish([job for queue in left.values() for job in queue[:seeds]])
            if grid:
                self.tuning.note(carried, grid)
            left = self._rest(left, seeds)
        return carried

    def _rest(self, left: dict[str, list[Job]], done: int) -> dict[str, list[Job]]:
        """Of the runs of each task those after the first ``done``, unless its verdicts hold already."""
        begun = any(job.state in DONE for queue in left.values() for job in queue)
        complete: set[str] = set()
        for one in self.standings()[0] if begun else []:
            if len(one.mine.values) >= EARLIEST and may_stop(one.forecasts.values(), self.settings.change):
                complete |= set(one.protocol.runs["name"])
        return {task: q[done:] for task, q in left.items() if q[done:] and q[0].name not in complete}

    def standings(self) -> tuple[list[Standing], Runs]:
        """Every task that has been run, and all runs that are compared."""
        mine = read_runs(self.results_dir, str(self.study))
        shared = set(mine.runs["protocol"]) & set(self.banked.runs["protocol"])
        both = joined(*(where(runs, runs.runs["protocol"].isin(shared)) for runs in (self.banked, mine)))
        seeds = len({value_of(run, "seed") for run in self.runs})
        made = []
        for protocol in protocols_of(both):
            found = outcomes_of(protocol, self.metric)
            others = {name: found[name] for name in self.baselines if name in found}
            if others:
                own = found[self.label]
                made.append(Standing(protocol, own, others, forecast(own, others, seeds), seeds))
        return made, where(both, both.runs["label"].isin([self.label, *self.baselines]))


def _apart(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    keys = [key for key in {**one, **other} if one.get(key) != other.get(key)]
    return [f"{key}={one.get(key)} (there: {other.get(key)})" for key in keys]


def report(versus: Versus) -> None:
    """Write tables, figures and page of the scheme beside the bank, and print what the page says."""
    standings, runs = versus.standings()
    rows, done = verdict_rows(standings), [len(one.mine.values) for one in standings]
    left = sum(one.seeds for one in standings) - sum(done)
    cost = f"{sum(done)} runs on {len(standings)} tasks, besides tuning; {left} were not needed"
    folder, title = versus.results_dir / str(versus.study), f"{versus.label} against {versus.bank}"
    panel = render(
        Path(__file__).with_name("verdicts.html.j2"),
        versus=versus,
        tasks=[(task, own.to_dict("records")) for task, own in rows.groupby("task", sort=False)],
        cost=cost,
        sides=verdicts.SIDES,
    )
    most, change = max((one.seeds for one in standings), default=0), versus.settings.change
    note = (
        f"All but {versus.label} are published runs of {versus.bank}. On a task {versus.label} was run with "
        f"{EARLIEST} to {most} seeds, until less than {100 * change:g} % of its verdicts were expected to "
        f"change with the rest; intervals and tests are not adjusted for that."
    )
    metric = versus.metric if versus.metric in METRICS else verdicts.METRIC  # of the matrix
    made = replace(compared(runs, metric, baseline=versus.label), own=versus.label, note=note)
    write_comparison(made, title, folder, Lines(), Markup(panel))
    write_atomically(folder / "verdicts.csv", rows.to_csv(index=False))
    rows["sign"] = rows["verdict"].map(verdicts.SIGNS) + rows["settled"].map({True: "", False: "?"})
    signs = rows.pivot(index="task", columns="baseline", values="sign")
    say(signs.to_string(na_rep=""))
    say(f"{verdicts.KEY}\n{cost}")
    say(f"page: {folder / 'report.html'}")


def verdict_rows(standings: Sequence[Standing]) -> pd.DataFrame:
    """One row per task and baseline; an interval where all seeds have run, at the level of its test."""
    rows: list[dict[str, Any]] = []
    for one in standings:
        settled, mine = len(one.mine.values) >= one.seeds, np.array(one.mine.values)
        tested = {name for name, made in one.forecasts.items() if made.verdict in verdicts.TESTED and settled}
        ps = [permutation_p(mine, o.values) if n in tested else math.nan for n, o in one.baselines.items()]
        for (name, other), p, adjusted in zip(one.baselines.items(), ps, holm(ps), strict=True):
            theirs = np.array(other.values)
            apart = Interval(mine.mean() - theirs.mean())
            if name in tested:
                apart = difference_interval(mine, theirs, ALPHA * p / adjusted)
            about: dict[str, Any] = {"section": one.protocol.slug, "task": one.protocol.title}
            about |= {"baseline": name, **vars(one.forecasts[name]), "settled": settled, "mean": mine.mean()}
            about |= {"baseline_mean": theirs.mean(), "difference": apart.estimate, "low": apart.low}
            about |= {"high": apart.high, "p_holm": adjusted, "seeds": len(mine), "of": one.seeds}
            rows.append(about | {"baseline_seeds": len(theirs)})
    return pd.DataFrame(rows)
