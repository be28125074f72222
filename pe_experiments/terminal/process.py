"""Settings of a whole process that runs a command or is a worker of a sweep; not used in notebooks."""

from __future__ import annotations

import ctypes
import logging
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from pe_experiments.terminal.files import CONFIG_DIR

FULL_ERROR = "PE_EXPERIMENTS_FULL_ERROR"  # environment variable with the user's value of HYDRA_FULL_ERROR
PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>
exit_code = 0  # exit code of a command without an error; 1 if a run of its sweep failed
command: list[str] = []  # the command of this process; empty in notebooks


def typed_command(name: str) -> list[str]:
    """Return how a command is called: by its script in a checkout, or as ``pe-NAME`` from a wheel."""
    if CONFIG_DIR.parent == Path(__file__).resolve().parents[1]:
        return [f"pe-{name.replace('_', '-')}"]
    return ["python", f"scripts/{name}.py"]


def set_up(command_words: Iterable[str]) -> None:
    """Prepare output and environment of this process, and record its command."""
    command[:] = command_words
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed: the next file to be opened would get its file descriptor
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    logging.raiseExceptions = False  # otherwise `--info | head` prints a traceback for each further line
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # DDP warns of each unnecessary flag


@contextmanager
def hydra_raises() -> Iterator[bool]:
    """Let Hydra raise errors instead of printing them; yield whether the user set HYDRA_FULL_ERROR=1."""
    global exit_code
    exit_code = 0
    user_value = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"
    os.environ[FULL_ERROR] = user_value or "0"
    try:
        yield user_value == "1"
    finally:
        if user_value is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = user_value


def end_with_parent() -> None:
    """Let the operating system end this process when its parent process ends; on Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        parent = multiprocessing.parent_process()
        if parent and not parent.is_alive():  # it has ended already
            os._exit(1)


def end() -> NoReturn:
    """Flush the output and end this process at once, without Python's clean-up."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # the pipe may be closed
            stream.flush()
    os._exit(0)


def leave(code: int) -> NoReturn:
    """End this process, ignoring further signals."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    sys.exit(code)
