"""Processes that need not import PyTorch, which takes seconds: they are forked from one that has.

Nothing of this package is imported before the fork, so each has the code, the environment and the folder that
it is given.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import shutil
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

ON_FILES = ((Path, "rename"), (Path, "unlink"), (Path, "rmdir"), (os, "replace"), (shutil, "rmtree"),
            (shutil, "copyfile"))  # fmt: skip
LIBRARIES = ["pytorch_lightning", "hydra", "pandas", "pydantic", "scipy.stats", "matplotlib.pyplot", "jinja2"]


class _AsSpawned:
    """With the environment of whoever starts it."""

    def __init__(self, *arguments: Any, environment: Mapping[str, str] | None = None, **options: Any):
        super().__init__(*arguments, **options)
        self.environment = dict(environment or os.environ)

    def run(self) -> None:
        os.environ.clear()
        os.environ.update(self.environment)
        super().run()  # type: ignore[misc]


class _Served(_AsSpawned, ForkServerProcess):
    pass


class _Serving(ForkServerContext):
    Process = _Served


KILLED = 77  # exit code
PATIENCE = 600  # seconds that a busy machine may take for what an idle one does at once
# In place of ``multiprocessing.get_context("spawn")``.
CONTEXT = _Serving()
CONTEXT.set_forkserver_preload(LIBRARIES)
# Read when NumPy is imported: its threads would wait for those of the other tests that run.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # read when PyTorch is imported; commands set it before


class Started:
    """A script of Python in a forked process and a session of its own.

    ``path`` are folders that come first on its path. What it spawns is forked, too, if ``forks``.
    """

    def __init__(
        self,
        *words: str | Path,
        cwd: Path,
        path: Sequence[Path] = (),
        environment: Mapping[str, str] | None = None,
        forks: bool = False,
    ):
        self.args = [str(word) for word in words]
        self._folder = Path(mkdtemp())
        self._outputs = [self._folder / name for name in ("out", "err")]
        asked = (self.args, cwd, [str(one) for one in path], self._outputs, forks)
        self._process = CONTEXT.Process(target=_script, args=asked, environment=environment)
        self._process.start()
        atexit.register(self._process.kill)  # if the test fails before its end
        self.pid = self._process.pid or 0

    def poll(self) -> int | None:
        return self._process.exitcode

    @property
    def stdout(self) -> str:
        """What it has said so far."""
        return self._outputs[0].read_text() if self._outputs[0].exists() else ""

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> subprocess.CompletedProcess[str]:
        """Wait for its end."""
        self._process.join()
        out, err = (output.read_text() for output in self._outputs)
        shutil.rmtree(self._folder)
        assert self._process.exitcode is not None
        return subprocess.CompletedProcess(self.args, self._process.exitcode, out, err)


def run_script(*words: str | Path, cwd: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """What ``subprocess.run`` gives of a `Started`."""
    return Started(*words, cwd=cwd, **options).end()


def wait_for(condition: Callable[[], object], process: subprocess.Popen[str] | Started | None = None) -> None:
    """Return when a condition holds; the process must not end before."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert process is None or process.poll() is None, "it ended too early"
        assert time.monotonic() < deadline, "nothing happens"
        time.sleep(0.02)


def killed_at(operation: int, work: Callable[[], object]) -> bool:
    """Do work on files in a forked process that is killed before its n-th operation; whether it was."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns of a fork beside threads; this child starts none
        child = os.fork()
    if child == 0:
        try:
            _die_at(operation)
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, KILLED)
    return code == KILLED


def _die_at(operation: int) -> None:
    left = operation

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                os._exit(KILLED)
            return function(*arguments, **options)

        return call

    for place, name in ON_FILES:
        setattr(place, name, counted(getattr(place, name)))


def _script(command: list[str], cwd: Path, path: list[str], outputs: list[Path], forks: bool) -> None:
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background ignores it
    if forks:  # with the server that has forked this process
        forkserver._forkserver.ensure_running = lambda: None  # type: ignore[method-assign]
        multiprocessing.get_context = lambda method=None: CONTEXT  # type: ignore[assignment]
    for stream, output in zip((1, 2), outputs, strict=True):
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT), stream)
    os.chdir(cwd)
    sys.argv = command
    sys.path[:0] = [str(Path(command[0]).parent), *path]
    runpy.run_path(command[0], run_name="__main__")
