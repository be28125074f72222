"""What one process of a sweep does, whichever engine started it.

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
import sys
import threading
import time
import traceback
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pe_experiments.errors import InUse, NotApplicable, UserError
from pe_experiments.files import read_json, write_atomically

RUNNING, ELSEWHERE = "running", "elsewhere"
METRICS = ("exact_match_in_distribution", "exact_match_at_2x")  # said of a finished run


@dataclass(frozen=True)
class Order:
    """One run to carry out; plain enough for a pipe or a cluster.

    Attributes:
        config: composed.
        command: what carries it out alone.
        note: file to note its state in.
        directory: where the command was typed.
        path: where modules were found there; schemes of the user's own may lie in the working directory.
    """

    config: dict[str, Any]
    command: list[str]
    note: str
    directory: str
    path: list[str]

    def __call__(self) -> None:
        """Carry it out and note its state."""
        note = Path(self.note)
        write_note(note, {"state": RUNNING, "started": time.time()})
        said = io.StringIO()
        with redirect_stdout(said), redirect_stderr(said):  # the terminal belongs to the overview
            outcome = self._carry_out()
        write_note(note, outcome | {"said": said.getvalue().splitlines()})

    def _carry_out(self) -> dict[str, Any]:
        try:
            if os.getcwd() != self.directory and os.path.isdir(self.directory):
                os.chdir(self.directory)
            sys.path += [entry for entry in self.path if entry not in sys.path]
            from pe_experiments import environment
            from pe_experiments.config import check, resolve
            from pe_experiments.experiment import run_experiment

            environment.command = self.command
            outcome = run_experiment(resolve(check(self.config)))
        except NotApplicable as error:
            return {"state": "not applicable", "reason": str(error)}
        except InUse as error:
            return {"state": ELSEWHERE, "reason": str(error)}
        except UserError as error:
            return {"state": "failed", "reason": str(error)}
        except (Exception, SystemExit) as error:  # the others must go on
            reason = f"{type(error).__name__}: {error}"
            return {"state": "failed", "reason": reason, "traceback": traceback.format_exc()}
        states = {"completed": "finished", "diverged": "diverged", "error": "failed"}
        return {
            "state": states[outcome.status],
            "reason": outcome.result.get("reason", ""),
            "done": outcome.done,
            "name": outcome.result["name"],
            "metrics": {key: outcome.result.get(key) for key in METRICS},
        }


def write_note(path: Path, note: dict[str, Any]) -> None:
    write_atomically(path, json.dumps(note))


def read_note(path: Path) -> dict[str, Any]:
    """The note, or an empty one where there is none yet."""
    try:
        return read_json(path)
    except (OSError, ValueError):
        return {}


def as_line(order: Order) -> str:
    """An order as one line of text."""
    return json.dumps(asdict(order)) + "\n"


def serve() -> None:
    """Carry out the orders that arrive on standard input, a line each; a line on standard output ends one.

    Ctrl-C is for the launching process to answer. Should that be killed, standard input ends, and so does
    this process at once, whatever it is doing.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    reply = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    lines: queue.Queue[str] = queue.Queue()

    def listen() -> None:
        for line in sys.stdin:
            lines.put(line)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=listen, daemon=True).start()
    importlib.import_module("pe_experiments.training")  # what every run needs, before there is one
    while True:
        Order(**json.loads(lines.get()))()
        reply.write("\n")
        reply.flush()


if __name__ == "__main__":
    serve()
