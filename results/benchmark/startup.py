"""Measure what the command spends before its first step: imports by library, and everything else."""

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd

from pe_experiments.terminal.console import Display
from results.benchmark.timing import Row

ROOT = Path(__file__).parents[2]
COMMAND = ("pe=rope", "training.steps=1", "trainer.accelerator=cpu", "logger=none")
UNTIL_FIRST_STEP = """
import os, runpy, sys, time
from pe_experiments.terminal.console import Lines
def end(display, step):
    print(time.time(), flush=True)
    os._exit(0)
Lines.step = end
sys.argv[0] = "scripts/train.py"
runpy.run_path(sys.argv[0], run_name="__main__")
"""
IMPORT = re.compile(r"import time: +(\d+) \| +\d+ \| +(\w+)")
SHOWN = 6  # libraries with rows of their own
MOST_REPEATS = 5


def startup(repeats: int, display: Display) -> Iterator[Row]:
    """Time one command by part, in several processes; the first reads the disk and does not count."""
    repeats = min(repeats, MOST_REPEATS) + 1
    display.start("startup", repeats)
    measured = []
    for repeat in range(repeats):
        measured.append(_seconds_by_part())
        display.step(repeat + 1)
    display.stop()
    seconds = pd.DataFrame(measured[1:]).median()
    imports = seconds[seconds.index.str.startswith("import ")].sort_values(ascending=False)
    others = pd.Series({"import all others": imports[SHOWN:].sum()})
    for name, value in pd.concat([imports[:SHOWN], others, seconds.drop(imports.index)]).items():
        yield Row("startup", f"train.py {' '.join(COMMAND[:2])}", str(name), 1000 * value)


def _seconds_by_part() -> dict[str, float]:
    """Return the seconds of one command: each import without those within it, and the rest in two phases."""
    parts: dict[str, float] = {}
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-X", "importtime", "-c", UNTIL_FIRST_STEP, *COMMAND]
        command.append(f"results_dir={folder}")
        started = time.time()
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        (environment,) = Path(folder).glob("runs/*/environment.json")
        began = environment.stat().st_mtime - started
    for microseconds, library in IMPORT.findall(done.stderr):
        parts[f"import {library}"] = parts.get(f"import {library}", 0.0) + int(microseconds) / 1e6
    parts["compose, check, build the model"] = began - sum(parts.values())
    parts["set up Lightning, first step"] = float(done.stdout.split()[-1]) - started - began
    return parts
