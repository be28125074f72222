"""What compare.py is told on its command line."""

from __future__ import annotations

import re
from typing import Any

from pe_experiments.configuration.compose import composed
from pe_experiments.configuration.schema import Folder, Section, Study, Words, validated
from pe_experiments.terminal.errors import UserError

# Config groups, but here they name what to look for: text, as Hydra would misread ``rope(base=500)``.
FILTERS = ("pe", "task", "model")


class CompareSettings(Section):
    """What ``configs/compare.yaml`` may say, but for what is read as text."""

    results_dir: Folder
    study: Study | None
    out: Folder | None
    baseline: None
    metric: Words | None


def read_settings(arguments: list[str]) -> dict[str, Any]:
    """The arguments of `compare` that those of compare.py describe."""
    texts, others = dict[str, str](), []
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if equals and key in (*FILTERS, "baseline"):
            texts[key] = value
        else:
            others.append(argument)
    config = validated(CompareSettings, composed("compare", others)).model_dump()
    config |= {key: _several(key, texts[key]) for key in FILTERS if key in texts}
    if label := texts.get("baseline", "").strip().strip("'\""):
        config["baseline"] = None if label == "null" else label
    return config


def _several(key: str, value: str) -> list[str]:
    """``[a,b(c=1,d=2)]`` or ``a,b`` as names; a comma inside parentheses belongs to the name."""
    parts = re.split(r",(?![^(]*\))", value.strip().removeprefix("[").removesuffix("]"))
    names = [name.strip().strip("'\"") for name in parts if name.strip()]
    if not names:
        raise UserError(f"{key}={value}: expected a name, or several as in '{key}=[a,b]'")
    return ["none" if (key, name) == ("pe", "nope") else name for name in names]
