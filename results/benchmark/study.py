"""The speed line of the project's README, from ``table.csv`` of ``scripts/benchmark.py``."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from pe_experiments.errors import UserError
from pe_experiments.files import read_json
from pe_experiments.publishing import markdown_table

# Heading: part, case and beginning of the setting of a row of table.csv.
RATIOS = {
    "this model / fastest other library": ("peers: fastest at its default", "pe_experiments", "d=128"),
    "the same, with the other library at its fastest settings": (
        "peers: fastest at its best float32",
        "pe_experiments",
        "d=128",
    ),
    "harness / bare training loop": ("loop", "whole training", "defaults"),
    "RoPE / no encoding": ("schemes", "rope", "defaults"),
    "ALiBi / none": ("schemes", "alibi", "defaults"),
    "T5 / none": ("schemes", "t5", "defaults"),
    "FIRE / none": ("schemes", "fire", "defaults"),
}


def readme(folder: Path) -> str:
    """One line of ratios.

    Raises:
        UserError: a part of the benchmark was not run.
    """
    table = pd.read_csv(folder / "table.csv", keep_default_na=False, na_values=[""])
    machine = read_json(folder / "machine.json")
    core = f"one {machine['processor']} core (PyTorch {machine['torch']})"
    cells = []
    for part, case, setting in RATIOS.values():
        here = (table["part"] == part) & (table["case"] == case) & table["setting"].str.startswith(setting)
        if here.sum() != 1:
            raise UserError(f"{folder}/table.csv has no {part}, {case}, {setting}; run scripts/benchmark.py")
        cells.append(f"{table.loc[here, 'ratio'].iloc[0]:.2f}x")
    return f"""Time of a float32 training step on {core}, as ratios (below 1: the first is faster):

{markdown_table(list(RATIOS), [cells])}

The other libraries are x-transformers, `nn.TransformerEncoder`, GPT-2 and Llama (d=128, 4 layers, 128 x 40 tokens).
"""
