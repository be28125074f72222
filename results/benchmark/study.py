"""The speed line of the project's README, from ``table.csv`` of ``scripts/benchmark.py``."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from pe_experiments.published import markdown_table
from pe_experiments.terminal.errors import UserError
from pe_experiments.terminal.files import read_json

# Heading: part, case and beginning of the setting of a row of table.csv.
RATIOS = {
    "this model / fastest other library": ("peers: fastest at its default", "pe_experiments", "d=128"),
    "the same, with the other library at its fastest settings":
        ("peers: fastest at its best float32", "pe_experiments", "d=128"),
    "harness / bare training loop": ("loop", "whole training", "defaults"),
    "RoPE / no encoding": ("schemes", "rope", "defaults"),
    "ALiBi / none": ("schemes", "alibi", "defaults"),
    "T5 / none": ("schemes", "t5", "defaults"),
    "FIRE / none": ("schemes", "fire", "defaults"),
}  # fmt: skip


def blocks(folder: Path) -> dict[str, str]:
    """One line of ratios."""
    table = pd.read_csv(folder / "table.csv", keep_default_na=False, na_values=[""])
    machine = read_json(folder / "machine.json")
    core = f"one {machine['processor']} core (PyTorch {machine['torch']})"
    cells = []
    for part, case, setting in RATIOS.values():
        here = (table["part"] == part) & (table["case"] == case) & table["setting"].str.startswith(setting)
        if here.sum() != 1:
            raise UserError(f"{folder}/table.csv has no {part}, {case}, {setting}; run scripts/benchmark.py")
        cells.append(f"{table.loc[here, 'ratio'].iloc[0]:.2f}x")
    said = f"Time of a float32 training step on {core}, as ratios (below 1: the first is faster):"
    return {"answer": f"{said}\n\n{markdown_table(list(RATIOS), [cells])}"}
