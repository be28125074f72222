"""What one process of a sweep does, whichever launcher started it.

In a sweep a job neither raises nor exits: in Hydra either would end all of them. It notes what has become of
it in a file beside those of the others, and the launching process reads the notes.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from pe_experiments.command_line import sentence
from pe_experiments.errors import InUse, NotApplicable, UserError
from pe_experiments.runs import read_json, write_atomically
from pe_experiments.sweeps.leaving import leave_with

RUNNING, ELSEWHERE = "running", "elsewhere"

_device: FileLock | None = None  # held for the life of the process


@dataclass(frozen=True)
class Worker:
    """Carries out one run; the task function given to a launcher.

    Attributes:
        directory: where the command was typed.
        path: where modules were found there; schemes of the user's own may lie in the working directory.
        devices: GPUs to spread the processes over; none: leave it to the launcher.
        jobs_per_device: processes per GPU.
        claims: folder in which processes claim their place on a GPU.
        launched_by: the process that watches over all of them.
    """

    directory: str
    path: tuple[str, ...]
    devices: tuple[str, ...]
    jobs_per_device: int
    claims: str
    launched_by: int

    def __call__(self, config: DictConfig) -> None:
        hydra = HydraConfig.get()
        note = Path(hydra.sweep.dir) / f"{hydra.job.num}.json"
        write_note(note, {"state": RUNNING, "started": time.time()})
        said = io.StringIO()
        with redirect_stdout(said), redirect_stderr(said):  # the terminal belongs to the overview
            outcome = carry_out(config, self)
        write_note(note, outcome | {"said": said.getvalue().splitlines()})


def carry_out(config: DictConfig, worker: Worker) -> dict[str, Any]:
    """Run one configuration; answers its ``state`` and, where it failed, the ``reason``."""
    try:
        _settle_in(worker)  # before torch is imported
        from pe_experiments.config import check, resolve
        from pe_experiments.experiment import run_experiment

        outcome = run_experiment(resolve(check(config)))
    except NotApplicable as error:
        return {"state": "not applicable", "reason": str(error)}
    except InUse as error:
        return {"state": ELSEWHERE, "reason": str(error)}
    except UserError as error:
        return {"state": "failed", "reason": str(error)}
    except (Exception, SystemExit) as error:  # the others must go on
        reason = sentence(error) or type(error).__name__
        return {"state": "failed", "reason": reason, "traceback": traceback.format_exc()}
    states = {"completed": "finished", "diverged": "diverged", "error": "failed"}
    return {
        "state": states[outcome.status],
        "reason": outcome.result.get("reason", ""),
        "done": outcome.done,
        "figures": {key: outcome.result.get(key) for key in FIGURES},
    }


FIGURES = ("exact_match_in_distribution", "exact_match_at_2x")


def write_note(path: Path, note: dict[str, Any]) -> None:
    write_atomically(path, json.dumps(note))


def read_note(path: Path) -> dict[str, Any]:
    """The note, or an empty one where there is none yet."""
    try:
        return read_json(path)
    except (OSError, ValueError):
        return {}


def _settle_in(worker: Worker) -> None:
    """What a process that a launcher has started needs once."""
    if multiprocessing.current_process().name.startswith("LokyProcess"):
        leave_with(worker.launched_by)
    if os.getcwd() != worker.directory and os.path.isdir(worker.directory):
        os.chdir(worker.directory)
    sys.path += [entry for entry in worker.path if entry not in sys.path]
    if worker.devices:
        claim_device(Path(worker.claims), worker.devices, worker.jobs_per_device)


def claim_device(claims: Path, devices: Sequence[str], jobs_per_device: int) -> None:
    """Take a free place on a GPU for the life of this process; must come before torch is imported.

    Raises:
        UserError: more processes than places.
    """
    global _device
    if _device is not None:
        return
    for place in range(jobs_per_device):  # every device once before any twice
        for device in devices:
            lock = FileLock(claims / f"device-{device}-{place}.lock", timeout=0)
            try:
                lock.acquire()
            except Timeout:
                continue
            _device = lock
            os.environ["CUDA_VISIBLE_DEVICES"] = device
            return
    raise UserError(
        f"all {len(devices)} GPUs have {jobs_per_device} processes already; raise sweep.jobs_per_device"
    )
