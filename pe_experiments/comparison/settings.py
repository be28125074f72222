"""What compare.py is told on its command line.

Scheme labels hold signs that mean something to Hydra, ``rope(base=500)``, and ``pe=``, ``task=`` and
``model=`` are its config groups; here they are names to look for, so these arguments are read as text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from omegaconf import OmegaConf

from pe_experiments.comparison.compare import Options
from pe_experiments.composition import composed
from pe_experiments.config import LoggerConfig
from pe_experiments.errors import UserError
from pe_experiments.validation import validated

FILTERS = ("pe", "task", "model")
LISTS = (*FILTERS, "order", "attention")


@dataclass(frozen=True)
class Settings:
    """Where to read and write, which runs, how to compare, and where to log."""

    results_dir: str
    study: str | None
    out: str | None
    filters: dict[str, list[str]]
    options: Options
    logger: LoggerConfig | None


def read_settings(arguments: list[str]) -> Settings:
    """The settings that the arguments of compare.py describe.

    Raises:
        UserError: an unknown key, or a value of the wrong kind.
    """
    texts, others = {}, []
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if equals and key in (*LISTS, "baseline"):
            texts[key] = value
        else:
            others.append(argument)
    config: Any = OmegaConf.to_container(composed("compare", others), resolve=True)
    lists = {key: _several(key, texts[key]) for key in LISTS if key in texts}
    for key in ("results_dir", "study", "out"):
        if isinstance(config[key], int) and key == "study":
            config[key] = str(config[key])  # a year is a fair name
        if not isinstance(config[key], str) and not (config[key] is None and key != "results_dir"):
            raise UserError(f"{key}={config[key]}: expected text")
    labels = config["labels"] or {}
    if not isinstance(labels, dict):
        raise UserError(f"labels={labels}: expected label and text, as in 'labels={{rope:RoPE}}'")
    options = Options(
        metric=str(config["metric"]),
        baseline=_baseline(texts["baseline"]) if "baseline" in texts else config["baseline"],
        order=lists.get("order", []),
        labels={str(label): str(text) for label, text in labels.items()},
        width=config["width"],
        attention=lists.get("attention", []),
    )
    filters = {key: lists[key] for key in FILTERS if key in lists}
    return Settings(
        config["results_dir"], config["study"], config["out"], filters, options, _logger(config.get("logger"))
    )


def _baseline(value: str) -> str | None:
    """A label as it was typed; ``null`` for none."""
    label = value.strip().strip("'\"")
    return None if label == "null" else label


def _several(key: str, value: str) -> list[str]:
    """``[a,b(c=1,d=2)]`` or ``a,b`` as names; a comma inside parentheses belongs to the name."""
    inside = value.strip()
    if inside.startswith("[") and inside.endswith("]"):
        inside = inside[1:-1]
    names = [name.strip().strip("'\"") for name in re.split(r",(?![^(]*\))", inside) if name.strip()]
    if not names and key in FILTERS:
        raise UserError(f"{key}={value}: expected a name, or several as in '{key}=[a,b]'")
    return ["none" if (key, name) == ("pe", "nope") else name for name in names]


def _logger(section: dict[str, Any] | None) -> LoggerConfig | None:
    return None if section is None else validated(LoggerConfig, section, "logger")
