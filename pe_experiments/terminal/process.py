"""Set up the whole process of a command or of a worker of a sweep; not used in notebooks."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from pe_experiments.terminal.files import CONFIG_DIR

FULL_ERROR = "PE_EXPERIMENTS_FULL_ERROR"  # environment variable that passes on the user's HYDRA_FULL_ERROR
exit_code = 0  # exit code of a command without an error; 1 if a run of its sweep failed
command: list[str] = []  # the command of this process; empty in notebooks


def typed_command(name: str) -> list[str]:
    """Return the start of a command: its script in a checkout, or ``pe-NAME`` from a wheel."""
    if CONFIG_DIR.parent == Path(__file__).resolve().parents[1]:
        return [f"pe-{name.replace('_', '-')}"]
    return ["python", f"scripts/{name}.py"]


def set_up(words: Iterable[str]) -> None:
    """Set up this process for a command, which ``words`` repeat."""
    command[:] = words
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # if closed, the next opened file would get its number
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # DDP warns of each unnecessary flag
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        # glibc keeps freed memory (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD and M_TOP_PAD of malloc.h): batches of
        # changing shape would otherwise fault it in again at every step.
        for parameter, size in ((-3, 1 << 30), (-1, (1 << 31) - 1), (-2, 256 << 20)):
            libc.mallopt(parameter, size)


@contextmanager
def hydra_raises() -> Iterator[bool]:
    """Let Hydra raise errors instead of printing them; yield whether HYDRA_FULL_ERROR=1 is set."""
    global exit_code
    exit_code = 0
    before = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"
    os.environ[FULL_ERROR] = before or "0"
    try:
        yield before == "1"
    finally:
        if before is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = before


def follow_parent(*signals: int) -> None:
    """Ignore these signals, which the parent process handles, and end at once when the parent has ended."""
    for number in signals:
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent
    parent.join()
    os.kill(os.getpid(), signal.SIGKILL)


def interrupt(*_: object) -> None:
    """Handle SIGTERM as Ctrl-C."""
    raise KeyboardInterrupt


def end() -> NoReturn:
    """End this process, one of several of a run, when its work is done."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # the pipe may be closed
            stream.flush()
    os._exit(0)


def leave(code: int) -> NoReturn:
    """End this process, ignoring further signals."""
    for another in (signal.SIGINT, signal.SIGTERM):
        signal.signal(another, signal.SIG_IGN)
    sys.exit(code)
