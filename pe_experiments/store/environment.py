"""Describe the code, libraries and machine of a run for its ``environment.json``."""

from __future__ import annotations

import platform
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from pe_experiments.store.names import leaves
from pe_experiments.terminal import process
from pe_experiments.terminal.errors import printable, shown
from pe_experiments.training import matmul

# Entries that are compared when a run resumes, because they may affect results.
COMPARED = ("pe_experiments", "commit", "edited", "python", "libraries", "processor", "device", "threads",
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
        "processor": matmul.processor().get("model name", ""),
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "threads": torch.get_num_threads(),
        "matmul": matmul.current_backend(),
        "command": process.command or [Path(sys.argv[0]).name, *sys.argv[1:]],
    }


def resumed_environment(
    recorded: dict[str, Any], current: dict[str, Any], step: int
) -> tuple[dict[str, Any], list[str]]:
    """Return the ``environment.json`` of a run that resumes at a step, and the changes as texts.

    After a change, its entry ``earlier`` lists the previous environments in order.
    """
    earlier = recorded["earlier"] if isinstance(recorded.get("earlier"), list) else []
    previous = {key: value for key, value in recorded.items() if key != "earlier"}
    changes = []
    if previous:
        old_values, new_values = _compared_values(previous), _compared_values(current)
        for path, value in new_values.items():
            if path in old_values and old_values[path] != value:
                changes.append(f"{path[-1]} {shown(value)} instead of {shown(old_values[path])}")
    if changes:
        earlier = [*earlier, previous | {"until_step": step}]
    if earlier:
        current = current | {"earlier": earlier}
    return current, changes


def _compared_values(environment: dict[str, Any]) -> dict[tuple[str, ...], Any]:
    return dict(leaves({key: environment.get(key) for key in COMPARED}))


def code_changes(environment: dict[str, Any]) -> list[str]:
    """Return remarks on differences between the code that trained a finished run and the current code."""
    remarks = []
    commit, edited = checkout()
    trained_commit = environment.get("commit")
    trained_edited = bool(environment.get("edited"))
    if trained_commit and commit and (trained_commit, trained_edited) != (commit, edited):
        trained, current = _revision(trained_commit, trained_edited), _revision(commit, edited)
        remarks.append(f"trained at commit {trained}, this checkout is {current}; rerun=true trains again")
    libraries = environment.get("libraries")
    trained_torch = libraries.get("torch") if isinstance(libraries, dict) else None
    if trained_torch and trained_torch != torch.__version__:
        remarks.append(f"trained with PyTorch {shown(trained_torch)}, here is {torch.__version__}")
    return remarks


def _revision(commit: str, edited: bool) -> str:
    return printable(f"{commit[:8]} (edited)" if edited else commit[:8])


@cache
def checkout() -> tuple[str | None, bool]:
    """Return the commit of this checkout, or None outside a checkout, and whether files differ from it."""
    folder = Path(__file__).parents[1]
    commands = (
        ["ls-files", "--error-unmatch", "__init__.py"],  # fails for a copy in another repository
        ["rev-parse", "HEAD"],
        ["status", "--porcelain", "."],
    )
    try:
        _, commit, changes = (
            subprocess.run(
                ["git", "-C", str(folder), *words], capture_output=True, text=True, check=True, timeout=5
            ).stdout.strip()
            for words in commands
        )
        return commit, bool(changes)
    except (OSError, subprocess.SubprocessError):
        return None, False
