"""Several runs from one command: what a job does in a sweep, and what is said when all are done.

A job neither raises nor exits: in Hydra either would end the whole sweep. It notes what became of it in the
study's folder, and the callback, in the launching process, reads the notes.
"""

from __future__ import annotations

import json
import traceback
from pathlib import Path
from typing import Any

from filelock import FileLock
from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, open_dict

from pe_experiments.command_line import sentence
from pe_experiments.console import say
from pe_experiments.errors import UserError

UNNAMED = "multirun"  # the study of a sweep that names none
LOG = "sweep.jsonl"  # one line per job of the last sweep

exit_code = 0  # of the last sweep of this process; Hydra has no way to hand it through


def in_sweep() -> bool:
    """Whether the present job is one of several."""
    return HydraConfig.get().mode == RunMode.MULTIRUN


def sweep_job(config: DictConfig) -> None:
    """One run of a sweep; whatever happens is noted, nothing is raised."""
    with open_dict(config):
        config.study = config.study or UNNAMED
    note: dict[str, Any] = {"overrides": list(HydraConfig.get().overrides.task)}
    try:
        note |= _run(config)
    except Exception as error:  # the others must go on
        note |= {"status": "error", "reason": sentence(error)}
        if not isinstance(error, UserError):
            note["traceback"] = traceback.format_exc()
        say(f"[{' '.join(note['overrides'])}] error: {note['reason']}")
    folder = Path(config.results_dir) / config.study
    with FileLock(folder / ".sweep.lock"), (folder / LOG).open("a") as file:
        file.write(json.dumps(note) + "\n")


def _run(config: DictConfig) -> dict[str, Any]:
    from pe_experiments.config import check, resolve
    from pe_experiments.console import Lines
    from pe_experiments.runs import plan

    experiment = resolve(check(config))
    planned = plan(experiment)
    if config.dry_run:
        say(f"{planned.state:<12} {planned.identity.name}")
        return {"status": planned.state, "name": planned.identity.name}
    from pe_experiments.experiment import run_experiment

    outcome = run_experiment(experiment, Lines(planned.identity.name))
    inside = outcome.result.get("exact_match_in_distribution")
    figures = "" if inside is None else f", exact match inside {inside:.3f}"
    say(f"[{planned.identity.name}] {outcome.done}: {outcome.status}{figures}")
    return {"status": outcome.status, "name": planned.identity.name, "reason": outcome.result.get("reason")}


class SweepCallback(Callback):
    """Prepares the notes of a sweep and, at its end, reports failures and compares what the study holds."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        folder = _folder(config)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / LOG).write_text("")
        except OSError as error:
            raise UserError(
                f"results_dir={config.results_dir}: cannot write there ({error.strerror})"
            ) from error

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        global exit_code
        folder = _folder(config)
        notes = [json.loads(line) for line in (folder / LOG).read_text().splitlines()]
        if config.dry_run:
            say(f"{len(notes)} runs; nothing was run (dry_run=true)")
        failed = [note for note in notes if note["status"] == "error"]
        for note in failed:
            repeat = " ".join(f"'{o}'" if set(o) & set("[](), ") else o for o in note["overrides"])
            say(f"failed: {note['reason']}\n  alone: python scripts/train.py hydra.mode=RUN {repeat}")
        exit_code = 1 if failed else 0
        if not config.dry_run and len(failed) < len(notes):
            _compare(config, folder.name)


def _compare(config: DictConfig, study: str) -> None:
    from pe_experiments.comparison import compare
    from pe_experiments.comparison.compare import show

    show(compare(config.results_dir, study))


def _folder(config: DictConfig) -> Path:
    return Path(config.results_dir) / (config.study or UNNAMED)
