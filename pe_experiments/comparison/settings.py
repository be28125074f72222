"""What compare.py is told on its command line.

Scheme labels hold signs that mean something to Hydra, ``rope(base=500)``, and ``pe=``, ``task=`` and
``model=`` are its config groups; here they are names to look for, so these arguments are read as text.
"""

from __future__ import annotations

import re
from typing import Any

from omegaconf import OmegaConf

from pe_experiments.composition import composed
from pe_experiments.config import LoggerConfig
from pe_experiments.errors import UserError
from pe_experiments.validation import validated

FILTERS = ("pe", "task", "model")
LISTS = (*FILTERS, "order", "attention")


def read_settings(arguments: list[str]) -> tuple[dict[str, Any], LoggerConfig | None]:
    """The arguments of `compare` that those of compare.py describe, and where to log.

    Raises:
        UserError: an unknown key, or a value of the wrong kind.
    """
    texts, others = dict[str, str](), []
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if equals and key in (*LISTS, "baseline"):
            texts[key] = value
        else:
            others.append(argument)
    config: Any = OmegaConf.to_container(composed("compare", others), resolve=True)
    logger = config.pop("logger", None)
    for key in ("results_dir", "study", "out"):
        if isinstance(config[key], int) and key == "study":
            config[key] = str(config[key])  # a year is a fair name
        if not isinstance(config[key], str) and not (config[key] is None and key != "results_dir"):
            raise UserError(f"{key}={config[key]}: expected text")
    labels = config["labels"] or {}
    if not isinstance(labels, dict):
        raise UserError(f"labels={labels}: expected label and text, as in 'labels={{rope:RoPE}}'")
    config["labels"] = {str(label): str(text) for label, text in labels.items()}
    config |= {key: _several(key, value) for key, value in texts.items() if key in LISTS}
    if label := texts.get("baseline", "").strip().strip("'\""):
        config["baseline"] = None if label == "null" else label
    return config, None if logger is None else validated(LoggerConfig, logger, "logger")


def _several(key: str, value: str) -> list[str]:
    """``[a,b(c=1,d=2)]`` or ``a,b`` as names; a comma inside parentheses belongs to the name."""
    inside = value.strip()
    if inside.startswith("[") and inside.endswith("]"):
        inside = inside[1:-1]
    names = [name.strip().strip("'\"") for name in re.split(r",(?![^(]*\))", inside) if name.strip()]
    if not names and key in FILTERS:
        raise UserError(f"{key}={value}: expected a name, or several as in '{key}=[a,b]'")
    return ["none" if (key, name) == ("pe", "nope") else name for name in names]
