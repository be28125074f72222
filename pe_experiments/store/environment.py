"""Record code, libraries and machine of a run in ``environment.json``; not part of its identity."""

from __future__ import annotations

import platform
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from pe_experiments.configuration.experiment import Experiment
from pe_experiments.store.identity import file_of, user_classes
from pe_experiments.store.names import file_digest, leaves
from pe_experiments.terminal import process
from pe_experiments.terminal.errors import shown
from pe_experiments.training import matmul

COMPUTES = ("pe_experiments", "commit", "edited", "python", "libraries", "processor", "device", "threads",
            "matmul")  # fmt: skip
LIBRARIES = ("torch", "pytorch-lightning", "hydra-core", "omegaconf", "numpy", "wandb")


def describe_environment(device: str) -> dict[str, Any]:
    """Return the versions, machine and command of this process."""
    commit, edited = checkout()
    return {
        "pe_experiments": metadata.version("pe_experiments"),
        "commit": commit,
        "edited": edited,
        "python": platform.python_version(),
        "libraries": {name: metadata.version(name) for name in LIBRARIES},
        "platform": platform.platform(),
        "processor": processor(),
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "threads": torch.get_num_threads(),
        "matmul": matmul.current_backend(),
        "command": process.command or [Path(sys.argv[0]).name, *sys.argv[1:]],
    }


def resumed_environment(
    recorded: dict[str, Any], today: dict[str, Any], step: int
) -> tuple[dict[str, Any], list[str]]:
    """Return the environment of a run that resumes at a step, and the changes since the run began.

    After a change, ``earlier`` lists the previous environments in order.
    """
    earlier = recorded["earlier"] if isinstance(recorded.get("earlier"), list) else []
    last = {key: value for key, value in recorded.items() if key != "earlier"}
    then, now = (
        dict(leaves({key: environment.get(key) for key in COMPUTES})) for environment in (last, today)
    )
    changed = [path for path in now if path in then and then[path] != now[path]] if last else []
    if changed:
        earlier = [*earlier, last | {"until_step": step}]
    texts = [f"{path[-1]} {shown(now[path])} instead of {shown(then[path])}" for path in changed]
    return today | ({"earlier": earlier} if earlier else {}), texts


def user_files(experiment: Experiment) -> dict[str, str]:
    """Return a digest of each file with a class of the user, by module."""
    classes = (cls for part in experiment.components.values() for cls in user_classes(part.classes))
    files = {cls.__module__: path for cls in classes if (path := file_of(cls))}
    return {module: file_digest(path) for module, path in sorted(files.items())}


def code_changes(experiment: Experiment, environment: dict[str, Any]) -> list[str]:
    """Return remarks on differences between the code that trained a finished run and the present code."""
    remarks = []
    commit, edited = checkout()
    trained_commit = environment.get("commit")
    trained_edited = bool(environment.get("edited"))
    if trained_commit and commit and (trained_commit, trained_edited) != (commit, edited):
        then, now = _revision(trained_commit, trained_edited), _revision(commit, edited)
        remarks.append(f"trained at commit {then}, this checkout is {now}; rerun=true trains again")
    recorded = environment.get("user_files") or {}
    for module, digest in user_files(experiment).items():
        if recorded.get(module, digest) != digest:
            changed = f"the file of {module} has changed since, outside the classes of this run"
            remarks.append(f"{changed}; rerun=true trains again")
    return remarks


def _revision(commit: str, edited: bool) -> str:
    return f"{commit[:8]} (edited)" if edited else commit[:8]


@cache
def checkout() -> tuple[str | None, bool]:
    """Return the commit of this checkout and whether files differ from it; None outside a checkout."""
    folder = Path(__file__).parents[1]

    def git(*words: str) -> str:
        command = ["git", "-C", str(folder), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=5).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")  # exclude copies in other repositories
        return git("rev-parse", "HEAD"), bool(git("status", "--porcelain", "."))
    except (OSError, subprocess.SubprocessError):
        return None, False


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()
