"""How the processes of the local engine begin, and how they end with the process that launched them.

Nothing but the standard library is imported here: a process that is still importing must be able to leave.
"""

from __future__ import annotations

import importlib
import os
import signal
import threading
import time

PARENT_SECONDS = 0.2  # between looks at whether the launching process is still there


def import_all(launched_by: int) -> None:
    """What every run needs, before there is one; on a busy machine it takes a minute."""
    leave_with(launched_by)
    importlib.import_module("pe_experiments.training")
    importlib.import_module("pe_experiments.comparison.figures")


def leave_with(parent: int) -> None:
    """Ctrl-C is for the launching process to answer; should that be killed, its workers end too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if any(thread.name == "parent" for thread in threading.enumerate()):
        return

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_SECONDS)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="parent", daemon=True).start()
