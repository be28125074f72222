"""What train.py does for one configuration, alone or in a sweep, and what is said when a sweep is done.

In a sweep a job neither raises nor exits: in Hydra either would end all of them. It notes what became of it
in a scratch folder of this sweep, and the callback, in the launching process, reads the notes.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from filelock import FileLock
from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig

from pe_experiments.command_line import one_line, sentence
from pe_experiments.console import say
from pe_experiments.errors import UserError

UNNAMED = "multirun"  # where a sweep that names no study lists its runs and leaves its comparison
SCRATCH = "PE_EXPERIMENTS_SWEEP_DIR"  # known to the workers through the environment

exit_code = 0  # of the sweep of this process; Hydra has no way to hand it through
failure: BaseException | None = None  # Hydra turns what a callback raises into a warning; train.py raises it


@contextmanager
def scratch_folder() -> Iterator[None]:
    """A folder for Hydra's record of a sweep and for the jobs' notes; gone afterwards."""
    with TemporaryDirectory(prefix="pe_experiments_") as folder:
        os.environ[SCRATCH] = folder
        yield


def in_sweep() -> bool:
    """Whether the present job is one of several."""
    return HydraConfig.get().mode == RunMode.MULTIRUN


def single_job(config: DictConfig) -> int:
    """The one run of a command; answers the exit code.

    Raises:
        UserError: it cannot be carried out.
    """
    from pe_experiments.config import check, resolve

    checked = check(config)  # before torch is imported
    from pe_experiments.console import display_for, show_result
    from pe_experiments.experiment import run_experiment, try_out
    from pe_experiments.runs import plan

    experiment = resolve(checked)
    if config.dry_run:
        try_out(experiment)
        planned = plan(experiment)
        lengths = ", ".join(map(str, experiment.evaluation_lengths))
        say(f"{planned.state}: {planned.run.path}\nevaluated at {lengths}")
        return 0
    result = run_experiment(experiment, display_for())
    show_result(result)
    return 0 if result.status == "completed" else 1


def sweep_job(config: DictConfig) -> None:
    """One run of a sweep; whatever happens is noted, nothing is raised."""
    overrides = list(HydraConfig.get().overrides.task)
    note: dict[str, Any] = {
        "overrides": overrides,
        "results_dir": str(config.results_dir),
        "study": config.study,
    }
    try:
        note |= _run(config)
    except Exception as error:  # the others must go on
        note |= {"status": "error", "reason": sentence(error)}
        if not isinstance(error, UserError):
            note["traceback"] = traceback.format_exc()
    with FileLock(_notes().with_suffix(".lock")), _notes().open("a") as file:
        file.write(json.dumps(note) + "\n")


def _run(config: DictConfig) -> dict[str, Any]:
    from pe_experiments.config import check, resolve
    from pe_experiments.console import Lines
    from pe_experiments.experiment import run_experiment, try_out
    from pe_experiments.runs import plan

    experiment = resolve(check(config))
    planned = plan(experiment)
    if config.dry_run:
        try_out(experiment)
        say(f"{planned.state:<12} {planned.identity.name}")
        return {"status": planned.state, "name": planned.identity.name}
    outcome = run_experiment(experiment, Lines(planned.identity.name))
    inside = outcome.result.get("exact_match_in_distribution")
    figures = "" if inside is None else f", exact match inside {inside:.3f}"
    say(f"[{planned.identity.name}] {outcome.done}: {outcome.status}{figures}")
    return {"status": outcome.status, "name": planned.identity.name, "reason": outcome.result.get("reason")}


class SweepCallback(Callback):
    """At the end of a sweep, reports failures and compares what its study holds."""

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        global exit_code, failure
        try:
            exit_code = _conclude(config)
        except Exception as error:
            failure = error


def _conclude(config: DictConfig) -> int:
    notes = [json.loads(line) for line in _notes().read_text().splitlines()] if _notes().exists() else []
    if config.dry_run:
        say(f"{len(notes)} runs; nothing was run (dry_run=true)")
    elif done := [note for note in notes if note["status"] != "error"]:
        for results_dir, study in sorted({(note["results_dir"], note["study"] or "") for note in done}):
            _compare(
                results_dir, study, [note["name"] for note in done if note["results_dir"] == results_dir]
            )
    failed = [note for note in notes if note["status"] == "error"]
    for reason in dict.fromkeys(note["reason"] for note in failed):
        sys.stdout.flush()
        print(f"error: {one_line(reason)}", file=sys.stderr)
        for note in failed:
            if note["reason"] == reason:
                quoted = [f"'{o}'" if set(o) & set("[](), ") else o for o in note["overrides"]]
                say(f"failed; alone: python scripts/train.py hydra.mode=RUN {' '.join(quoted)}")
    return 1 if failed else 0


def _compare(results_dir: str, study: str, names: list[str]) -> None:
    from pe_experiments.comparison import compare
    from pe_experiments.comparison.compare import show
    from pe_experiments.runs import write_manifest

    if not study:  # what an unnamed sweep compares is this sweep
        write_manifest(Path(results_dir), UNNAMED, names)
    show(compare(results_dir, study or UNNAMED))


def _notes() -> Path:
    return Path(os.environ[SCRATCH]) / "notes.jsonl"
