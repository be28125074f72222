"""One scheme against a bank: tuned as its baselines were, then repeated until its verdicts hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pe_experiments.bank.bank import outcomes_of, read_bank
from pe_experiments.bank.stopping import EARLIEST, Forecast, forecast, may_stop
from pe_experiments.bank.verdicts import Outcomes
from pe_experiments.comparison.protocols import Section
from pe_experiments.comparison.runs_table import Runs, load_runs
from pe_experiments.composition import ConfigMapping, composed_mapping
from pe_experiments.config import check, resolve
from pe_experiments.console import say
from pe_experiments.errors import UserError, allowed, few
from pe_experiments.identity import identify, safe_name, scheme_label
from pe_experiments.publishing.archive import only
from pe_experiments.sweeps.expansion import Overrides, value_of, with_value
from pe_experiments.sweeps.jobs import DONE, Job
from pe_experiments.sweeps.sweep import Sweep

STUDY = "versus"  # the folder of its studies, one per scheme
ALONE = "sweep.against=null 'sweep.baselines=[none,rope]' trains baselines here instead"


@dataclass(frozen=True)
class Standing:
    """A task as far as it has been run.

    Attributes:
        section: of the comparison.
        mine, baselines: the seeds so far, and those of each scheme of the bank.
        forecasts: by baseline.
        seeds: how many there would be in all.
    """

    section: Section
    mine: Outcomes
    baselines: dict[str, Outcomes]
    forecasts: dict[str, Forecast]
    seeds: int

    def names(self, label: str) -> set[str]:
        """Names of the runs of a scheme."""
        return set(self.section.runs.loc[self.section.runs["label"] == label, "name"])

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
        self.results_dir, self.logging = Path(common["results_dir"]), common["logger"]["mode"]
        configs = [composed_mapping("config", run, self.own) for run in self.runs]
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
        for config in by_task.values():
            experiment = resolve(check(config))
            examples = experiment.config.evaluation.examples
            if apart := self.bank.unlike(identify(experiment).as_dict(), examples, tuned):
                task = experiment.components["task"].choice
                raise UserError(f"sweep.against={self.bank.study}, task={task}: {apart}; {ALONE}")

    def carry_out(self) -> tuple[int, list[Job]]:
        """Repeat a run of the bank here, then tune and repeat the scheme."""
        if not self.dry_run:
            self._check_machine()
        return super().carry_out()

    def _finish(self, jobs: list[Job]) -> list[Job]:
        done = super()._finish(jobs)
        results = {job.name: job.run.read_result() or {} for job in done if job.state in DONE}
        self.seconds |= {name: r["steps"] * (r["seconds_per_step"] or 0) for name, r in results.items()}
        return done

    def _check_machine(self) -> None:
        """Compare a run of the bank, repeated here once, with what is published.

        Raises:
            UserError: the code that trains is not the bank's, or the run fails here.
        """
        name, run = self.bank.cheapest()
        here = {"study": "null", "results_dir": str(self.results_dir), "logger.mode": self.logging}
        for key, value in here.items():
            run = with_value(run, key, value)
        (job,) = self._look_up([run])
        if job.name != name:
            raise UserError(
                f"sweep.against={self.bank.study}: its runs were trained by other code (commit "
                f"{self.bank.source(name)}); check that out, or {ALONE}"
            )
        self._finish([job])
        if job.state not in DONE:
            raise UserError(f"{name} of {self.bank.study} cannot be repeated here: {job.reason}")
        difference = self.bank.difference(name, job.run)
        if difference:
            say(f"note: {name} of the bank comes out otherwise on this machine: {difference}; {ALONE}")
        else:
            rounding = "" if difference is None else " up to rounding"
            say(f"{name} of the bank comes out here as it is published{rounding}")

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
        sections, both = self.bank.beside(load_runs(self.results_dir, str(self.study)))
        seeds = len({value_of(run, "seed") for run in self.runs})
        made = []
        for section in sections:
            found = outcomes_of(section)
            mine, others = found[self.label], {name: found[name] for name in self.baselines if name in found}
            if others:
                made.append(Standing(section, mine, others, forecast(mine, others, seeds), seeds))
        compared = both.runs["label"].isin([self.label, *self.baselines])
        return made, only(both, set(both.runs.loc[compared, "name"]))
