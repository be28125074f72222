"""The process that carries out runs of a sweep one after the other, whichever engine started it.

A run neither raises nor exits here: either would end the runs behind it. It notes what has become of it in a
file beside those of the others, and the launching process reads the notes.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pe_experiments import process
from pe_experiments.errors import InUse, NotApplicable, UserError
from pe_experiments.files import read_json, write_atomically

WAITING, RUNNING, ELSEWHERE = "waiting", "running", "elsewhere"
LOOK_SECONDS = 0.1  # between looks at the notes
# Said of a finished run, as far as they were measured.
METRICS = ("exact_match_in_distribution", "exact_match_at_2x", "loss_in_distribution")
# Ctrl-C, a cluster's way of ending a job and its warning are for the launching process to act on.
OF_THE_LAUNCHER = ("SIGINT", "SIGTERM", "SIGUSR2")


@dataclass(frozen=True)
class Order:
    """One run to carry out; plain enough for a pipe or a cluster.

    Attributes:
        config: composed.
        command: what carries it out alone.
        note: file to note its state in; every node must see it.
        directory: where the sweep was started, and ``path``: where modules were found there. Schemes of the
            user's own may lie in the working directory.
    """

    config: dict[str, Any]
    command: list[str]
    note: str
    directory: str = field(default_factory=os.getcwd)
    path: str = field(default_factory=lambda: os.pathsep.join(entry or os.getcwd() for entry in sys.path))

    def start(self, variables: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Start a process, with these variables set, that carries it out and then any handed to it later."""
        with Path(self.note).with_suffix(".log").open("w") as log:
            worker = subprocess.Popen(
                [sys.executable, "-m", "pe_experiments.sweeps.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=log,
                text=True,
                cwd=self.directory if os.path.isdir(self.directory) else None,
                env={**os.environ, "PYTHONPATH": self.path, **(variables or {})},
            )
        self.hand_to(worker)
        return worker

    def hand_to(self, worker: subprocess.Popen[str]) -> None:
        """Have a running process carry it out next."""
        assert worker.stdin
        with suppress(OSError):  # it was killed meanwhile, and whoever looks at it sees that
            worker.stdin.write(json.dumps(asdict(self)) + "\n")
            worker.stdin.flush()

    def is_over_in(self, worker: subprocess.Popen[str]) -> bool:
        """Whether it is carried out, or the process is gone."""
        gone = worker.poll() is not None  # first: its last words may come in between
        return gone or read_note(Path(self.note))["state"] not in (WAITING, RUNNING)

    def __call__(self) -> None:
        """Carry it out in a process of its own, which ends when this one does."""
        worker = self.start()
        try:
            while not self.is_over_in(worker):
                time.sleep(LOOK_SECONDS)
        finally:
            end(worker)

    def checkpoint(self) -> Any:
        """What submitit queues again when the job hits its time limit; the run then resumes."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)

    def carry_out(self) -> None:
        """Carry it out here and note its state."""
        note = Path(self.note)
        write_note(note, {"state": RUNNING})
        said = io.StringIO()
        with redirect_stdout(said), redirect_stderr(said):  # the terminal belongs to the launching process
            outcome = self._outcome()
        write_note(note, outcome | {"said": said.getvalue().splitlines()})

    def _outcome(self) -> dict[str, Any]:
        try:
            from pe_experiments.config import check, resolve
            from pe_experiments.experiment import run_experiment

            process.own(self.command)
            done = run_experiment(resolve(check(self.config)))
        except NotApplicable as error:
            return {"state": "not applicable", "reason": str(error)}
        except InUse as error:
            return {"state": ELSEWHERE, "reason": str(error)}
        except UserError as error:
            return {"state": "failed", "reason": str(error)}
        except (Exception, SystemExit) as error:  # the others must go on
            reason = f"{type(error).__name__}: {error}"
            return {"state": "failed", "reason": reason, "traceback": traceback.format_exc()}
        return {
            "state": {"completed": "finished", "diverged": "diverged", "error": "failed"}[done.status],
            "reason": done.result.get("reason", ""),
            "done": done.done,
            "name": done.result["name"],
            "metrics": {key: done.result.get(key) for key in METRICS},
        }


def write_note(path: Path, note: dict[str, Any]) -> None:
    write_atomically(path, json.dumps(note))


def read_note(path: Path) -> dict[str, Any]:
    """The note, or one that says ``waiting`` where there is none yet."""
    try:
        return read_json(path)
    except (OSError, ValueError):
        return {"state": WAITING}


def end(worker: subprocess.Popen[str]) -> None:
    """Kill a process that carries out orders."""
    worker.kill()
    with suppress(OSError):  # the pipe still holds what it no longer read
        assert worker.stdin
        worker.stdin.close()
    worker.wait()


def serve() -> None:
    """Carry out the orders that arrive on standard input, a line each.

    Should the launching process be killed, standard input ends, and so does this process at once, whatever it
    is doing.
    """
    for number in (signal.Signals[name] for name in OF_THE_LAUNCHER if hasattr(signal, name)):
        signal.signal(number, signal.SIG_IGN)
    lines: queue.Queue[str] = queue.Queue()

    def listen() -> None:
        for line in sys.stdin:
            lines.put(line)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=listen, daemon=True).start()
    importlib.import_module("pe_experiments.training")  # what every run needs, before there is one
    while True:
        Order(**json.loads(lines.get())).carry_out()


if __name__ == "__main__":
    serve()
