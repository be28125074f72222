"""Settings of a whole process, for one that is ours: a command or a worker of a sweep, no notebook."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from pe_experiments.terminal.files import CONFIG_DIR

FULL_ERROR = "PE_EXPERIMENTS_FULL_ERROR"  # in the environment: 1 where the user's HYDRA_FULL_ERROR was
exit_code = 0  # of a command that ended without an error: 1 where a run of its sweep failed
command: list[str] = []  # what repeats what this process does; empty in a process that is not ours

LINGER_SECONDS = 3.0  # that threads have to end once the main thread has
_exit = os._exit


def typed_command(name: str) -> list[str]:
    """How a command starts: its script in a checkout, ``pe-NAME`` where a wheel is installed."""
    if CONFIG_DIR.parent == Path(__file__).resolve().parents[1]:
        return [f"pe-{name.replace('_', '-')}"]
    return ["python", f"scripts/{name}.py"]


def own(words: Iterable[str]) -> None:
    """Take this process as ours; ``words`` repeat what it does."""
    command[:] = words
    owner = os.getpid()

    def exit_with_a_word(status: int) -> NoReturn:
        if os.getpid() != owner:  # a child that was forked ends as it should
            _exit(status)
        raise SystemExit(f"os._exit({status})")

    # A part that calls it would end the process without a word.
    for module in {os, sys.modules.get("posix", os)}:
        module._exit = exit_with_a_word  # type: ignore[attr-defined]
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


class Interrupted(KeyboardInterrupt):
    """A signal has come, such as that of Ctrl-C. What a part raises is a mere KeyboardInterrupt."""


def interrupt(*_: object) -> None:
    raise Interrupted


def endless_threads(since: Collection[threading.Thread] = ()) -> list[str]:
    """The threads that were started ``since`` and would keep the process from ending."""
    started = set(threading.enumerate()) - {threading.main_thread(), *since}
    return sorted(thread.name for thread in started if not thread.daemon)


def leave(code: int) -> NoReturn:
    """End this process; threads that do not end are named a few seconds later, and do not hold it up."""
    for another in (signal.SIGINT, signal.SIGTERM):  # while it leaves, a second one says nothing new
        signal.signal(another, signal.SIG_IGN)

    def tell() -> None:
        threads = endless_threads()
        if threads and not threading.main_thread().is_alive():
            print(f"error: a thread does not end: {', '.join(threads)}", file=sys.stderr, flush=True)
            _exit(code or 1)

    if endless_threads():
        timer = threading.Timer(LINGER_SECONDS, tell)
        timer.daemon = True
        timer.start()
    sys.exit(code)
