"""Processes that need not import PyTorch, which takes seconds: they are forked from one that has.

Nothing of this package is imported before the fork, so each has the code, the environment and the folder that
it is given. Tests that kill, interrupt or double processes start whole ones instead.
"""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

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


# In place of ``multiprocessing.get_context("spawn")``.
CONTEXT = _Serving()
CONTEXT.set_forkserver_preload(LIBRARIES)


def run_script(
    *words: str | Path, cwd: Path, path: Sequence[Path] = (), environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """What ``subprocess.run`` gives of a script of Python, with these folders first on its path."""
    command = [str(word) for word in words]
    with TemporaryDirectory() as folder:
        outputs = [Path(folder) / name for name in ("out", "err")]
        asked = (command, cwd, [str(one) for one in path], outputs)
        process = CONTEXT.Process(target=_script, args=asked, environment=environment)
        process.start()
        process.join()
        out, err = (output.read_text() for output in outputs)
    assert process.exitcode is not None
    return subprocess.CompletedProcess(command, process.exitcode, out, err)


def _script(command: list[str], cwd: Path, path: list[str], outputs: list[Path]) -> None:
    for stream, output in zip((1, 2), outputs, strict=True):
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT), stream)
    os.chdir(cwd)
    sys.argv, sys.path[:0] = command, [str(Path(command[0]).parent), *path]
    runpy.run_path(command[0], run_name="__main__")
