"""The processes that carry out the runs of a sweep: one that raises or exits does not end those behind it."""

from __future__ import annotations

import importlib
import io
import multiprocessing
import os
import signal
import sys
import threading
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

from pe_experiments.terminal import process
from pe_experiments.terminal.errors import InUse, NotApplicable, sentence

# State, reason and what was said; of a run that could start also name and metrics.
Outcome = dict[str, Any]
ELSEWHERE = "elsewhere"  # the state of a run that another process has
# Said of a finished run, as far as they were measured.
METRICS = {
    "exact_match_in_distribution": "exact match in distribution",
    "exact_match_at_2x": "at 2x",
    "loss_in_distribution": "loss in distribution",
}
# Ctrl-C, a cluster's way of ending a job and its warning are for the launching process to act on.
OF_THE_LAUNCHER = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)
SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Order:
    """One run to carry out; plain enough for a pipe or a cluster."""

    config: dict[str, Any]
    command: list[str]  # what carries it out alone
    # Schemes of the user's own may lie in the working directory, and modules where they were found.
    directory: str = field(default_factory=os.getcwd)
    path: list[str] = field(default_factory=lambda: [entry or os.getcwd() for entry in sys.path])

    def __call__(self) -> Outcome:
        """Carry it out on a cluster's node, in a process of its own, which ends when this one does."""
        with suppress(OSError):
            os.chdir(self.directory)
        sys.path[:] = self.path
        worker = Worker()
        try:
            return worker.run(self)
        finally:
            worker.kill()

    def checkpoint(self) -> Any:
        """What submitit queues again when the job hits its time limit; the run then resumes."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


class Worker:
    """A process for one order after the other; it starts with the first, and anew after it was killed."""

    def __init__(self, gpu: str | None = None):
        self.gpu = gpu  # the only one it sees
        self._process: SpawnProcess | None = None
        self._killed = False

    def run(self, order: Order) -> Outcome:
        """Hand over the order and wait for what becomes of it."""
        if not self._process or not self._process.is_alive():
            self._process = self._started()
        try:
            self._pipe.send(order)
            return self._pipe.recv()
        except (EOFError, OSError):
            self._process.join()
            return {"state": "failed", "reason": "its process was killed (is there enough memory?)"}

    def _started(self) -> SpawnProcess:
        self._pipe, theirs = SPAWN.Pipe()
        started = SPAWN.Process(target=serve, args=(theirs, self.gpu))
        started.start()
        theirs.close()
        if self._killed:  # meanwhile, by another thread
            started.kill()
        return started

    def kill(self) -> None:
        """Kill the process, also one that is just being started; who waits for it then waits no longer."""
        self._killed = True
        if self._process:
            self._process.kill()


def serve(orders: Connection, gpu: str | None) -> None:
    """Carry out the orders that arrive, until the launching process ends."""
    for number in OF_THE_LAUNCHER:
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_launcher, daemon=True).start()
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    importlib.import_module("pe_experiments.training.loop")  # what every run needs, before there is one
    while True:
        orders.send(outcome_of(orders.recv()))


def _end_with_launcher() -> None:
    """End this process at once, whatever it is doing, when the launching one is gone."""
    launcher = multiprocessing.parent_process()
    assert launcher
    launcher.join()
    os.kill(os.getpid(), signal.SIGKILL)


def outcome_of(order: Order) -> Outcome:
    """Carry out a run here, without a word on the terminal, which belongs to the launching process."""
    said, threads = io.StringIO(), threading.enumerate()
    with redirect_stdout(said), redirect_stderr(said):
        try:
            outcome = _carried_out(order)
        except BaseException as error:  # the others must go on
            states: dict[type[BaseException], str] = {NotApplicable: "not applicable", InUse: ELSEWHERE}
            outcome = {"state": states.get(type(error), "failed"), "reason": sentence(error)}
    endless = [f"a thread does not end: {name}" for name in process.endless_threads(threads)]
    return outcome | {"said": [*said.getvalue().splitlines(), *endless]}


def _carried_out(order: Order) -> Outcome:
    from pe_experiments.configuration.experiment import resolve
    from pe_experiments.configuration.schema import check
    from pe_experiments.run import run_experiment

    process.own(order.command)
    ran = run_experiment(resolve(check(order.config)))
    return {
        "state": {"completed": "finished", "diverged": "diverged", "error": "failed"}[ran.status],
        "reason": ran.result.get("reason", ""),
        "done": ran.done,
        "name": ran.result["name"],
        "metrics": {key: ran.result.get(key) for key in METRICS},
    }
