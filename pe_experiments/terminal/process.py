"""Settings of a whole process, for one that is ours: a command or a worker of a sweep, no notebook."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from pe_experiments.terminal.files import CONFIG_DIR

FULL_ERROR = "PE_EXPERIMENTS_FULL_ERROR"  # in the environment: 1 where the user's HYDRA_FULL_ERROR was
exit_code = 0  # of a command that ended without an error: 1 where a run of its sweep failed
command: list[str] = []  # what repeats what this process does; empty in a process that is not ours


def typed_command(name: str) -> list[str]:
    """How a command starts: its script in a checkout, ``pe-NAME`` where a wheel is installed."""
    if CONFIG_DIR.parent == Path(__file__).resolve().parents[1]:
        return [f"pe-{name.replace('_', '-')}"]
    return ["python", f"scripts/{name}.py"]


def own(words: Iterable[str]) -> None:
    """Take this process as ours; ``words`` repeat what it does."""
    command[:] = words
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed, and the next file that is opened would get its number
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # DDP warns of each flag that was not needed
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        # glibc keeps freed memory (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD and M_TOP_PAD of malloc.h): batches of
        # changing shape would otherwise fault it in again at every step.
        for parameter, size in ((-3, 1 << 30), (-1, (1 << 31) - 1), (-2, 256 << 20)):
            libc.mallopt(parameter, size)


@contextmanager
def hydra_raises() -> Iterator[bool]:
    """Let Hydra raise instead of printing tracebacks; gives whether HYDRA_FULL_ERROR=1 asks for them."""
    global exit_code
    exit_code, before = 0, os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"], os.environ[FULL_ERROR] = "1", before or "0"
    try:
        yield before == "1"
    finally:
        if before is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = before


def interrupt(*_: object) -> None:
    """Handle SIGTERM as Ctrl-C."""
    raise KeyboardInterrupt


def end() -> NoReturn:
    """End this process, which is one of several of a run and has nothing more to do."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # nobody reads it any more
            stream.flush()
    os._exit(0)


def leave(code: int) -> NoReturn:
    """End this process, which a second signal does not interrupt."""
    for another in (signal.SIGINT, signal.SIGTERM):
        signal.signal(another, signal.SIG_IGN)
    sys.exit(code)
