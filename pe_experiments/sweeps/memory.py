"""What earlier sweeps found out, so that a finished run is recognised before anything heavy is imported.

A run's name follows from its configuration and from the source of its parts, and reading that source means
importing torch. So a sweep notes the names it has found, together with a hash of all the code they follow
from; the notes are good as long as that hash is.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from pe_experiments.command_line import parts_outside
from pe_experiments.config import CONFIG_DIR
from pe_experiments.runs import read_json, write_atomically

IDENTIFYING = ("pe", "positions", "task", "model", "training", "evaluation", "seed", "label")


class Memory:
    """The notes of one study, in ``results_dir/<study>/.sweep.json``.

    Attributes:
        compared: what the study's comparison was made of.
    """

    def __init__(self, folder: Path):
        self.path = folder / ".sweep.json"
        self._names: dict[str, dict[str, str]] = {}
        self.compared = ""
        self._stored = None
        try:
            content = read_json(self.path)
            if content["code"] == code_hash():
                self._names, self.compared = dict(content["names"]), str(content["compared"])
                self._stored = content
        except (OSError, ValueError, KeyError, TypeError):
            pass  # nothing noted, or nothing that can be read: it is found out again

    def recall(self, config: dict[str, Any]) -> dict[str, str] | None:
        """What `learn` was told about this configuration."""
        key = _key(config)
        return self._names.get(key) if key else None

    def learn(self, config: dict[str, Any], facts: dict[str, str]) -> None:
        """Note facts that follow from the configuration and the code alone."""
        if key := _key(config):
            self._names[key] = facts

    def save(self) -> None:
        """Write what is new, where that is possible: without the notes everything only takes longer."""
        content = {"code": code_hash(), "names": self._names, "compared": self.compared}
        if content != self._stored:
            with suppress(OSError):
                self.path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(self.path, json.dumps(content))


def _key(config: dict[str, Any]) -> str | None:
    """None where a part from outside the package is named: its source could be anywhere."""
    identifying = {key: config.get(key) for key in IDENTIFYING}
    if parts_outside(identifying):
        return None
    text = json.dumps(identifying, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def code_hash() -> str:
    """Of all the code and choices of this package."""
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted([*package.rglob("*.py"), *CONFIG_DIR.rglob("*.yaml")]):
        digest.update(str(path).encode() + path.read_bytes())
    return digest.hexdigest()[:16]
