"""Released configurations by name, as `released.yaml` has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

KINDS = {
    "S": "sliding_attention",
    "F": "full_attention",
    "C": "chunked_attention",
    "-": "linear_attention",
}


def written(folder: Path, fields: dict[str, Any]) -> str:
    """The path of a config.json with these fields."""
    path = folder / "config.json"
    path.write_text(json.dumps(fields))
    return str(path)


def text_part(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of the text model."""
    return fields.get("text_config", fields)


def _read() -> dict[str, dict[str, Any]]:
    """All files, with their patterns written out."""
    files = yaml.safe_load(Path(__file__).with_name("released.yaml").read_text())
    for fields in files.values():
        text = text_part(fields)
        layers = text["num_hidden_layers"]
        if "layers" in text:
            pattern = text.pop("layers")
            text["layer_types"] = [KINDS[pattern[i % len(pattern)]] for i in range(layers)]
        for key in ("layer_rope_theta", "rope_theta", "partial_rotary_factors"):
            values = text.get(key)
            if isinstance(values, list):
                text[key] = [values[i % len(values)] for i in range(layers)]
        scaling = text.get("rope_scaling") or {}
        if isinstance(scaling.get("long_factor"), int):  # the shape of Phi-4-mini's lists, other values
            pairs = scaling["long_factor"]
            scaling["short_factor"] = [1.0] * pairs
            scaling["long_factor"] = [1 + 0.014 * pair**2 for pair in range(pairs)]
    return files


FILES = _read()
