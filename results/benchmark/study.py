"""Read the numbers of the page from ``table.csv``, which ``scripts/benchmark.py`` writes."""

from pathlib import Path
from typing import Any

import pandas as pd

from pe_experiments.studies import Study
from pe_experiments.terminal.errors import UserError
from pe_experiments.terminal.files import read_json

# The part and case of a row of table.csv, and the start of its setting.
RATIOS = {
    "defaults": ("peers: fastest at its default", "pe_experiments", "d=128"),
    "best": ("peers: fastest at its best float32", "pe_experiments", "d=128"),
    "small": ("small: fastest at its best float32", "pe_experiments", "d=64, 2 layers, batch 8"),
    "text": ("peers: fastest at its best float32", "pe_experiments", "text"),
    "rope": ("encodings", "rope", "defaults"),
    "alibi": ("encodings", "alibi", "defaults"),
}


def values(folder: Path) -> dict[str, Any]:
    """Return the ratios and the description of the machine.

    Raises:
        UserError: ``table.csv`` lacks a row.
    """
    table = pd.read_csv(folder / "table.csv", keep_default_na=False, na_values=[""])
    values = read_json(folder / "machine.json")
    for name, (part, case, setting) in RATIOS.items():
        rows = table[
            (table["part"] == part) & (table["case"] == case) & table["setting"].str.startswith(setting)
        ]
        if len(rows) != 1:
            raise UserError(f"{folder}/table.csv has no {part}, {case}, {setting}; run scripts/benchmark.py")
        values[name] = rows["ratio"].item()
    return values


STUDY = Study(values=values)
