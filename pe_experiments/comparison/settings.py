"""What compare.py is told on its command line.

Scheme labels hold signs that mean something to Hydra, ``rope(base=500)``, and ``pe=``, ``task=`` and
``model=`` are its config groups; here they are names to look for, so these arguments are read as text.
"""

from __future__ import annotations

import re
from typing import Any

from pe_experiments.configuration.compose import composed
from pe_experiments.configuration.schema import Folder, Section, Study, Words
from pe_experiments.configuration.validation import validated
from pe_experiments.terminal.errors import UserError

FILTERS = ("pe", "task", "model")


class CompareSettings(Section):
    """What ``configs/compare.yaml`` may say, but for what is read as text."""

    results_dir: Folder
    study: Study | None
    out: Folder | None
    baseline: None
    metric: Words | None


def read_settings(arguments: list[str]) -> dict[str, Any]:
    """The arguments of `compare` that those of compare.py describe.

    Raises:
        UserError: an unknown key, or a value of the wrong kind.
    """
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
