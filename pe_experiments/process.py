"""What may be set for a whole process, in one that is ours: a command, or a worker of a sweep.

A notebook or program that calls `run_experiment` keeps its own number of threads and its own allocator.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable
from pathlib import Path

from pe_experiments.files import CONFIG_DIR

command: list[str] = []  # what repeats what this process does; empty in a process that is not ours

# glibc's mallopt parameters, from malloc.h
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3


def typed_command(name: str) -> list[str]:
    """How a command starts: its script in a checkout, ``pe-NAME`` where a wheel is installed."""
    if CONFIG_DIR.parent == Path(__file__).resolve().parent:
        return [f"pe-{name.replace('_', '-')}"]
    return ["python", f"scripts/{name}.py"]


def own(words: Iterable[str]) -> None:
    """Take this process as ours; ``words`` repeat what it does.

    glibc then keeps freed memory: batches of changing shape would otherwise fault it in again at every step.
    """
    command[:] = words
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(M_MMAP_THRESHOLD, 1 << 30)
        libc.mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)
        libc.mallopt(M_TOP_PAD, 256 << 20)
