"""From the keys a person types to a whole configuration: choices, sections and single settings.

The command line hands Hydra text; Python hands a mapping of the same keys, or a run's own ``config.yaml``.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf, open_dict

from pe_experiments.errors import UserError, nearest
from pe_experiments.files import CONFIG_DIR

CHOICES = ("pe", "positions", "task", "model", "training", "evaluation", "hardware", "logger")
ALIASES = {"pe": {"nope": "none"}}
DERIVED = ("derived", "identity")  # what a run's config.yaml says besides what was set


def choices_of(group: str) -> list[str]:
    """The shipped choices of a config group."""
    return sorted(path.stem for path in (CONFIG_DIR / group).glob("*.yaml"))


def compose_config(name: str, overrides: list[str]) -> DictConfig:
    """Hydra's composition, also while Hydra is at work (in a sweep) and cannot be started again."""
    within = GlobalHydra.instance().is_initialized()
    with nullcontext() if within else initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
        return compose(name, overrides=overrides)


def configuration(keys: Mapping[str, Any]) -> DictConfig:
    """The configuration that these keys describe, the rest as shipped.

    Args:
        keys: of the command line: a choice (``pe="rope"``), a setting (``{"training.steps": 100}``), or a
            section, whose settings are put over the shipped ones (``training={"steps": 100}``) or, with a
            ``_target_``, in place of them. A run's ``config.yaml`` is such a mapping.

    Raises:
        UserError: no such choice. Unknown settings are found by `config.check`.
    """
    given = {str(key): value for key, value in keys.items() if key not in DERIVED}
    chosen = []
    for group in CHOICES:
        if isinstance(value := given.get(group), str):
            name = ALIASES.get(group, {}).get(value, value)
            if name not in choices_of(group):
                raise UserError(f"{group}={value} is not a choice.{nearest(value, choices_of(group))}")
            chosen.append(f"{group}={name}")
            del given[group]
    config = compose_config("config", chosen)
    with open_dict(config):
        for key, value in sorted(given.items(), key=lambda item: "." in item[0]):  # sections come first
            replaces = isinstance(value, Mapping) and "_target_" in value
            OmegaConf.update(config, key, value, merge=not replaces, force_add=True)
    return config


def parts_outside(config: Any) -> list[str]:
    """Every ``_target_`` in a configuration's parts that is not of this package: building it imports it."""
    if isinstance(config, dict):
        here = [str(target) for key, target in config.items() if key == "_target_"]
        below = [name for value in config.values() for name in parts_outside(value)]
        return [name for name in here if not name.startswith("pe_experiments.")] + below
    return [name for value in config for name in parts_outside(value)] if isinstance(config, list) else []
