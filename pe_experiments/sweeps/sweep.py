"""One sweep from its command to its end: the runs are listed, looked up and carried out."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from pe_experiments.composition import Plain, composed_plain
from pe_experiments.config import EngineConfig, SweepConfig, is_dry_run
from pe_experiments.console import display_for, say
from pe_experiments.runs import list_in_study, read_manifest, write_manifest
from pe_experiments.sweeps.engines import engine_for, gpus, side_by_side
from pe_experiments.sweeps.expansion import Overrides, expand, without
from pe_experiments.sweeps.jobs import (
    DONE,
    FAILED,
    NOT_APPLICABLE,
    Job,
    by_reason,
    list_jobs,
    look_up,
    totals,
)
from pe_experiments.sweeps.launching import carry_out
from pe_experiments.sweeps.tuning import Tuning
from pe_experiments.validation import validated

UNNAMED = "multirun"  # where a sweep that names no study lists its runs and leaves its comparison


class Sweep:
    """Many runs from one command, on this machine or on a cluster.

    Args:
        typed: the command's ``key=value`` texts.
        common: what it says for all runs, and ``varied`` what the sweep's own file varies.
        own: folder of config files of the user's own.

    Raises:
        UserError: a wrong setting of the sweep.
    """

    def __init__(self, typed: Sequence[str], common: Plain, varied: Plain | None, own: Path | None = None):
        self.settings = validated(SweepConfig, common["sweep"], "sweep")
        self.engine = validated(EngineConfig, common["engine"], "engine")
        self.dry_run, self.study, self.own = is_dry_run(common), common["study"], own
        hardware = common["hardware"]
        self.devices = gpus() if self.engine.kind == "local" and hardware["accelerator"] != "cpu" else ()
        self.processes = side_by_side(self.settings, self.devices, int(hardware["threads"]))
        self.runs = expand(typed, varied or {}, self.settings, own)

    def carry_out(self) -> tuple[int, list[Job]]:
        """Run what is left, or list it (``dry_run=true``).

        Returns:
            The exit code, and the runs to compare.

        Raises:
            UserError: nothing can be started.
        """
        grid, runs = self._tuned() if self.settings.tune else ([], self.runs)
        jobs = self._complete(runs) if runs else []
        everything = list({job.same: job for job in [*grid, *jobs]}.values())
        if self.dry_run:
            return int(any(job.state == FAILED and not job.can_start for job in everything)), []
        if grid:
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
        runs = tuning.repeats(grid)
        for run in dict.fromkeys(without(run, "seed", "study") for run in runs):
            say(f"chosen on the training lengths: {' '.join(run)}")
        return grid, runs

    def _complete(self, runs: Sequence[Overrides]) -> list[Job]:
        """Look up the runs and carry out those that are left."""
        jobs = look_up(runs, partial(composed_plain, "config", folder=self.own), display_for(), self.dry_run)
        if self.dry_run:
            list_jobs(jobs, self.processes)
            return jobs
        title = str(self.study or UNNAMED)
        if found := sum(job.state in DONE for job in jobs):
            say(f"{title}: {found} of {len(jobs)} runs are finished already")
        hopeless = by_reason((job for job in jobs if not job.can_start), FAILED)
        for reason, those in hopeless.items():  # said now, not only when the others are done
            say(f"{title}: {len(those)} of {len(jobs)} runs cannot start: {reason}")
        if pending := [job for job in jobs if job.pending]:
            engine = partial(engine_for, self.engine, self.devices)
            carry_out(pending, engine, self.processes, self.own, display_for())
        return jobs

    def _say_outcome(self, jobs: Sequence[Job]) -> None:
        """Totals, and each reason once, with the command that repeats each failed run."""
        say(totals(jobs))
        for reason, left_out in by_reason(jobs, NOT_APPLICABLE).items():
            say(f"not applicable: {reason} ({len(left_out)} run{'s' if len(left_out) > 1 else ''})")
        for reason, failed in by_reason(jobs, FAILED).items():
            sys.stdout.flush()
            print(f"error: {reason}", file=sys.stderr)
            for job in failed:
                say(f"failed{': ' if job.name else ''}{job.name}; alone: {shlex.join(job.alone(self.own))}")


def list_studies(jobs: Sequence[Job]) -> list[tuple[Path, bool]]:
    """List the runs that are done in the manifests of their studies.

    Returns:
        The folder of each study, and whether its comparison is newer than these runs and their list.

    Raises:
        UserError: a manifest is damaged.
    """
    studies = []
    for results_dir, study in sorted({job.study for job in jobs if job.state in DONE}):
        done = [job for job in jobs if job.state in DONE and job.study == (results_dir, study)]
        folder, names = Path(results_dir) / (study or UNNAMED), sorted({job.name for job in done})
        manifest, table = folder / "manifest.json", folder / "table.csv"
        if study:
            list_in_study(Path(results_dir), study, *names)
        elif not manifest.exists() or read_manifest(manifest) != names:  # these runs and no others
            write_manifest(Path(results_dir), UNNAMED, names)
        newest = max(path.stat().st_mtime_ns for path in (manifest, *(job.run.result for job in done)))
        studies.append((folder, table.exists() and newest < table.stat().st_mtime_ns))
    return studies
