"""One sweep from its command to its end: the runs are listed, looked up and carried out."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pe_experiments.composition import Plain, composed_plain
from pe_experiments.config import EngineConfig, SweepConfig, is_dry_run
from pe_experiments.console import display_for, say
from pe_experiments.runs import list_in_study, read_manifest, run_directory, write_manifest
from pe_experiments.sweeps.expansion import Overrides, alone, expand
from pe_experiments.sweeps.jobs import (
    DONE,
    FAILED,
    NOT_APPLICABLE,
    UNNAMED,
    Job,
    by_reason,
    estimate,
    look_up,
    say_jobs,
    totals,
    try_out,
)
from pe_experiments.sweeps.launching import Launching
from pe_experiments.sweeps.tuning import Tuning
from pe_experiments.validation import validated


class Sweep:
    """Many runs from one command, on this machine or on a cluster.

    Args:
        typed: the command's ``key=value`` texts.
        common: what it says for all runs (`composition.master`).
        params: what the sweep's own file varies.
        folder: of config files of the user's own.

    Raises:
        UserError: a wrong setting of the sweep.
    """

    def __init__(
        self, typed: Sequence[str], common: Plain, params: dict[str, Any] | None, folder: Path | None = None
    ):
        self.settings: SweepConfig = validated(SweepConfig, common["sweep"], "sweep")
        engine = validated(EngineConfig, common["engine"], "engine")
        self.dry_run = is_dry_run(common)
        self.study, self.folder = common["study"], folder
        self.launching = Launching(self.settings, engine, common["hardware"], folder)
        self.runs = expand(typed, params or {}, self.settings, folder)

    def carry_out(self) -> tuple[int, list[Job]]:
        """Run what is left, or list it (``dry_run=true``).

        Returns:
            The exit code, and the runs to compare.

        Raises:
            UserError: nothing can be started.
            KeyboardInterrupt: interrupted; the same command goes on.
        """
        grid, runs = self._tuned() if self.settings.tune else ([], self.runs)
        jobs = self._complete(runs) if runs else []
        everything = list({job.same: job for job in [*grid, *jobs]}.values())
        if self.dry_run:
            return int(any(job.state == FAILED and not job.can_start for job in everything)), []
        if self.settings.tune:
            self.tuning.note(jobs, grid)
        self._say_outcome(everything)
        return int(any(job.state == FAILED for job in everything)), jobs

    def _tuned(self) -> tuple[list[Job], list[Overrides]]:
        """The grid, carried out, and the runs that follow from it; a dry run may not know them yet."""
        self.tuning = tuning = Tuning(self.runs, self.settings, self.study and str(self.study))
        grid = self._complete(tuning.grid())
        if self.dry_run and any(job.pending for job in grid):
            say(f"then every seed at the chosen {self.settings.tune}")
            return grid, []
        for _ in range(self.settings.tune_outwards):
            grid += self._complete(tuning.outwards(grid))
        chosen = tuning.chosen(grid)
        for group, value in chosen.items():
            say(f"chosen on the training lengths: {' '.join(group)} {self.settings.tune}={value}")
        return grid, tuning.repeats(chosen)

    def _complete(self, runs: Sequence[Overrides]) -> list[Job]:
        """Look up the runs and carry out those that are left."""
        jobs = look_up(runs, lambda run: composed_plain("config", run, self.folder), display_for())
        title = str(self.study or UNNAMED)
        if self.dry_run:
            try_out(jobs, display_for())
            say_jobs(jobs)
            say(f"{totals(jobs)}; {estimate(jobs, self.launching.processes)}")
            say("nothing was run (dry_run=true)")
            return jobs
        if found := sum(job.state in DONE for job in jobs):
            say(f"{title}: {found} of {len(jobs)} runs are finished already")
        hopeless = by_reason((job for job in jobs if not job.can_start), FAILED)
        for reason, those in hopeless.items():  # said now, not only when the others are done
            say(f"{title}: {len(those)} of {len(jobs)} runs cannot start: {reason}")
        if todo := [job for job in jobs if job.pending]:
            self.launching.carry_out(todo, display_for())
        return jobs

    def _say_outcome(self, jobs: Sequence[Job]) -> None:
        """Totals, and each reason once: with the command that repeats each failed run alone."""
        say(totals(jobs))
        for reason, left_out in by_reason(jobs, NOT_APPLICABLE).items():
            say(f"not applicable: {reason} ({len(left_out)} run{'s' if len(left_out) > 1 else ''})")
        for reason, failed in by_reason(jobs, FAILED).items():
            sys.stdout.flush()
            print(f"error: {reason}", file=sys.stderr)
            for job in failed:
                command = shlex.join(alone(job.overrides, self.folder))
                say(f"failed{': ' if job.name else ''}{job.name}; alone: {command}")


def list_studies(jobs: Sequence[Job]) -> list[tuple[str, str, bool]]:
    """List what is done in the manifests of its studies.

    Returns:
        Per study its results directory, its name, and whether its comparison is newer than all it is made of.

    Raises:
        UserError: a manifest is damaged.
    """
    studies = []
    for results_dir, study in sorted({job.study for job in jobs if job.state in DONE}):
        names = sorted({job.name for job in jobs if job.state in DONE and job.study == (results_dir, study)})
        folder = Path(results_dir) / (study or UNNAMED)
        manifest = folder / "manifest.json"
        if study:
            list_in_study(Path(results_dir), study, *names)
        elif not manifest.exists() or read_manifest(manifest) != names:  # this sweep and no other
            write_manifest(Path(results_dir), UNNAMED, names)
        runs = [run_directory(results_dir, name) for name in read_manifest(manifest)]
        made_of = [manifest, *(run.result for run in runs)]
        made_of += [path for run in runs for path in run.path.glob("evaluations/*/result.json")]
        newest = max(path.stat().st_mtime_ns for path in made_of if path.exists())
        table = folder / "table.csv"
        studies.append((results_dir, folder.name, table.exists() and newest < table.stat().st_mtime_ns))
    return studies
