"""Framework-neutral test vectors: results of the loops in float64, as JSON, one file per encoding.

``python -m tests.oracles.vectors [NAME ...]`` writes the named files, or those that are missing. The
conventions are in tests/vectors/README.md.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.oracles.cases import encoding_and_case, expected, expected_outputs, specifications
from tests.oracles.loops import LOGITS, OUTPUTS, VECTORS, Case

FOLDER = Path(__file__).parents[1] / "vectors"

CONVENTIONS = {
    "layout": "q and k are [heads][tokens][head_dim], x is [tokens][d_model], logits [heads][query][key]",
    "scale": "logits contain 1/sqrt(head_dim); null is a key the query does not see",
    "channel_pairing": "rotations pair channel m with m + R of a head (halves), R pairs in all",
    "positions": "ids, which start at 0; gaps are meant",
}


def document(choice: str) -> dict[str, Any]:
    """All vectors of an encoding."""
    kind = "vectors" if choice in VECTORS else "logits"
    if choice in ("stick_breaking", "asentmax"):
        kind = "weights"
    cases = [_entry(arguments, causal, choice, kind) for arguments, causal in specifications(choice)]
    return {"encoding": choice, "conventions": CONVENTIONS, "cases": cases}


def _entry(arguments: dict[str, Any], causal: bool, choice: str, kind: str) -> dict[str, Any]:
    _, _, case = encoding_and_case(choice, arguments, causal, seed=1)  # near and distant positions
    entry: dict[str, Any] = {"arguments": case.arguments, "shape": case.shape, "layer": case.layer}
    entry["positions"] = case.positions
    if kind != "vectors":
        entry |= {"q": case.q.tolist(), "k": case.k.tolist()}
    others = [expected(replace(case, x=factor * case.x)) for factor in (-1, 2)]
    if not all(torch.equal(expected(case).nan_to_num(), other.nan_to_num()) for other in others):
        entry["x"] = case.x.tolist()  # the encoding reads the hidden states
    if choice in OUTPUTS:
        entry["v"] = case.v.tolist()
    entry["parameters"] = {name: value.tolist() for name, value in case.parameters.items()}
    entry[kind] = _plain(expected(case).numpy())
    if choice in OUTPUTS:
        entry["outputs"] = expected_outputs(case).tolist()
    return entry


def _plain(values: np.ndarray) -> Any:
    """Nested lists; masked keys are null."""
    if values.ndim:
        return [_plain(row) for row in values]
    return float(values) if np.isfinite(values) else None


def stored_case(choice: str, entry: dict[str, Any]) -> Case:
    """The case a stored entry describes."""
    empty = np.zeros((entry["shape"]["num_heads"], len(entry["positions"]), 0))
    return Case(
        choice,
        entry["arguments"],
        entry["shape"],
        entry["positions"],
        *(np.array(entry[name]) if name in entry else empty for name in ("q", "k", "v", "x")),
        {name: np.array(value) for name, value in entry["parameters"].items()},
        entry["layer"],
    )


def text(choice: str) -> str:
    """The content of an encoding's file."""
    compact = json.dumps(document(choice), separators=(",", ":"))
    return compact.replace('{"arguments"', '\n{"arguments"') + "\n"  # a line per case


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    every_choice = (*VECTORS, *LOGITS)
    missing = [choice for choice in every_choice if not (FOLDER / f"{choice}.json").exists()]
    for choice in sys.argv[1:] or missing:
        (FOLDER / f"{choice}.json").write_text(text(choice))
        print(FOLDER / f"{choice}.json")
