"""A page that opens from disk and asks no server: a template with its style and scripts, and data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup


def render(template: Path, data: Any, **values: Any) -> str:
    """The page as text; ``data`` becomes JSON in which no text can end the script element."""
    text = json.dumps(data, sort_keys=True, allow_nan=False, separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    environment = Environment(
        loader=FileSystemLoader(template.parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    return environment.get_template(template.name).render(data=Markup(text), **values)
