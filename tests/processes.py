"""Processes forked from a server that has imported PyTorch already, which takes seconds.

The server imports nothing of this package, so each process has its own code, environment and folder.
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

FILE_OPERATIONS = (
    (Path, "rename"),
    (Path, "unlink"),
    (Path, "rmdir"),
    (os, "replace"),
    (shutil, "rmtree"),
    (shutil, "copyfile"),
)
LIBRARIES = ["pytorch_lightning", "hydra", "pandas", "pydantic", "scipy.stats", "matplotlib.pyplot", "jinja2"]


class _Process(ForkServerProcess):
    """A forked process with the environment of whoever starts it, not of the server."""

    def __init__(self, *arguments: Any, environment: Mapping[str, str] | None = None, **options: Any):
        super().__init__(*arguments, **options)
        self.environment = dict(environment or os.environ)

    def run(self) -> None:
        os.environ.clear()
        os.environ.update(self.environment)
        super().run()


class _Context(ForkServerContext):
    Process = _Process


KILLED = 77  # exit code
PATIENCE = 1200  # seconds, enough on a busy machine
# Replaces ``multiprocessing.get_context("spawn")``.
CONTEXT = _Context()
CONTEXT.set_forkserver_preload(LIBRARIES)
# NumPy reads this when it is imported. With more threads, tests that run side by side slow each other down.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # PyTorch reads it when it is imported


class Started:
    """A Python script in a forked process, which leads a new session.

    Args:
        command: the script and its arguments.
        cwd: working directory.
        path: folders to put first on ``sys.path``.
        environment: instead of this process's.
        forks: whether processes that the script spawns are forked, too.
    """

    def __init__(
        self,
        *command: str | Path,
        cwd: Path,
        path: Sequence[Path] = (),
        environment: Mapping[str, str] | None = None,
        forks: bool = False,
    ):
        self.args = [str(word) for word in command]
        self._folder = Path(mkdtemp())
        self._outputs = [self._folder / name for name in ("out", "err")]
        arguments = (self.args, cwd, [str(folder) for folder in path], self._outputs, forks)
        self._process = CONTEXT.Process(target=_run_script, args=arguments, environment=environment)
        self._process.start()
        atexit.register(self._process.kill)  # if the test fails before its end
        self.pid = self._process.pid or 0

    def poll(self) -> int | None:
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()

    def end(self, code: int | None = None) -> subprocess.CompletedProcess[str]:
        """Wait for the end of the process and return its exit code, which may be stated, and output."""
        self._process.join(PATIENCE)
        out, err = (output.read_text() for output in self._outputs)
        shutil.rmtree(self._folder)
        assert self._process.exitcode is not None, f"timeout: {out}{err}"
        assert code in (None, self._process.exitcode), out + err
        return subprocess.CompletedProcess(self.args, self._process.exitcode, out, err)


def run_script(*command: str | Path, cwd: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a Python script as `Started` does and wait for its end, which must be a success."""
    return Started(*command, cwd=cwd, **options).end(code=0)


def wait_for(condition: Callable[[], object], process: Started | None = None) -> None:
    """Wait until a condition holds; the process must not end before."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert process is None or process.poll() is None, "the process ended before the condition held"
        assert time.monotonic() < deadline, "timeout"
        time.sleep(0.02)


def killed_at(operation: int, work: Callable[[], object]) -> bool:
    """Do work in a forked process that dies before its n-th file operation; return whether it got so far."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns of forks beside threads; the child starts no thread
        child = os.fork()
    if child == 0:
        try:
            _exit_before(operation)
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, KILLED)
    return code == KILLED


def _exit_before(operation: int) -> None:
    remaining = operation

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal remaining
            remaining -= 1
            if remaining < 0:
                os._exit(KILLED)
            return function(*arguments, **options)

        return call

    for owner, name in FILE_OPERATIONS:
        setattr(owner, name, counted(getattr(owner, name)))


def _run_script(command: list[str], cwd: Path, path: list[str], outputs: list[Path], forks: bool) -> None:
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background processes of a shell ignore it
    if forks:  # use the running server
        forkserver._forkserver.ensure_running = lambda: None  # type: ignore[method-assign]
        multiprocessing.get_context = lambda method=None: CONTEXT  # type: ignore[assignment]
    for stream, output in zip((1, 2), outputs, strict=True):
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT), stream)
    os.chdir(cwd)
    sys.argv = command
    sys.path[:0] = [str(Path(command[0]).parent), *path]
    runpy.run_path(command[0], run_name="__main__")
