"""What a study must be before it is published: made by one known state of the code, and repeatable."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pe_experiments.comparison.runs_table import Runs
from pe_experiments.console import say
from pe_experiments.errors import UserError, few
from pe_experiments.files import CONFIG_DIR
from pe_experiments.runs import COMPLETED, RunDirectory, run_directory
from pe_experiments.tracking import read_csv, read_curve

REPEATED = 3  # runs drawn at random
# Where these agree, so does every bit of a run.
MACHINE = ("processor", "device", "matmul", "threads", "python", "libraries")
FIRST_LOSS = 1e-3  # relative difference of the first recorded loss that rounding may make


def require_one_known_source(study: str, runs: Runs, results_dir: Path) -> None:
    """Refuse runs of edited or unknown source, and runs that different code has trained or evaluated.

    Raises:
        UserError: there are such runs.
    """
    sources = {name: environment.get("source") for name, environment in runs.environments.items()}
    unknown = [name for name, source in sources.items() if not source]
    edited = [name for name, source in sources.items() if source and "+edited" in str(source)]
    for names, what in ((unknown, "of unknown source"), (edited, "of an edited source")):
        if names:
            raise UserError(
                f"study={study}: {len(names)} of {len(sources)} runs are {what} ({few(names)}); commit the "
                f"source and train them again"
            )
    outside = sorted({module for name in runs.saved for module in _outside(runs.saved[name])})
    if outside:
        raise UserError(f"study={study}: {few(outside)} is no code of this project, so its source is unknown")
    trained = {name: _by_module(saved["identity"]["sources"]) for name, saved in runs.saved.items()}
    evaluated = {name: _evaluation_code(results_dir, name) for name in runs.saved}
    for digests, what in ((trained, "trained"), (evaluated, "evaluated")):
        seen: dict[str, tuple[str, str]] = {}
        for name, modules in digests.items():
            for module, digest in modules.items():
                one, before = seen.setdefault(module, (name, digest))
                if digest != before:
                    raise UserError(
                        f"study={study}: {one} and {name} were {what} by different states of {module}; the "
                        f"commands that made them bring both up to date"
                    )


def repeat_some(study: str, runs: Runs, results_dir: Path) -> None:
    """Repeat a few runs, drawn at random, from their own commands in an empty folder.

    Raises:
        UserError: a run comes out otherwise; on another kind of processor, by more than rounding.
    """
    names = random.SystemRandom().sample(sorted(runs.saved), min(REPEATED, len(runs.saved)))
    for name in names:
        command = runs.environments[name].get("command")
        say(f"{study}: repeating {name}")
        with TemporaryDirectory() as scratch:
            repeated = _repeat(study, name, command, Path(scratch))
            _require_same(study, RunDirectory(results_dir / "runs" / name), repeated)


def _repeat(study: str, name: str, command: Any, results_dir: Path) -> RunDirectory:
    if not isinstance(command, list) or "scripts/train.py" not in command:
        raise UserError(f"study={study}: {name} was not made by scripts/train.py, so it cannot be repeated")
    words = [sys.executable, *map(str, command[command.index("scripts/train.py") :])]
    words += [f"results_dir={results_dir}", "logger.mode=disabled"]
    paths = os.pathsep.join([os.getcwd(), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        words, cwd=CONFIG_DIR.parent, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True
    )
    run = run_directory(results_dir, name)
    if run.path.exists():
        return run
    made = next(iter(sorted(results_dir.glob("runs/*"))), None)
    if made is None:
        raise UserError(f"study={study}: repeating {name} failed: {done.stderr.strip()[-300:]}")
    raise UserError(
        f"study={study}: the command of {name} now trains {made.name}: the code has changed since"
    )


def _require_same(study: str, run: RunDirectory, repeated: RunDirectory) -> None:
    here, there = (_environment(directory) for directory in (repeated, run))
    others = [key for key in MACHINE if here.get(key) != there.get(key)]
    pairs = ((run.metrics, repeated.metrics), (run.curve, repeated.curve))
    differing = [one.name for one, other in pairs if _content(one) != _content(other)]
    if not differing:
        return
    what = f"study={study}: {run.name} comes out otherwise when it is repeated ({', '.join(differing)})"
    if not others:
        raise UserError(f"{what}, on the same kind of machine")
    machine = "; ".join(f"{key}: {there.get(key)} there, {here.get(key)} here" for key in others)
    if difference := _more_than_rounding(run, repeated):
        raise UserError(f"{what}, by more than rounding: {difference} ({machine})")
    say(f"{run.name}: repeated up to rounding, on another machine ({machine})")


def _more_than_rounding(run: RunDirectory, repeated: RunDirectory) -> str:
    """Where two runs differ by more than another order of summation may cause; empty where nowhere.

    The first recorded loss, before differences have grown, and within the training lengths the intervals of
    exact match; past them a rounding error may decide what a seed does.
    """
    one, other = (float(read_csv(directory.metrics)[0]["loss"]) for directory in (run, repeated))
    if abs(one - other) > FIRST_LOSS * abs(one):
        return f"first recorded loss {one:.6g} and {other:.6g}"
    for a, b in zip(read_curve(run.curve), read_curve(repeated.curve), strict=True):
        apart = a["exact_match_low"] > b["exact_match_high"] or b["exact_match_low"] > a["exact_match_high"]
        if a["split"] == "in_distribution" and apart:
            return f"exact match {a['exact_match']:.3g} and {b['exact_match']:.3g} at length {a['length']}"
    return ""


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def _environment(run: RunDirectory) -> dict[str, Any]:
    return json.loads(run.environment.read_text())


def _outside(saved: dict[str, Any]) -> list[str]:
    """Code and files of a run that no commit of this project holds."""
    names = _by_module(saved["identity"]["sources"])
    return [name for name in names if not name.startswith("pe_experiments.")]


def _by_module(sources: dict[str, Any]) -> dict[str, str]:
    groups = [group for name, group in sources.items() if name != "derived"]
    return {module: digest for group in groups for module, digest in dict(group).items()}


def _evaluation_code(results_dir: Path, name: str) -> dict[str, str]:
    result = RunDirectory(results_dir / "runs" / name).read_result() or {}
    return dict(result["evaluation"]["code"]) if result.get("status") == COMPLETED else {}
