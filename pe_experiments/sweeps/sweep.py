"""One sweep from its command to its comparison.

Hydra's own multirun cannot be resumed and ends with the first run that fails. So its callback takes over once
Hydra has read the command line: the runs are listed and looked up here, and only the launcher is Hydra's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from pe_experiments.command_line import one_line
from pe_experiments.config import SweepConfig, check_sweep
from pe_experiments.console import say
from pe_experiments.sweeps.expansion import Request, expand
from pe_experiments.sweeps.launching import Launching
from pe_experiments.sweeps.overview import Overview
from pe_experiments.sweeps.planning import DONE, FAILED, LEFT, UNNAMED, Job, plan_jobs
from pe_experiments.sweeps.summary import compare_studies, list_jobs, say_failures, say_not_applicable, totals
from pe_experiments.sweeps.tuning import Tuning, note_tuned

MANY = 50  # runs whose looking up takes seconds


class SweepOver(BaseException):
    """Leaves Hydra's multirun, which would start every run anew; no Exception, which it makes a warning.

    Attributes:
        code: exit code.
        error: what went wrong, if the sweep could not be carried out.
    """

    def __init__(self, code: int, error: Exception | None = None):
        super().__init__(code)
        self.code, self.error = code, error


class SweepCallback(Callback):
    """Carries out the sweep Hydra is about to start."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        try:
            code = Sweep(config).carry_out()
        except Exception as error:
            raise SweepOver(1, error) from error
        raise SweepOver(code)


class Sweep:
    """Args:
    config: of the sweep, with its ``hydra`` section.

    Raises:
        UserError: a wrong setting of the sweep.
    """

    def __init__(self, config: DictConfig):
        self.settings: SweepConfig = check_sweep(config)
        loader = GlobalHydra.instance().config_loader()
        self.dry_run = bool(config.dry_run)
        self.title = str(config.study or UNNAMED)
        self.launching = Launching(config, self.settings, loader)
        self.requests = expand(config, self.settings, loader)

    def carry_out(self) -> int:
        """Run what is left, or list it (``dry_run=true``); answers the exit code.

        Raises:
            UserError: nothing can be started.
            KeyboardInterrupt: interrupted; the same command goes on.
        """
        grid, requests = self._tuned() if self.settings.tune else ([], self.requests)
        jobs = self._complete(requests) if requests else []
        everything = list({job.name or job.overrides: job for job in [*grid, *jobs]}.values())
        if self.dry_run:
            return 1 if any(job.state == FAILED and not job.can_start for job in everything) else 0
        if self.settings.tune:
            note_tuned(jobs, self.settings.tune, grid)
        say(totals(everything))
        say_not_applicable(everything)
        say_failures(everything)
        compare_studies(jobs)
        return 1 if any(job.state == FAILED for job in everything) else 0

    def _tuned(self) -> tuple[list[Job], list[Request]]:
        """The grid, carried out, and the runs that follow from it; a dry run may not know them yet."""
        assert self.settings.tune
        tuning = Tuning(self.requests, self.settings.tune)
        grid = self._complete(tuning.grid())
        if self.dry_run and any(job.state in LEFT for job in grid):
            say(f"then every seed at the chosen {self.settings.tune}")
            return grid, []
        best = tuning.best(grid)
        for group, value in best.items():
            say(f"chosen on the training lengths: {' '.join(group)} {self.settings.tune}={value}")
        return grid, tuning.repeats(best)

    def _complete(self, requests: Sequence[Request]) -> list[Job]:
        """Look up the runs and carry out those that are left."""
        if len(requests) > MANY:
            say(f"{self.title}: looking up {len(requests)} runs")
        if self.dry_run:
            self._try_out(jobs := plan_jobs(requests, remember=False))
            return jobs
        jobs = plan_jobs(requests, remember=True, before_torch=self.launching.warm_up)
        todo = [job for job in jobs if job.state in LEFT and job.can_start]
        found = sum(job.state in DONE for job in jobs)
        if found:
            say(f"{self.title}: {found} of {len(jobs)} runs are finished already")
        hopeless = Counter(one_line(job.reason) for job in jobs if job.state == FAILED and not job.can_start)
        for reason, number in hopeless.items():  # said now, not only when the others are done
            say(f"{self.title}: {number} of {len(jobs)} runs cannot start: {reason}")
        if todo:
            overview = Overview(self.title, found)
            self.launching.carry_out(todo, overview)
        self.launching.cool_down()
        return jobs

    def _try_out(self, jobs: list[Job]) -> None:
        """List the runs, after trying what would fail at once, once for all seeds."""
        from pe_experiments.sweeps.estimate import estimate, problem

        tried: dict[str, tuple[str, str]] = {}
        for job in jobs:
            if job.state in LEFT and job.can_start:
                kind = str({key: value for key, value in job.config.items() if key != "seed"})
                if kind not in tried:
                    tried[kind] = problem(job)
                if (found := tried[kind])[0]:
                    (job.state, job.reason), job.can_start = found, False
        list_jobs(jobs)
        say(f"{totals(jobs)}; {estimate(jobs, self.launching.processes)}")
        say("nothing was run (dry_run=true)")
