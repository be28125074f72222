"""The speed line of the project's README, from ``table.csv`` of ``scripts/benchmark.py``."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from pe_experiments.terminal.errors import UserError
from pe_experiments.terminal.files import read_json

# Beginning of a phrase: part, case and beginning of the setting of a row of table.csv.
RATIOS = {
    "": ("peers: fastest at its default", "pe_experiments", "d=128"),
    "at their best settings ": ("peers: fastest at its best float32", "pe_experiments", "d=128"),
    "batches of 8 take ": ("small: fastest at its best float32", "pe_experiments", "d=64, 2 layers, batch 8"),
    "text ": ("peers: fastest at its best float32", "pe_experiments", "text"),
    "beside no encoding RoPE takes ": ("encodings", "rope", "defaults"),
    "ALiBi ": ("encodings", "alibi", "defaults"),
}


def blocks(folder: Path) -> dict[str, str]:
    """One sentence of ratios."""
    table = pd.read_csv(folder / "table.csv", keep_default_na=False, na_values=[""])
    machine = read_json(folder / "machine.json")
    said = []
    for words, (part, case, setting) in RATIOS.items():
        here = (table["part"] == part) & (table["case"] == case) & table["setting"].str.startswith(setting)
        if here.sum() != 1:
            raise UserError(f"{folder}/table.csv has no {part}, {case}, {setting}; run scripts/benchmark.py")
        said.append(f"{words}{table.loc[here, 'ratio'].iloc[0]:.2f}x")
    start = f"A float32 training step on one {machine['processor']} core (PyTorch {machine['torch']}) takes {said[0]} the time of the fastest of x-transformers, PyTorch's own, GPT-2 and Llama at their defaults"
    return {"answer": f"{start}, {said[1]} (d=128, 4 layers); {', '.join(said[2:4])}; {', '.join(said[4:])}."}
