"""One sweep from its command to its comparison.

Hydra's own multirun cannot be resumed and ends with the first run that fails. So its callback takes over once
Hydra has read the command line: the runs are listed, looked up and carried out here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from pe_experiments.command_line import one_line, sentence
from pe_experiments.config import SweepConfig, check, check_sweep, is_dry_run, resolve
from pe_experiments.console import display_for, say
from pe_experiments.errors import NotApplicable
from pe_experiments.runs import kind_of
from pe_experiments.sweeps.estimate import estimate
from pe_experiments.sweeps.expansion import Request, expand
from pe_experiments.sweeps.launching import Launching
from pe_experiments.sweeps.overview import Overview
from pe_experiments.sweeps.planning import DONE, FAILED, NOT_APPLICABLE, PENDING, UNNAMED, Job, plan_jobs
from pe_experiments.sweeps.summary import compare_studies, list_jobs, say_failures, say_not_applicable, totals
from pe_experiments.sweeps.tuning import Tuning, note_tuned


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
        self.dry_run = is_dry_run(config)
        self.title = str(config.study or UNNAMED)
        self.launching = Launching(config, self.settings)
        self.requests = expand(config, self.settings, GlobalHydra.instance().config_loader(), display_for())

    def carry_out(self) -> int:
        """Run what is left, or list it (``dry_run=true``); returns the exit code.

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
        if self.dry_run and any(job.state in PENDING for job in grid):
            say(f"then every seed at the chosen {self.settings.tune}")
            return grid, []
        best = tuning.best(grid)
        for group, value in best.items():
            say(f"chosen on the training lengths: {' '.join(group)} {self.settings.tune}={value}")
        return grid, tuning.repeats(best)

    def _complete(self, requests: Sequence[Request]) -> list[Job]:
        """Look up the runs and carry out those that are left."""
        jobs = plan_jobs(requests, display_for())
        if self.dry_run:
            self._try_out(jobs)
            return jobs
        todo = [job for job in jobs if job.state in PENDING and job.can_start]
        found = sum(job.state in DONE for job in jobs)
        if found:
            say(f"{self.title}: {found} of {len(jobs)} runs are finished already")
        hopeless = Counter(one_line(job.reason) for job in jobs if job.state == FAILED and not job.can_start)
        for reason, number in hopeless.items():  # said now, not only when the others are done
            say(f"{self.title}: {number} of {len(jobs)} runs cannot start: {reason}")
        if todo:
            overview = Overview(self.title, found)
            self.launching.carry_out(todo, overview)
        return jobs

    def _try_out(self, jobs: list[Job]) -> None:
        """List the runs, after trying what would fail at once, once for all of a kind."""
        tried: dict[str, tuple[str, str]] = {}
        waiting = [job for job in jobs if job.state in PENDING and job.can_start]
        display = display_for()
        display.start("trying out runs", len(waiting))
        for number, job in enumerate(waiting, 1):
            kind = f"{kind_of(job.config)} {job.config['evaluation']}"
            if kind not in tried:
                tried[kind] = _problem(job)
            if tried[kind][0]:
                (job.state, job.reason), job.can_start = tried[kind], False
            display.step(number)
        display.stop()
        list_jobs(jobs)
        say(f"{totals(jobs)}; {estimate(jobs, self.launching.processes)}")
        say("nothing was run (dry_run=true)")


def _problem(job: Job) -> tuple[str, str]:
    """State and reason of a run that would fail at once; empty where it can be carried out."""
    from pe_experiments.experiment import try_out

    try:
        try_out(resolve(check(job.config)))
    except NotApplicable as error:
        return NOT_APPLICABLE, str(error)
    except Exception as error:
        return FAILED, sentence(error)
    return "", ""
