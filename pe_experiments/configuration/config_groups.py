"""Read the config groups of the commands and their shipped choices from ``configs/``."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from omegaconf import OmegaConf

from pe_experiments.terminal.files import CONFIG_DIR

# Groups whose choices are classes with arguments.
COMPONENT_GROUPS = ("pe", "positions", "task", "model", "optimizer")

# Classes that a read configuration may name: the parts of this package, and the optimizers of PyTorch.
OURS = re.compile(r"(pe_experiments\.(encodings|positions|tasks|models)|torch\.optim)(\.\w+)+")

ALIASES = {"nope": "none"}  # synonyms of encodings


def choices_of(group: str) -> list[str]:
    """Return the shipped choices of a config group."""
    return sorted(path.stem for path in (CONFIG_DIR / group).glob("*.yaml"))


def choices_in_folders(group: str) -> list[str]:
    """Return the shipped choices in the folders of a config group, such as ``released/gemma3`` of ``pe``."""
    folder = CONFIG_DIR / group
    return sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.glob("*/*.yaml"))


@cache
def groups_of(name: str) -> dict[str, str | None]:
    """Return the config groups of ``configs/NAME.yaml`` with their default choices."""
    groups: dict[str, str | None] = {}
    for entry in read_choice("", name).get("defaults", []):
        if isinstance(entry, dict):
            for key, choice in entry.items():
                groups[str(key).split()[-1]] = choice  # without a prefix such as ``optional``
    return groups


def read_choice(group: str, choice: str) -> dict[str, Any]:
    """Return the content of a shipped YAML file."""
    content: Any = OmegaConf.to_container(OmegaConf.load(CONFIG_DIR / group / f"{choice}.yaml"))
    return content
