"""Which code is known to give the published numbers, so that it counts as the code that published them.

``known_code.json`` holds for every part of the package (the path of a class, ``training``, ``evaluation``)
the digest of its code, the state that names the published runs, and how `published.adopt` compared the two.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pe_experiments.store.code import EVALUATION, SHARED, Digests, package_code
from pe_experiments.terminal.files import write_atomically

FILE = Path(__file__).with_name("known_code.json")
Half = Literal["trained", "evaluated"]


@cache
def known() -> dict[str, Any]:
    """``parts`` by name."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def write_known(content: dict[str, Any]) -> None:
    """Replace what is known, a line per part."""
    lines = [f"    {json.dumps(name)}: {json.dumps(part)}" for name, part in sorted(content["parts"].items())]
    write_atomically(FILE, '{\n  "parts": {\n' + ",\n".join(lines) + "\n  }\n}\n")
    known.cache_clear()


def common_code() -> Digests:
    """The code that all runs share: that trains, and that evaluates."""
    return {"training": package_code(SHARED), "evaluation": package_code(EVALUATION)}


def states(code: Digests, half: Half) -> Digests:
    """The published states of parts, by their digests; of one that is not known, the digest itself."""
    found: Digests = {}
    for part, digest in code.items():
        listed = known()["parts"].get(part)
        found |= listed[half] if listed and listed["digest"] == digest else {part: digest}
    return found
