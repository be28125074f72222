"""What is said about a sweep: the list of a dry run; at the end failures, totals and the comparison."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from pe_experiments.command_line import command_alone, one_line
from pe_experiments.console import say, say_files
from pe_experiments.runs import list_in_study, read_manifest, run_directory, write_manifest
from pe_experiments.sweeps.planning import DONE, FAILED, NOT_APPLICABLE, UNNAMED, Job


def list_jobs(jobs: Sequence[Job]) -> None:
    """One line per run: its state, its name, and why where there is a reason."""
    for job in jobs:
        name = job.name or " ".join(alone(job)[2:])
        say(f"{job.state:<14} {name}" + (f"  ({one_line(job.reason)})" if job.reason else ""))


def totals(jobs: Iterable[Job]) -> str:
    """``60 runs: 58 finished, 2 failed``."""
    counts = Counter(job.state for job in jobs)
    return f"{counts.total()} runs: " + ", ".join(f"{n} {state}" for state, n in counts.most_common())


def alone(job: Job) -> list[str]:
    """The command that carries out this run alone."""
    return command_alone(job.overrides)


def say_failures(jobs: Sequence[Job]) -> None:
    """Each reason once, with the command that repeats each of its runs alone."""
    for reason, failed in _by_reason(jobs, FAILED).items():
        sys.stdout.flush()
        print(f"error: {reason}", file=sys.stderr)
        for job in failed:
            say(f"failed{': ' if job.name else ''}{job.name}; alone: {shlex.join(alone(job))}")


def say_not_applicable(jobs: Sequence[Job]) -> None:
    """Each reason once, with the number of runs it rules out."""
    for reason, left_out in _by_reason(jobs, NOT_APPLICABLE).items():
        say(f"not applicable: {reason} ({len(left_out)} run{'s' if len(left_out) > 1 else ''})")


def _by_reason(jobs: Sequence[Job], state: str) -> dict[str, list[Job]]:
    reasons: dict[str, list[Job]] = {}
    for job in jobs:
        if job.state == state:
            reasons.setdefault(one_line(job.reason), []).append(job)
    return reasons


def compare_studies(jobs: Sequence[Job]) -> None:
    """List what is done in the studies and compare each, unless nothing has changed since that was last done.

    Raises:
        UserError: a manifest is damaged.
    """
    for results_dir, study in sorted({job.place for job in jobs if job.state in DONE}):
        names = [job.name for job in jobs if job.state in DONE and job.place == (results_dir, study)]
        folder = Path(results_dir) / (study or UNNAMED)
        if study:
            list_in_study(Path(results_dir), study, *names)
        elif not _lists_these(
            folder / "manifest.json", names
        ):  # what an unnamed sweep compares is this sweep
            write_manifest(Path(results_dir), UNNAMED, names)
        if _up_to_date(results_dir, folder):
            say_files(sorted([*folder.glob("*.*"), *folder.glob("figures/*.png")]))
        else:
            _compare(results_dir, study or UNNAMED)


def _compare(results_dir: str, study: str) -> None:
    from pe_experiments.comparison import compare
    from pe_experiments.comparison.compare import show

    show(compare(results_dir, study))


def _lists_these(manifest: Path, names: list[str]) -> bool:
    return manifest.exists() and set(read_manifest(manifest)) == set(names)


def _up_to_date(results_dir: str, folder: Path) -> bool:
    """Whether the comparison is newer than every result it is made of and than the list of them."""
    table = folder / "table.csv"
    if not table.exists():
        return False
    runs = [run_directory(results_dir, name) for name in read_manifest(folder / "manifest.json")]
    sources = [folder / "manifest.json", *(run.result for run in runs)]
    sources += [path for run in runs for path in run.path.glob("evaluations/*/result.json")]
    made = table.stat().st_mtime_ns
    return all(path.stat().st_mtime_ns < made for path in sources if path.exists())
