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
from pe_experiments.terminal.errors import shown
from pe_experiments.training import cpu

# Entries that are compared when a run resumes, because they may affect results.
COMPARED = ("pe_experiments", "commit", "edited", "python", "libraries", "processor", "device", "threads",
            "matmul", "fused_attention_from")  # fmt: skip
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
        "processor": cpu.PROCESSOR.get("model name", ""),
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "threads": torch.get_num_threads(),
        "matmul": cpu.route.matmul,
        "fused_attention_from": cpu.route.fused_from,
        "command": process.command or [Path(sys.argv[0]).name, *sys.argv[1:]],
    }


def environment_changes(environment: dict[str, Any], reference: dict[str, Any]) -> list[str]:
    """Describe the values of an environment that may affect results and differ from the reference."""
    reference_values = dict(leaves(reference))
    return [
        f"{path[-1]} {shown(value)} instead of {shown(reference_values[path])}"
        for path, value in leaves({key: environment[key] for key in COMPARED if key in environment})
        if path in reference_values and reference_values[path] != value
    ]


def code_versions() -> dict[str, Any]:
    """Return the entries of `describe_environment` to which a finished run is compared."""
    commit, edited = checkout()
    return {"commit": commit, "edited": edited, "libraries": {"torch": metadata.version("torch")}}


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
