"""What runs must be before they are published: made by one known state of the code, and repeatable."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from pe_experiments.comparison.run_rows import Row
from pe_experiments.comparison.runs_table import Runs
from pe_experiments.console import say
from pe_experiments.errors import UserError, few
from pe_experiments.files import CONFIG_DIR, read_json
from pe_experiments.publishing.archive import EVALUATED
from pe_experiments.runs import RunDirectory, run_directory
from pe_experiments.tracking import read_csv, read_curve

REPEATED = 3  # runs drawn at random
SCRIPT = "scripts/train.py"
OWN = "pe_experiments."  # modules that a commit of this project holds
# Other sources than modules are data files, which their digest tells; of many: "743 data files".
MODULE = re.compile(r"[\w.]+")
# Where these agree, so does every bit of a run.
MACHINE = ("processor", "device", "matmul", "threads", "python", "libraries")
LOSS = 0.02  # relative difference that it may make of the loss after training
FIRST_LOSS = 1e-3  # relative difference of the first recorded loss that rounding may make


def require_one_known_source(study: str, runs: Runs) -> None:
    """Refuse runs of edited or unknown source, and runs that different code has trained or evaluated.

    Raises:
        UserError: there are such runs.
    """
    sources = {name: str(made.get("source") or "+edited") for name, made in runs.environments.items()}
    if edited := [name for name, source in sources.items() if source.endswith("+edited")]:
        raise UserError(
            f"study={study}: {len(edited)} of {len(sources)} runs are of an edited or unknown source "
            f"({few(edited)}); commit the source and train them again"
        )
    trained: dict[str, dict[str, str]] = {}
    for name, saved in runs.saved.items():
        groups = [group for key, group in saved["identity"]["sources"].items() if key != "derived"]
        trained[name] = {module: digest for group in groups for module, digest in group.items()}
        if outside := [
            module for module in trained[name] if MODULE.fullmatch(module) and not module.startswith(OWN)
        ]:
            raise UserError(
                f"study={study}: {few(outside)} of {name} is no code of this project; its source is unknown"
            )
    evaluated = {name: saved[EVALUATED] for name, saved in runs.saved.items()}
    for digests, what in ((trained, "trained"), (evaluated, "evaluated")):
        seen: dict[str, tuple[str, str]] = {}
        for name, module, digest in ((n, m, d) for n, modules in digests.items() for m, d in modules.items()):
            one, before = seen.setdefault(module, (name, digest))
            if digest != before:
                raise UserError(
                    f"study={study}: {one} and {name} were {what} by different states of {module}; the "
                    f"commands that made them bring both up to date"
                )


def repeat_some(study: str, runs: Runs, results_dir: Path) -> None:
    """Repeat a few of the runs, drawn at random, from their own commands in an empty folder.

    Raises:
        UserError: a run comes out otherwise; on another kind of machine, by more than rounding.
    """
    for name in random.SystemRandom().sample(sorted(runs.saved), min(REPEATED, len(runs.saved))):
        say(f"{study}: repeating {name}")
        with TemporaryDirectory() as scratch:
            repeated = _repeat(study, name, runs.environments[name].get("command"), Path(scratch))
            _require_same(study, run_directory(results_dir, name), repeated)


def _repeat(study: str, name: str, command: object, results_dir: Path) -> RunDirectory:
    if not isinstance(command, list) or SCRIPT not in command:
        raise UserError(f"study={study}: {name} was not made by {SCRIPT}, so it cannot be repeated")
    words = [sys.executable, *map(str, command[command.index(SCRIPT) :])]
    words += [f"results_dir={results_dir}", "logger.mode=disabled"]
    paths = os.pathsep.join([os.getcwd(), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        words, cwd=CONFIG_DIR.parent, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True
    )
    run = run_directory(results_dir, name)
    if run.path.exists():
        return run
    if made := sorted(results_dir.glob("runs/*")):
        raise UserError(
            f"study={study}: the command of {name} now trains {made[0].name}: the code has changed since"
        )
    raise UserError(f"study={study}: repeating {name} failed: {done.stderr.strip()[-300:]}")


def _require_same(study: str, run: RunDirectory, repeated: RunDirectory) -> None:
    files = ((run.metrics, repeated.metrics), (run.curve, repeated.curve))
    contents = {
        one.name: [p.read_bytes() if p.exists() else None for p in (one, other)] for one, other in files
    }
    differing = [name for name, (one, other) in contents.items() if one != other]
    if not differing:
        return
    what = f"study={study}: {run.name} comes out otherwise when it is repeated ({', '.join(differing)})"
    there, here = read_json(run.environment), read_json(repeated.environment)
    others = [key for key in MACHINE if here.get(key) != there.get(key)]
    if not others:
        raise UserError(f"{what}, on the same kind of machine")
    machine = "; ".join(f"{key}: {there.get(key)} there, {here.get(key)} here" for key in others)
    losses = [float(read_csv(directory.metrics)[0]["loss"]) for directory in (run, repeated)]
    if difference := more_than_rounding(losses, read_curve(run.curve), read_curve(repeated.curve)):
        raise UserError(f"{what}, by more than rounding: {difference} ({machine})")
    say(f"{run.name}: repeated up to rounding, on another machine ({machine})")


def more_than_rounding(losses: Sequence[float], curve: Sequence[Row], repeated: Sequence[Row]) -> str:
    """Where a run and its repetition differ by more than another order of summation may cause, or nothing.

    ``losses`` are the first that each recorded, before differences have grown. Within the training lengths
    the intervals of exact match must meet, or where there is none the losses be within 2 %; past these a
    rounding error may decide what a seed does.
    """
    one, other = losses
    if abs(one - other) > FIRST_LOSS * abs(one):
        return f"first recorded loss {one:.6g} and {other:.6g}"
    for a, b in zip(curve, repeated, strict=True):
        if a["exact_match"] is None:
            if a["split"] == "in_distribution" and abs(a["loss"] - b["loss"]) > LOSS * a["loss"]:
                return f"loss {a['loss']:.4g} and {b['loss']:.4g} at length {a['length']}"
            continue
        apart = a["exact_match_low"] > b["exact_match_high"] or b["exact_match_low"] > a["exact_match_high"]
        if a["split"] == "in_distribution" and apart:
            return f"exact match {a['exact_match']:.3g} and {b['exact_match']:.3g} at length {a['length']}"
    return ""
