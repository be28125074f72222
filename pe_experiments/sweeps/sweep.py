"""One sweep from its command to its end: the runs are listed, looked up and carried out."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from pe_experiments.configuration.compose import ConfigMapping
from pe_experiments.configuration.schema import EngineConfig, SweepConfig, validated
from pe_experiments.store.directory import list_in_study, write_manifest
from pe_experiments.sweeps.engines import engine_for, gpus, launch, side_by_side
from pe_experiments.sweeps.expansion import Overrides, expand, key_of, without
from pe_experiments.sweeps.jobs import DONE, FAILED, NOT_APPLICABLE, PUBLISHED, Job, look_up
from pe_experiments.sweeps.tuning import Tuning
from pe_experiments.terminal.console import Lines, say
from pe_experiments.terminal.errors import one_line

UNNAMED = "multirun"  # where a sweep that names no study lists its runs and leaves its comparison


class Sweep:
    """Many runs from one command, on this machine or on a cluster.

    ``typed`` are its ``key=value`` texts, ``common`` is what it says for all runs, ``varied`` what the file
    of the sweep varies, ``own`` a folder of config files of the user's own.
    """

    def __init__(
        self, typed: Sequence[str], common: ConfigMapping, varied: ConfigMapping | None, own: Path | None
    ):
        self.settings = validated(SweepConfig, common["sweep"], "sweep")
        self.engine = validated(EngineConfig, common["engine"], "engine")
        self.study, self.own = common["study"], own
        self.dry_run = common["dry_run"] is True  # of another value every run complains
        self.runs = expand(typed, varied or {}, self.settings, own)
        trainer = common["trainer"]
        self.devices = gpus() if self.engine.kind == "local" and trainer["accelerator"] != "cpu" else ()
        self.processes = side_by_side(self.settings, self.devices, int(trainer["threads"]))
        # Published runs by their configuration, and the validation losses that a setting was tuned by.
        self.published: dict[str, float] = {}
        folder = Path(common["results_dir"]) / str(self.study)
        if self.study and not common["rerun"] and (folder / "provenance.csv").exists():
            from pe_experiments.published.archive import published_keys  # brings pandas

            self.published = published_keys(folder)

    def carry_out(self) -> tuple[int, list[Job]]:
        """Run what is left, or list it (``dry_run=true``): the exit code, and the runs to compare."""
        grid, runs = self._tuned() if self.settings.tune else ([], self.runs)
        jobs = self._repeated(runs, grid) if runs else []
        everything = list({job.same: job for job in [*grid, *jobs]}.values())
        if self.dry_run:
            return int(any(job.state == FAILED and not job.can_start for job in everything)), []
        if grid:
            self.tuning.note(jobs, grid)
        self._say_outcome(everything)
        return int(any(job.state == FAILED for job in everything)), jobs

    def _tuned(self) -> tuple[list[Job], list[Overrides]]:
        """The grid, carried out, and the runs that follow from it; a dry run may not know them yet."""
        study = self.study and str(self.study)
        self.tuning = tuning = Tuning(self.runs, self.settings, study, self.published)
        grid = self._finish(self._look_up(tuning.grid()))
        if self.dry_run and any(job.pending for job in grid):
            say(f"then every seed at the chosen {self.settings.tune}")
            return grid, []
        for _ in range(self.settings.tune_outwards):
            grid += self._finish(self._look_up(tuning.outwards(grid)))
        runs = tuning.repeats(grid)
        chosen = list(dict.fromkeys(without(run, "seed", "study") for run in runs))
        same = set(chosen[0]).intersection(*chosen) if len(chosen) > 1 else set()
        for run in chosen:
            own = " ".join(text for text in run if text not in same or key_of(text) == self.settings.tune)
            say(f"chosen on the training lengths: {own}")
        return grid, runs

    def _repeated(self, runs: Sequence[Overrides], grid: Sequence[Job]) -> list[Job]:
        """Every seed of every combination, or of what was chosen from a grid."""
        jobs = self._look_up(runs)
        if grid and not self.dry_run:  # now, so that what is finished can be compared at any time
            self.tuning.note(jobs, grid)
        return self._finish(jobs)

    def _look_up(self, runs: Sequence[Overrides]) -> list[Job]:
        return look_up(runs, self.own, Lines(), self.dry_run, self.published)

    def _finish(self, jobs: list[Job]) -> list[Job]:
        if self.dry_run:
            for job in jobs:
                reason = f"  ({one_line(job.reason)})" if job.reason else ""
                say(f"{job.state:<14} {job.name or ' '.join(job.overrides)}{reason}")
            say(f"{totals(jobs)}\nnothing was run (dry_run=true)" if jobs else "nothing is left to run")
            return jobs
        title = str(self.study or UNNAMED)
        for states, words in ((DONE, "finished already"), ((PUBLISHED,), "published already")):
            if found := sum(job.state in states for job in jobs):
                say(f"{title}: {found} of {len(jobs)} runs are {words}")
        # Said now, not only when the others are done.
        for reason, those in by_reason((job for job in jobs if not job.can_start), FAILED).items():
            say(f"{title}: {len(those)} of {len(jobs)} runs cannot start: {reason}")
        if pending := [job for job in jobs if job.pending]:
            logs = Path(pending[0].study[0]).absolute() / ".launched"
            engine = engine_for(self.engine, self.devices, self.processes, logs)
            launch(pending, engine, self.own, Lines())
        return jobs

    def _say_outcome(self, jobs: Sequence[Job]) -> None:
        """Totals, and each reason once, with the command that repeats each failed run."""
        say(totals(jobs))
        for reason, left_out in by_reason(jobs, NOT_APPLICABLE).items():
            say(f"not applicable: {reason} ({len(left_out)} run{'s' if len(left_out) > 1 else ''})")
        for reason, failed in by_reason(jobs, FAILED).items():
            print(f"error: {reason}", file=sys.stderr)
            for job in failed:
                say(f"failed{': ' if job.name else ''}{job.name}; alone: {shlex.join(job.alone(self.own))}")


def list_studies(jobs: Sequence[Job]) -> list[tuple[str, str]]:
    """List the runs that are done in the manifests of their studies: results directory and name of each."""
    done = [job for job in jobs if job.state in DONE]
    studies = sorted({job.study for job in done})
    for results_dir, study in studies:
        names = [job.name for job in done if job.study == (results_dir, study)]
        if study:
            list_in_study(Path(results_dir), study, *names)
        else:  # these runs and no others
            write_manifest(Path(results_dir), UNNAMED, names)
    return [(results_dir, study or UNNAMED) for results_dir, study in studies]


def totals(jobs: Iterable[Job]) -> str:
    """``60 runs: 58 finished, 2 failed``."""
    counts = Counter(job.state for job in jobs)
    return f"{counts.total()} runs: " + ", ".join(f"{n} {state}" for state, n in counts.most_common())


def by_reason(jobs: Iterable[Job], state: str) -> dict[str, list[Job]]:
    reasons: dict[str, list[Job]] = {}
    for job in jobs:
        if job.state == state:
            reasons.setdefault(one_line(job.reason), []).append(job)
    return reasons
