"""Names and keys that follow from content; nothing here needs torch."""

import hashlib
import json
import re
from typing import Any


def safe_name(label: str) -> str:
    """The label as part of a path, without characters that are special to shells or Hydra."""
    return re.sub(r"[^A-Za-z0-9_.+=-]+", "_", label).strip("_")


def short_hash(content: Any) -> str:
    """Eight hex digits that follow from JSON-like content."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]


def only_code_differs(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two evaluations are the same, carried out by different code."""
    return one != other and one | {"code": None} == other | {"code": None}
