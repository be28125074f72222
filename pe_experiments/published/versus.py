"""One scheme against a bank: tuned as its baselines were, then repeated until its verdicts hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from pe_experiments.comparison.protocols import Protocol
from pe_experiments.comparison.runs import Runs, load_runs
from pe_experiments.configuration.compose import ConfigMapping, composed
from pe_experiments.configuration.experiment import resolve
from pe_experiments.configuration.schema import check
from pe_experiments.published.adopt import hold, spoken
from pe_experiments.published.archive import where
from pe_experiments.published.bank import outcomes_of, read_bank
from pe_experiments.published.kinds import Kind, crossing
from pe_experiments.published.stopping import EARLIEST, Forecast, forecast, may_stop
from pe_experiments.published.verdicts import Outcomes
from pe_experiments.store.identity import identify, safe_name, scheme_label
from pe_experiments.sweeps.expansion import Overrides, value_of, with_value
from pe_experiments.sweeps.jobs import DONE, Job
from pe_experiments.sweeps.sweep import Sweep
from pe_experiments.terminal.console import say
from pe_experiments.terminal.errors import UserError, allowed, few

STUDY = "versus"  # the folder of its studies, one per scheme
FIRST = 20  # steps of a run that tell whether code still computes what it did
ALONE = "sweep.against=null 'sweep.baselines=[none,rope]' trains baselines here instead"


@dataclass(frozen=True)
class Standing:
    """A task as far as it has been run.

    Attributes:
        protocol: of the comparison.
        mine, baselines: the seeds so far, and those of each scheme of the bank.
        forecasts: by baseline.
        seeds: how many there would be in all.
    """

    protocol: Protocol
    mine: Outcomes
    baselines: dict[str, Outcomes]
    forecasts: dict[str, Forecast]
    seeds: int

    def names(self, label: str) -> set[str]:
        """Names of the runs of a scheme."""
        return set(self.protocol.runs.loc[self.protocol.runs["label"] == label, "name"])

    @property
    def complete(self) -> bool:
        """Whether the seeds that are left may be saved."""
        done = len(self.mine.values)
        return done >= self.seeds or (done >= EARLIEST and may_stop(self.forecasts.values()))


class Versus(Sweep):
    """A sweep over the tasks of a protocol, for one scheme, that takes the baselines from the bank.

    Args:
        typed, common, varied, own: of `Sweep`; ``sweep.against`` names the bank, ``sweep.baselines`` some of
            its schemes.

    Raises:
        UserError: no such bank, or not exactly one scheme to compare with it.
    """

    def __init__(
        self,
        typed: Sequence[str],
        common: ConfigMapping,
        varied: ConfigMapping | None,
        own: Path | None = None,
    ):
        super().__init__(typed, common, varied, own)
        self.results_dir = Path(common["results_dir"])
        configs = [composed("config", run, self.own) for run in self.runs]
        self.label = self._label(configs)
        if self.study == STUDY:
            self.study = f"{STUDY}/{safe_name(self.label).replace('=', '-')}"
        self.runs = [with_value(run, "study", str(self.study)) for run in self.runs]
        self.bank = read_bank(str(self.settings.against), self.results_dir).without(self.label)
        known, asked = self.bank.schemes, self.settings.baselines
        if unknown := [name for name in asked if name not in known]:
            raise UserError(f"sweep.baselines: {few(unknown)} is not in the bank; allowed: {allowed(known)}")
        self.baselines = asked or known
        self._require_protocol(configs)
        self.seconds: dict[str, float] = {}  # of training, by run

    def _label(self, configs: Sequence[ConfigMapping]) -> str:
        schemes = {str([config[key] for key in ("pe", "positions", "label")]): config for config in configs}
        if len(schemes) > 1:
            raise UserError(f"sweep=versus compares one scheme with the bank; here are {len(schemes)}")
        checked = check(next(iter(schemes.values())))
        return checked.label or scheme_label(resolve(checked))

    def _require_protocol(self, configs: Sequence[ConfigMapping]) -> None:
        """
        Raises:
            UserError: a setting is not the bank's, so that nothing could be compared.
        """
        by_task = {str([config[key] for key in ("task", "model", "training")]): config for config in configs}
        tuned = [self.settings.tune] if self.settings.tune else []
        self.tasks = {str(config["task"]["_target_"]) for config in by_task.values()}
        for config in by_task.values():
            experiment = resolve(check(config))
            examples = experiment.config.evaluation.examples
            if apart := self.bank.unlike(identify(experiment).as_dict(), examples, tuned):
                task = experiment.components["task"].choice
                raise UserError(f"sweep.against={self.bank.study}, task={task}: {apart}; {ALONE}")

    def carry_out(self) -> tuple[int, list[Job]]:
        """Make sure of the bank's numbers, then tune and repeat the scheme."""
        self._require_numbers()
        return super().carry_out()

    def _require_numbers(self) -> None:
        """Where code or PyTorch are not the bank's, replay some of its runs with what is here.

        A baseline that gives other numbers is left out.

        Raises:
            UserError: all of them do.
        """
        kinds = self._kinds()
        libraries = {str(kind.machine["libraries"]["torch"]) for kind in kinds}
        edited = sorted({spoken(part) for kind in kinds for part in kind.unknown})
        if libraries == {torch.__version__} and not edited:
            return
        why = f"changed since: {few(edited)}" if edited else f"made with PyTorch {few(sorted(libraries))}"
        say(f"{self.bank.study}: {why}; here is PyTorch {torch.__version__}")
        if self.dry_run:
            say(f"{self.bank.study}: some of its runs are replayed first")
            return
        finding = hold(self.bank.study, crossing(kinds), 1, FIRST, self.results_dir)
        for part, those in finding.refused().items():
            first = finding.differing[those[0].run]
            labels = {kind.label for kind in kinds if (part in kind.code if part else kind in those)}
            self.baselines = [label for label in self.baselines if label not in labels]
            if not self.baselines:
                raise UserError(f"sweep.against={self.bank.study}: no baseline is left, {first}; {ALONE}")
            say(f"left out of the comparison: {few(sorted(labels))}")
        if still := {spoken(part) for kind in self._kinds() for part in kind.unknown}:
            raise UserError(
                f"sweep.against={self.bank.study}: {few(sorted(still))} is not the code that made it, and "
                f"only code of the project's own studies can be adopted; {ALONE}"
            )

    def _kinds(self) -> list[Kind]:
        """The kinds of run of the bank that are compared with."""
        return self.bank.kinds(self.baselines, self.tasks)

    def _finish(self, jobs: list[Job]) -> list[Job]:
        done = super()._finish(jobs)
        results = {job.name: job.run.read_result() or {} for job in done if job.state in DONE}
        self.seconds |= {name: r["steps"] * (r["seconds_per_step"] or 0) for name, r in results.items()}
        return done

    def _repeated(self, runs: Sequence[Overrides], grid: Sequence[Job]) -> list[Job]:
        """Seed after seed of every task, until its verdicts are unlikely to change."""
        jobs = self._look_up(runs)
        if self.dry_run:
            return self._finish(jobs)
        left: dict[str, list[Job]] = {}
        for job in jobs:
            left.setdefault(str(job.config.get("task")), []).append(job)
        carried: list[Job] = []
        while left:
            seeds = max(1 if carried else EARLIEST, self.processes // len(left))
            carried += self._finish([job for queue in left.values() for job in queue[:seeds]])
            if grid:
                self.tuning.note(carried, grid)
            found = self.standings()[0] if any(job.state in DONE for job in carried) else []
            complete = {name for one in found if one.complete for name in one.names(self.label)}
            left = {
                task: rest
                for task, queue in left.items()
                if (rest := queue[seeds:]) and queue[0].name not in complete
            }
        return carried

    def standings(self) -> tuple[list[Standing], Runs]:
        """Every task that has been run, and all runs that are compared."""
        protocols, both = self.bank.beside(load_runs(self.results_dir, str(self.study)))
        seeds = len({value_of(run, "seed") for run in self.runs})
        made = []
        for protocol in protocols:
            found = outcomes_of(protocol)
            mine, others = found[self.label], {name: found[name] for name in self.baselines if name in found}
            if others:
                made.append(Standing(protocol, mine, others, forecast(mine, others, seeds), seeds))
        compared = both.runs["label"].isin([self.label, *self.baselines])
        return made, where(both, compared)
