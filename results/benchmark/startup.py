"""Measure what the command spends before its first step: imports by library, and everything else."""

import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from pe_experiments.terminal.console import Display
from results.benchmark.timing import Row

ROOT = Path(__file__).parents[2]
COMMAND = ("pe=rope", "training.steps=1", "trainer.accelerator=cpu", "logger=none")
UNTIL_FIRST_STEP = """
import os, runpy, sys, time
from pe_experiments.store.writer import RunWriter
def end(writer, step):
    print(time.time(), flush=True)
    os._exit(0)
RunWriter.step = end
sys.argv[0] = "scripts/train.py"
runpy.run_path(sys.argv[0], run_name="__main__")
"""
IMPORT = re.compile(r"import time: +(\d+) \| +\d+ \| +(\S+)")
SHOWN = 6  # libraries with rows of their own
MOST_REPEATS = 5


def startup(repeats: int, display: Display) -> Iterator[Row]:
    """Time one command by part, in processes of its own.

    Python reports the time of every import, and a file of the run tells when its training began.
    """
    repeats = min(repeats, MOST_REPEATS)
    display.start("startup", repeats + 1)
    measured: list[dict[str, float]] = []
    for repeat in range(repeats + 1):
        measured.append(_seconds_by_part())
        display.step(repeat + 1)
    display.stop()
    seconds = {
        name: median(times[name] for times in measured[1:]) for name in measured[1]
    }  # the first reads the disk
    imports = sorted(
        (name for name in seconds if name.startswith("import ")), key=lambda name: -seconds[name]
    )
    rows = {name: seconds[name] for name in imports[:SHOWN]}
    rows["import all others"] = sum(seconds[name] for name in imports[SHOWN:])
    rows |= {name: seconds[name] for name in seconds if name not in imports}
    for name, value in rows.items():
        yield Row("startup", f"train.py {' '.join(COMMAND[:2])}", name, 1000 * value)


def _seconds_by_part() -> dict[str, float]:
    """Return the seconds of one command: each import without those within it, and the rest in two phases."""
    parts: dict[str, float] = defaultdict(float)
    with TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-X",
            "importtime",
            "-c",
            UNTIL_FIRST_STEP,
            *COMMAND,
            f"results_dir={folder}",
        ]
        started = time.time()
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        (environment,) = Path(folder).glob("runs/*/environment.json")
        began = environment.stat().st_mtime - started
    for microseconds, module in IMPORT.findall(done.stderr):
        parts[f"import {module.partition('.')[0]}"] += int(microseconds) / 1e6
    parts["compose, check, build the model"] = began - sum(parts.values())
    parts["set up Lightning, first step"] = float(done.stdout.split()[-1]) - started - began
    return parts
